"""The mistakes of the first hour: each says what is wrong and what to do, and stores nothing."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.errors import EnqueueError, InvalidArguments, JetJobsError
from tests.conftest import MakeApp
from tests.support.processes import run
from tests.support.server import Truth
from tests.support.shell import Shell

TASKS = """
from jetjobs import JetJobs

app = JetJobs("t")


@app.task
async def greet(name: str, times: int = 1) -> str:
    return name * times
"""
GREET = "hint: the task is greet(name: str, times: int = ...)"
HELP = "hint: jetjobs enqueue --help"


WRONG = [
    ("gret name=Ada", 5, "no task named 'gret'", "hint: did you mean 'greet'?"),
    ("greet", 2, "task 'greet': name: is missing", GREET),
    (
        "greet nam=Ada",
        2,
        "task 'greet': name: is missing; nam: is not an argument of the task; did you mean 'name'?",
        GREET,
    ),
    (
        "greet name=Ada times=x",
        2,
        "task 'greet': times: Input should be a valid integer, unable to parse string as an integer",
        GREET,
    ),
    (
        "greet name=Ada times:=x",
        2,
        "invalid JSON in 'times:=x': Expecting value: line 1 column 1 (char 0)",
        HELP,
    ),
    ("greet Ada", 2, "invalid argument 'Ada': write k=text or k:=json", HELP),
    (
        "greet --name Ada",
        2,
        "no such option: --name",
        "hint: write arguments of the task as NAME=VALUE; jetjobs enqueue --help",
    ),
    ("", 2, "missing argument 'task'", HELP),
    (
        "greet name=Ada -q nowhere",
        5,
        "queue 'nowhere' does not exist (STREAM.INFO.",
        "hint: create it with `jetjobs setup apply --queue nowhere`,"
        " or start a worker for it: `jetjobs worker --queue nowhere`",
    ),
]


async def test_a_wrong_enqueue(shell: Shell, truth: Truth) -> None:
    shell("setup", "apply")
    for arguments, code, text, hint in WRONG:
        done = shell("enqueue", *arguments.split(), code=code)
        error, *rest = done.stderr.splitlines()
        assert error.startswith(f"error: {text}")
        assert rest == [hint]
        assert done.stdout == ""
    (stream,) = [name for name in (await truth.api("STREAM.NAMES"))["streams"] if name.endswith("-work-default")]
    assert not [subject for subject in await truth.subjects(stream) if "greet" in subject]


@pytest.mark.parametrize(
    ("module", "target", "text", "hint"),
    [
        (
            None,
            None,
            "no app found in tasks.py, jobs.py, app.py, main.py, worker.py of {folder}",
            'create one with `app = JetJobs("shop")` in tasks.py; or change to the folder of yours;'
            " or name it with --app MODULE:NAME, JETJOBS_APP, or `app` in [tool.jetjobs] of pyproject.toml",
        ),
        (
            TASKS,
            "taks:app",
            "no module named 'taks' in {folder} or on the Python path",
            "name the app as MODULE:NAME, for example tasks:app",
        ),
        (TASKS, "tasks:ap", "'tasks:ap' is not a JetJobs app", "apps in this module: app"),
        (
            "",
            "tasks:app",
            "'tasks:app' is not a JetJobs app",
            'this module has none; create one with `app = JetJobs("shop")`',
        ),
        (
            "",
            "tasks",
            "'tasks' must contain one JetJobs app; found: none",
            'create one with `app = JetJobs("shop")`, or name another module: --app MODULE:NAME',
        ),
    ],
)
def test_an_app_that_is_not_found(
    module: str | None, target: str | None, text: str, hint: str, tmp_path: Path
) -> None:
    if module is not None:
        (tmp_path / "tasks.py").write_text(module)
    done = run(["worker", *([target] if target else [])], tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"error: {text.replace('{folder}', str(tmp_path))}", f"hint: {hint}"]


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("nats://127.0.0.1:9", 3, "error: no NATS server at nats://127.0.0.1:9 within 0.2 s: "),
        (
            "http://127.0.0.1:4222",
            2,
            "error: invalid settings: nats.url: Value error, invalid server URL: use nats://HOST:PORT",
        ),
    ],
)
def test_a_server_that_is_not_there(url: str, code: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    done = run(["enqueue", "greet", "name=Ada", "-s", url, "--timeout", "200ms"], tmp_path)
    assert done.returncode == code
    assert done.stderr.splitlines()[0].startswith(text)
    assert code == 2 or done.stderr.splitlines()[1:] == [
        "hint: start one with `jetjobs dev`, or set another with --server or JETJOBS_NATS__URL"
    ]


# In Python


@pytest.fixture
def greeting(make_app: MakeApp) -> tuple[JetJobs, Any]:
    app = make_app()

    @app.task
    async def greet(name: str, times: int = 1) -> str:
        return name * times

    return app, greet


async def test_an_app_that_is_not_open(greeting: tuple[JetJobs, Any]) -> None:
    app, greet = greeting
    for use in (greet.enqueue(name="Ada"), app.enqueue_many([greet.bind(name="Ada")])):
        with pytest.raises(JetJobsError, match="the app is not connected") as raised:
            await use
        assert raised.value.__notes__ == ["hint: use `async with app:` or `await app.open()`"]


async def test_wrong_arguments(greeting: tuple[JetJobs, Any]) -> None:
    _, greet = greeting
    with pytest.raises(InvalidArguments) as missing:
        await greet.enqueue(nam="Ada")
    assert missing.value.problems == [
        ("name", "is missing"),
        ("nam", "is not an argument of the task; did you mean 'name'?"),
    ]
    with pytest.raises(InvalidArguments, match="takes 2 positional arguments, got 3") as many:
        await greet.enqueue("Ada", 1, 2)
    assert missing.value.hint == many.value.hint == "the task is greet(name: str, times: int = ...)"


async def test_a_forgotten_await_is_named_by_python(greeting: tuple[JetJobs, Any], truth: Truth) -> None:
    _, greet = greeting
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        greet.enqueue(name="Ada")
        gc.collect()
    assert [str(one.message) for one in caught] == ["coroutine 'Task.enqueue' was never awaited"]
    assert (await truth.api("STREAM.NAMES"))["total"] == 0


async def test_enqueue_many_gets_something_else_than_requests(greeting: tuple[JetJobs, Any], truth: Truth) -> None:
    app, greet = greeting
    coroutine = greet.enqueue(name="Ada")
    async with app:
        await app.provision()
        wrong: Any
        for wrong, kind in (
            ([greet.bind(name="Ada"), coroutine], "coroutine"),
            (greet.bind(name="Ada"), "AsyncTask"),
            ([{"name": "Ada"}], "dict"),
        ):
            with pytest.raises(EnqueueError, match=f"enqueue_many takes requests, not {kind}") as raised:
                await app.enqueue_many(wrong)
            assert raised.value.hint == "make a list of them with `bind`: [task.bind(...), task.bind(...)]"
        assert (await app.queues.get("default", rates_over=0)).queued == 0
    coroutine.close()
    await asyncio.sleep(0)
