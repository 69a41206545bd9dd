"""Tasks: declared once, called as plain functions, enqueued with checked options."""

# No `from __future__ import annotations`: tasks are declared inside tests, with local types.

import asyncio
import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest

from jetjobs import INJECTED, Depends, JetJobs, RetryPolicy, Router, Settings, Task
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions
from jetjobs.define.task import AsyncTask, JobRequest, SyncTask
from jetjobs.model.errors import DefinitionError, InvalidArguments, JetJobsError, UnknownTask
from jetjobs.model.retry import RetryPolicy as Policy


@pytest.fixture
def app() -> JetJobs:
    """An app without a connection: nothing here needs a server."""
    return JetJobs("test", settings=Settings())


def greet(name: str, times: int = 1) -> str:
    """Say hello."""
    return f"hello {name}" * times


# Declaring


def test_a_task_takes_its_name_from_the_function_and_keeps_it(app: JetJobs) -> None:
    task = app.task(greet)
    assert isinstance(task, SyncTask)
    assert (task.name, task.__name__, task.__doc__, task.__wrapped__) == ("greet", "greet", "Say hello.", greet)
    assert (task.queue, task.priority, task.store_result) == ("default", "normal", True)
    assert task.retry == Policy()
    assert app.tasks == {"greet": task}
    assert repr(task) == "<Task greet queue=default>"


def test_a_task_may_be_declared_with_options(app: JetJobs) -> None:
    policy = RetryPolicy(max_attempts=2)
    task = app.task(
        name="hello",
        queue="mail",
        priority="high",
        retry=policy,
        timeout=timedelta(seconds=3),
        result_ttl=timedelta(days=1),
        store_result=False,
    )(greet)
    assert (task.name, task.queue, task.priority, task.retry) == ("hello", "mail", "high", policy)
    assert (task.timeout, task.result_ttl, task.store_result) == (timedelta(seconds=3), timedelta(days=1), False)
    assert app.task_queues == ["mail"]


async def test_a_task_can_still_be_called_as_the_plain_function(app: JetJobs) -> None:
    @app.task
    def plain(a: int, b: int = 2) -> int:
        return a + b

    @app.task
    async def waiting(a: int) -> int:
        await asyncio.sleep(0)
        return a * 2

    assert plain(1) == 3
    assert plain(a=1, b=1) == 2
    assert isinstance(waiting, AsyncTask)
    assert await waiting(4) == 8


def test_a_plain_call_is_not_validated(app: JetJobs) -> None:
    assert app.task(greet)("Ada", times=2) == "hello Adahello Ada"


def each(refused: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """One set of options per value."""
    return [{name: value} for name, values in refused.items() for value in values]


REFUSED_OF_A_TASK: dict[str, list[Any]] = {
    "name": ["a.b", "", "a b", "x" * 65, "a\r\n"],
    "queue": ["a.b", "", "a\0"],
    "priority": ["later", "mark", "a.b", "urgent"],
    "timeout": [timedelta(0), timedelta(seconds=-1), 0, "soon"],
    "result_ttl": [timedelta(milliseconds=999), 0.5, "11y"],
    "retry": [0, True, 1.5, "3"],
    "max_attempts": [0, True, "3"],
    "retries": [3],
}


@pytest.mark.parametrize("options", each(REFUSED_OF_A_TASK), ids=str)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any], app: JetJobs) -> None:
    with pytest.raises(DefinitionError):
        app.task(**options)(greet)
    assert app.tasks == {}


def test_an_unknown_task_option_is_refused_with_those_known(app: JetJobs) -> None:
    with pytest.raises(DefinitionError, match="'retries'") as caught:
        app.task(retries=3)  # type: ignore[call-overload]
    assert "retry" in str(caught.value.hint)


async def async_values() -> Any:
    yield 1


def values() -> Any:
    yield 1


class Class:
    def method(self, name: str) -> None: ...


@pytest.mark.parametrize(
    "function",
    [async_values, values, lambda: None, functools.partial(greet, "Ada"), 5, "greet", None, Class.method],
    ids=["async generator", "generator", "lambda", "partial", "number", "text", "none", "method"],
)
def test_only_named_functions_can_be_tasks(function: Any, app: JetJobs) -> None:
    with pytest.raises(DefinitionError):
        app.task()(function)


def test_a_task_cannot_be_declared_as_a_task_again(app: JetJobs) -> None:
    task = app.task(greet)
    with pytest.raises(DefinitionError, match="must be a function"):
        app.task(name="again")(task)


def test_a_name_can_be_declared_once_only(app: JetJobs) -> None:
    first = app.task(greet)
    with pytest.raises(DefinitionError, match="'greet' is declared twice"):
        app.task(greet)
    assert app.tasks == {"greet": first}


# Aliases


def test_a_task_is_found_by_its_aliases_and_enqueued_by_its_name(app: JetJobs) -> None:
    task = app.task(aliases=["hello", "hi"])(greet)
    assert (task.aliases, task.names) == (("hello", "hi"), ("greet", "hello", "hi"))
    assert app.find("hello") is app.find("hi") is app.find("greet") is task
    assert app.find("hello").bind("Ada").task.name == "greet"
    assert app.task_queues == ["default"]
    with pytest.raises(UnknownTask) as caught:
        app.find("helo")
    assert caught.value.hint == "did you mean 'greet'?"  # the name, not the alias


def test_a_router_passes_aliases_on(app: JetJobs) -> None:
    router = Router()
    task = router.task(aliases=["hello"])(greet)
    app.include(router)
    assert app.tasks == {"greet": task, "hello": task}


def other() -> None: ...


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"aliases": ["greet"]}, "task 'other': alias 'greet' is the name of task 'greet'"),
        ({"aliases": ["old"]}, {"aliases": ["old"]}, "task 'other': alias 'old' is also an alias of task 'greet'"),
        ({"aliases": ["other"]}, {}, "task 'other' has the name of an alias of task 'greet'"),
    ],
)
@pytest.mark.parametrize("included", [False, True])
def test_an_alias_cannot_clash_with_another_task(
    app: JetJobs, first: dict[str, Any], second: dict[str, Any], text: str, included: bool
) -> None:
    task = app.task(**first)(greet)
    router = Router()
    if included:
        app.include(router)
    with pytest.raises(DefinitionError, match=text) as caught:
        (router if included else app).task(**second)(other)
    assert "no task has any more" in str(caught.value.hint)
    assert set(app.tasks.values()) == {task}
    assert not router.tasks


@pytest.mark.parametrize(
    ("aliases", "text"),
    [
        ("hello", "aliases must be a list of names"),
        (7, "aliases must be a list of names"),
        ([7], "invalid alias name 7"),
        (["a.b"], "invalid alias name 'a.b'"),
        (["greet"], "alias 'greet' is its own name"),
        (["old", "old"], "an alias is named twice"),
    ],
)
def test_invalid_aliases_are_refused(app: JetJobs, aliases: Any, text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        app.task(aliases=aliases)(greet)
    assert not app.tasks


# Options of one job


@pytest.fixture
def task(app: JetJobs) -> Task[[str, int], str]:
    return app.task(greet)


NAIVE = datetime(2027, 1, 31)


REFUSED_OF_A_JOB: dict[str, list[Any]] = {
    "queue": ["a.b", "", "a\r\nb", None],
    "priority": ["later", "returned", "a b", "a\0", "urgent"],
    "key": ["", "x" * 1025, "a\rb", "a\nb", "a\0b", 5, "\ud800"],
    "job_id": ["", "a.b", "a\r\nb", "k" + "a" * 26 + "-mine", 5],
    "headers": [
        {"Nats-Msg-Id": "x"},
        {"Jetjobs-Run": "x"},
        {"a:b": "x"},
        {"A": "x\r\nB: y"},
        {"A": "x\0"},
        {"A": 5},
        {5: "x"},
        {"A": "\ud800"},
        "A: x",
    ],
    "delay": [timedelta(seconds=-1), timedelta.max, -5, "soon"],
    "run_at": [NAIVE, "2027-01-31T09:00:00Z"],
    "deadline": [NAIVE, 1234567890],
    "max_attempts": [0, "3"],
    "retries": [3],
}
BOTH = {"delay": timedelta(seconds=1), "run_at": datetime(2030, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize("options", [*each(REFUSED_OF_A_JOB), BOTH], ids=str)
def test_an_option_that_cannot_work_is_refused_before_anything_is_sent(
    options: dict[str, Any], task: Task[..., str]
) -> None:
    with pytest.raises(DefinitionError):
        task.options(**options)


def test_options_that_work_go_with_the_request(task: Task[..., str]) -> None:
    moment = datetime(2027, 1, 31, tzinfo=UTC)
    options = EnqueueOptions(
        queue="mail",
        priority="high",
        run_at=moment,
        key="order 1 / žluť",
        job_id="mine",
        deadline=moment,
        max_attempts=3,
        headers={"Trace": "abc"},
    )
    request = task.options(**options).bind("Ada")
    assert isinstance(request, JobRequest)
    assert (request.task, request.body, request.options) == (task, b'{"name":"Ada"}', options)


def test_options_of_one_call_do_not_stick_to_the_task(task: Task[..., str]) -> None:
    task.options(queue="mail").bind("Ada")
    assert task.bind("Ada").options == {}
    assert task.queue == "default"


def test_a_request_is_checked_when_it_is_made(task: Task[..., str]) -> None:
    with pytest.raises(InvalidArguments):
        task.bind(5)
    with pytest.raises(InvalidArguments):
        task.options(queue="mail").bind()


def test_an_option_name_as_an_argument_is_an_argument(app: JetJobs) -> None:
    @app.task
    def move(queue: str, key: str, delay: int) -> None: ...

    request = move.bind(queue="a", key="b", delay=1)
    assert request.options == {}
    assert request.body == b'{"queue":"a","key":"b","delay":1}'


# Injected arguments


def test_injected_arguments_cannot_be_sent(app: JetJobs) -> None:
    @app.task
    def use(name: str, db: Annotated[Any, Depends(dict)] = INJECTED) -> None: ...

    assert use.bind("Ada").body == b'{"name":"Ada"}'
    for target in (use, use.options(queue="mail")):
        with pytest.raises(InvalidArguments, match="db is injected") as caught:
            target.bind("Ada", db=1)
        assert caught.value.problems == [("db", "injected")]
    with pytest.raises(InvalidArguments, match="positional"):
        use.bind("Ada", 1)


def test_a_dependency_that_cannot_be_made_is_refused_with_the_task(app: JetJobs) -> None:
    def needy(what: int) -> int:
        return what

    def use(db: Annotated[Any, Depends(needy)] = INJECTED) -> None: ...

    with pytest.raises(DefinitionError, match="needy"):
        app.task(use)


# Sending


async def test_a_closed_app_says_what_to_do(app: JetJobs, task: Task[..., str]) -> None:
    with pytest.raises(JetJobsError, match="not connected") as caught:
        await task.enqueue("Ada")
    assert "async with app" in str(caught.value.hint)
    with pytest.raises(JetJobsError, match="not connected"):
        await app.enqueue_many([task.bind("Ada")])
    with pytest.raises(JetJobsError, match="not connected"):
        _ = app.jetstream


async def test_wrong_arguments_are_said_before_a_missing_connection(task: Task[..., str]) -> None:
    with pytest.raises(InvalidArguments):
        await task.enqueue(5)


async def test_enqueue_on_a_router_that_no_app_includes_says_what_to_do() -> None:
    task = Router().task(greet)
    with pytest.raises(DefinitionError, match="router that no app includes") as caught:
        await task.enqueue("Ada")
    assert caught.value.hint == "app.include(router)"


# Routers


def collecting(app: JetJobs) -> list[JobRequest[Any]]:
    """Collect the requests that the app would store."""
    sent: list[JobRequest[Any]] = []

    async def outlet(request: JobRequest[Any]) -> JobHandle[Any]:
        sent.append(request)
        return JobHandle("u1", "default", request.task.name, run="r", stores_result=True, duplicate=False)

    app._session = cast(Any, SimpleNamespace(enqueuer=SimpleNamespace(enqueue=outlet)))
    return sent


async def test_tasks_of_an_included_router_are_the_apps(app: JetJobs) -> None:
    router = Router(queue="mail")
    task = router.task(greet)
    app.include(router)
    sent = collecting(app)
    assert app.find("greet") is task
    assert app.task_queues == ["mail"]
    handle = await task.enqueue("Ada")
    assert (handle.id, handle.task) == ("u1", "greet")
    assert [request.task for request in sent] == [task]


async def test_routers_may_include_routers(app: JetJobs) -> None:
    inner, outer = Router(queue="inner"), Router()
    task = inner.task(greet)
    outer.include(inner)
    app.include(outer)
    sent = collecting(app)
    await task.options(priority="high").enqueue("Ada")
    assert sent[0].task is task
    assert sent[0].options == {"priority": "high"}


def test_an_included_task_that_is_there_already_is_refused_whole(app: JetJobs) -> None:
    app.task(greet)
    router = Router()
    router.task(name="first")(greet)
    router.task(greet)
    with pytest.raises(DefinitionError, match="declared twice"):
        app.include(router)
    assert sorted(app.tasks) == ["greet"]


def test_a_router_cannot_include_itself(app: JetJobs) -> None:
    with pytest.raises(DefinitionError, match="itself"):
        app.include(app)


def test_a_task_declared_after_its_router_was_included_is_known(app: JetJobs) -> None:
    # It would be enqueued through the app, and every worker would dead-letter it as unknown.
    router = Router()
    app.include(router)
    task = router.task(greet)
    assert app.find("greet") is task


def test_an_unknown_task_is_refused_with_the_nearest_name(app: JetJobs) -> None:
    app.task(greet)
    with pytest.raises(UnknownTask, match="'gret'") as caught:
        app.find("gret")
    assert caught.value.hint == "did you mean 'greet'?"
    with pytest.raises(UnknownTask) as caught:
        app.find("something-else")
    assert caught.value.hint is None


@pytest.mark.parametrize("make", [lambda: Router(queue="a.b"), lambda: JetJobs("a b"), lambda: JetJobs("")])
def test_bad_names_of_routers_and_apps_are_refused(make: Callable[[], Router]) -> None:
    with pytest.raises(DefinitionError):
        make()


def test_making_an_app_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETJOBS_NONSENSE", "1")
    app = JetJobs("test")
    app.task(greet)
    assert app.tasks["greet"].name == "greet"
    with pytest.raises(JetJobsError, match="nonsense"):
        _ = app.settings


# Isolation


def test_a_task_may_run_in_a_child_process(app: JetJobs) -> None:
    task = app.task(isolation="process", memory_limit=2**28)(greet)
    assert (task.isolated, task.memory_limit, task.direct) == (True, 2**28, False)


def test_a_task_runs_in_the_worker_unless_it_says_otherwise(app: JetJobs) -> None:
    @app.task
    async def waiting() -> None: ...

    assert (waiting.isolated, waiting.memory_limit, waiting.direct) == (False, None, True)
    assert not app.task(isolation="none")(greet).isolated


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"isolation": "thread"}, "isolation must be 'none' or 'process', not 'thread'"),
        ({"isolation": None}, "isolation must be"),
        ({"memory_limit": 2**28}, "memory_limit needs isolation='process'"),
        ({"isolation": "process", "memory_limit": 1000}, "at least 16,777,216"),
        ({"isolation": "process", "memory_limit": True}, "memory_limit must be a whole number"),
        ({"isolation": "process", "memory_limit": "1G"}, "memory_limit must be a whole number"),
        ({"isolation": "process", "memory_limit": 2**70}, "memory_limit must be a whole number"),
    ],
)
def test_isolation_that_cannot_be_is_refused(app: JetJobs, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        app.task(**options)(greet)


def test_dependencies_do_not_go_with_a_child_process(app: JetJobs) -> None:
    def task(db: Annotated[object, Depends(object)] = INJECTED) -> None: ...

    with pytest.raises(DefinitionError, match="cannot be passed to a child process"):
        app.task(isolation="process")(task)


def test_the_queues_of_an_app_are_those_of_its_tasks_and_schedules() -> None:
    app = JetJobs("a")

    @app.task
    async def report() -> None: ...

    report.cron("@daily", queue="reports")
    assert app.task_queues == ["default", "reports"]
