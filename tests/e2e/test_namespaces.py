"""Two apps on one server, which namespace a command uses, and the removal of what is no longer used."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth
from tests.support.shell import Shell, error_of
from tests.support.terminal import Terminal

TASKS = """
from jetjobs import JetJobs
app = JetJobs("{name}")

@app.task
async def work(n: int = 0) -> str:
    return app.name

@app.task(queue="mail")
async def send() -> None: ...
"""
DEFAULTS = {"JETJOBS_QUEUES__NAMESPACE": ""}
"""The environment of a user who sets nothing."""
MakeShell = Callable[[str], Shell]


@pytest.fixture
def shell_of(tmp_path: Path, server: EmbeddedServer) -> MakeShell:
    """A shell in the folder of an app of that name, with default settings."""

    def make(name: str) -> Shell:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tasks.py").write_text(TASKS.format(name=name))
        shell = Shell(folder, server.url)
        shell.env |= DEFAULTS
        return shell

    return make


@pytest.fixture
def nowhere(tmp_path: Path, server: EmbeddedServer) -> Shell:
    """A shell in a folder without an app."""
    (tmp_path / "nowhere").mkdir()
    shell = Shell(tmp_path / "nowhere", server.url)
    shell.env |= DEFAULTS
    return shell


async def streams(truth: Truth) -> list[str]:
    return sorted((await truth.api("STREAM.NAMES")).get("streams") or [])


async def messages(truth: Truth, stream: str) -> int:
    return int((await truth.api(f"STREAM.INFO.{stream}"))["state"]["messages"])


async def test_two_apps_with_defaults_run_only_their_own_jobs(shell_of: MakeShell, truth: Truth) -> None:
    shop, billing = shell_of("shop"), shell_of("billing")
    with shop.process("worker") as one, billing.process("worker") as two:
        for worker in (one, two):
            worker.wait_for("worker.ready")
            assert '"msg": "created queues: default, mail"' in worker.wait_for("topology.applied")
        for shell in (shop, billing):
            assert shell.json("enqueue", "work", "-n", "1000") == {"stored": 1000, "queue": "default"}
        for name in ("shop", "billing"):
            done = f"KV_{name}-done-default"
            await eventually(functools.partial(messages, truth, done), 60, where=lambda found: found == 1000)
            assert await messages(truth, f"{name}-dead") == 0
            ran_by = set()
            async for _, record in truth._last(done, await truth.subjects(done, f"$KV.{name}-done-default.>")):
                ran_by.add(json.loads(record.data or b"{}")["result"])
            assert ran_by == {name}
        assert [one.end(signal.SIGTERM), two.end(signal.SIGTERM)] == [0, 0]
        assert not [line for line in one.lines + two.lines if '"outcome": ' in line and "succeeded" not in line]


# Which namespace a command uses


async def test_commands_without_an_app_use_the_only_namespace_or_ask(
    shell_of: MakeShell, nowhere: Shell, truth: Truth
) -> None:
    missing = nowhere("queues", "list", code=2)
    assert error_of(missing) == (
        "error: the namespace is unknown: no app was found here, and the server has no queues"
    )
    shop, billing = shell_of("shop"), shell_of("billing")
    shop("setup", "apply")
    assert "using namespace shop, the only one on the server" in nowhere("queues", "list").stderr
    billing("setup", "apply", "--queue", "invoices")
    several = nowhere("queues", "list", code=2)
    assert several.stderr.splitlines()[-2:] == [
        "error: the server has several namespaces: billing, shop",
        "hint: choose one with --namespace NAME",
    ]
    nowhere("queues", "pause", "default", code=2)
    assert not (await truth.api("CONSUMER.INFO.shop-work-default.normal")).get("paused"), "nothing was changed"
    nowhere("doctor", code=2)
    named = nowhere.json("queues", "list", "--namespace", "billing")
    assert [queue["queue"] for queue in named["items"]] == ["default", "invoices", "mail"]
    nowhere.env["JETJOBS_QUEUES__NAMESPACE"] = "billing"
    assert nowhere.json("queues", "show", "invoices")["queue"] == "invoices"
    assert "queue 'invoices' does not exist" in shop.error("queues", "show", "invoices", code=5), "its own app's"
    assert nowhere.json("config", "show", "--app", f"{shop.folder}/tasks.py")["items"]


def test_a_broken_app_fails_no_command_whose_namespace_is_given(shell_of: MakeShell) -> None:
    shop = shell_of("shop")
    shop("setup", "apply")
    (shop.folder / "tasks.py").write_text("import not_installed\n")
    broken = run(["queues", "list"], shop.folder, env=shop.env)
    assert broken.returncode == 4
    assert broken.stderr.splitlines()[-2:] == [
        "error: the app 'tasks' cannot be imported",
        "hint: `--namespace NAME` and `--server URL` work without the app",
    ]
    note = "the settings of the app are not used: the app 'tasks' cannot be imported"
    given = shop("queues", "list", "--namespace", "shop")
    assert (note in given.stderr, "mail" in given.stdout) == (True, True)
    assert note in shop("config", "show").stderr
    both = shop("queues", "list", "--namespace", "shop", "--server", shop.url)
    assert both.stderr == "", "not imported at all"


@pytest.mark.parametrize("name", ["my.shop", "my shop"])
def test_an_app_whose_name_cannot_be_a_namespace_is_refused_with_another(shell_of: MakeShell, name: str) -> None:
    refused = shell_of(name)("setup", "apply", code=2)
    assert refused.stderr.splitlines()[-2:] == [
        f"error: invalid app name {name!r}",
        "hint: a name is 1 to 64 letters, digits, '-' or '_'; use 'my-shop'",
    ]


async def test_a_variable_with_one_underscore_is_an_error_and_nothing_is_stored(
    shell_of: MakeShell, truth: Truth
) -> None:
    shop = shell_of("shop")
    shop.env["JETJOBS_NATS_URL"] = shop.url
    for words in (["setup", "apply"], ["queues", "list"], ["worker"]):
        refused = shop(*words, code=2)
        assert refused.stderr.splitlines() == [
            "error: unknown setting 'nats_url': JETJOBS_NATS_URL in the environment",
            "hint: did you mean JETJOBS_NATS__URL?",
        ]
    assert await streams(truth) == []


async def test_doctor_names_the_namespace_that_a_renamed_app_has_left(shell_of: MakeShell, truth: Truth) -> None:
    shop = shell_of("shop")
    shop("setup", "apply")
    shop("enqueue", "work")
    shop("enqueue", "work", "--delay", "1h")
    (shop.folder / "tasks.py").write_text(TASKS.format(name="store"))
    shop("setup", "apply")

    def found() -> tuple[str, str, str]:
        items = shop.json("doctor", "--only", "topology")["items"]
        return next((one["level"], one["text"], one["hint"]) for one in items if one["check"] == "namespaces")

    assert found() == (
        "warn",
        "namespace shop holds 2 jobs and has no running worker: was the app renamed?",
        "start the worker of app shop; after a rename, this app's with `--namespace shop`; "
        "or delete them with `jetjobs setup destroy --namespace shop`",
    )
    with shop.process("worker", "--namespace", "shop") as worker:
        worker.wait_for("job.succeeded")
        assert found()[0] == "ok", "a worker takes care of them"
        worker.end()
    assert await messages(truth, "KV_shop-done-default") == 1
    assert found()[1].startswith("namespace shop holds 1 job ")


# Settings given in code


def test_settings_given_in_code_are_those_of_the_command_line(tmp_path: Path, server: EmbeddedServer) -> None:
    source = TASKS.format(name="shop").replace(
        'JetJobs("shop")',
        f'JetJobs("shop", settings=Settings(nats=NatsSettings(url="{server.url}"), '
        'queues=QueueSettings(namespace="store"), worker=WorkerSettings(slots=3)))',
    )
    imports = "from jetjobs.model.settings import *\nfrom jetjobs.model.settings import Settings\n"
    (tmp_path / "shop.py").write_text(imports + source)
    env = {**DEFAULTS, "NATS_URL": "nats://127.0.0.1:1"}
    with Process(["worker", "shop:app"], tmp_path, env) as worker:
        assert '"detail": "3 slots"' in worker.wait_for("worker.ready")
        done = run(["enqueue", "work", "--wait", "--app", "shop:app", "--json"], tmp_path, env=env)
        assert json.loads(done.stdout)["result"] == "shop", done.stderr
        listed = run(["queues", "list", "--quiet", "--app", "shop:app"], tmp_path, env=env)
        assert listed.returncode == 0, listed.stderr
        worker.end()
    shown = run(["config", "show", "--json", "--app", "shop:app"], tmp_path, env=env)
    rows = {row["key"]: (row["value"], row["source"]) for row in json.loads(shown.stdout)["items"]}
    assert rows["nats.url"] == (server.url, "app")
    assert rows["queues.namespace"] == ("store", "app")
    assert rows["worker.slots"] == ("3", "app")
    assert rows["queues.lease"][1] == "default"
    other = run(["queues", "list", "--app", "shop:app", "--server", "127.0.0.1:1", "--timeout", "1s"], tmp_path)
    assert other.returncode == 3, "a flag wins"


def test_settings_given_in_code_may_ask_for_several_processes(tmp_path: Path, server: EmbeddedServer) -> None:
    source = TASKS.format(name="shop").replace(
        'JetJobs("shop")', 'JetJobs("shop", settings=Settings(worker=WorkerSettings(processes=2)))'
    )
    (tmp_path / "tasks.py").write_text("from jetjobs.model.settings import Settings, WorkerSettings\n" + source)
    with Process(["worker", "--server", server.url], tmp_path, DEFAULTS) as worker:
        worker.wait_for("worker.ready", 2)
        assert worker.end() == 0


# Removal


async def test_setup_destroy_removes_a_whole_namespace_and_no_other(
    shell_of: MakeShell, nowhere: Shell, truth: Truth
) -> None:
    shop, other = shell_of("shop"), shell_of("shop-2")
    for shell in (shop, other):
        shell("setup", "apply")
        shell("enqueue", "work", "-n", "3")
    # Streams of another program, with names like those of a queue and of done records.
    await truth.js.add_stream(name="shop-work-orders", subjects=["orders.>"])
    await truth.js.create_key_value(bucket="shop-done-orders")
    foreign = ["KV_shop-done-orders", "shop-work-orders"]
    before = await streams(truth)
    others = [stream for stream in before if "shop-2" in stream]
    assert "no namespace is given" in shop.error("setup", "destroy", "--yes", code=2)
    unknown = shop("setup", "destroy", "--namespace", "sop", "--yes", code=5)
    assert unknown.stderr.splitlines()[-2:] == [
        "error: namespace 'sop' does not exist on the server",
        "hint: namespaces on the server: shop, shop-2",
    ]
    what = f"permanently delete namespace shop on {shop.url}: 2 queues with 3 jobs and 0 dead letters"
    refused = nowhere("setup", "destroy", "--namespace", "shop", code=6)
    assert refused.stderr.splitlines()[-2:] == [
        f"error: this would {what}; nothing was changed",
        "hint: confirm with --yes",
    ]
    with shop.terminal("setup", "destroy", "--namespace", "shop", columns=300) as terminal:
        terminal.wait_for(f"This will {what}. Type shop to continue: ")
        terminal.press("yes\n")
        assert terminal.end() == 6
    assert await streams(truth) == before
    with shop.terminal("setup", "destroy", "--namespace", "shop") as terminal:
        terminal.wait_for("Type shop to continue: ")
        terminal.press("shop\n")
        assert terminal.end() == 0
    assert await streams(truth) == sorted([*others, *foreign])
    assert nowhere.json("setup", "destroy", "--namespace", "shop-2", "--yes") == {
        "namespace": "shop-2",
        "deleted": [*(s for s in others if "-work-" not in s), *(s for s in others if "-work-" in s)],
    }
    assert await streams(truth) == foreign


async def test_queues_delete_removes_an_unused_queue(shell_of: MakeShell, truth: Truth) -> None:
    shop = shell_of("shop")
    shop("setup", "apply", "--queue", "old")
    shop("enqueue", "work")
    refused = shop("queues", "delete", "default", code=6)
    assert "error: queue 'default' is in use: 1 queued job" in refused.stderr
    assert await messages(truth, "shop-work-default") == 2, "the job and the pin"
    assert shop("queues", "delete", "old").stdout == "queue old deleted\n"
    assert shop.json("queues", "delete", "default", "--force") == {"queue": "default", "jobs": 1, "dead": 0}
    left = await streams(truth)
    assert [stream for stream in left if stream.endswith(("-old", "-default"))] == []
    assert "queue 'old' does not exist" in shop.error("queues", "delete", "old", code=5)
    shop("setup", "apply")
    assert shop.json("enqueue", "work")["queue"] == "default", "it can be created again"


# The dev server


PROGRAM = """
import asyncio
from tasks import app, work

async def main():
    async with app:
        print(await (await work.enqueue()).result())

asyncio.run(main())
"""


async def test_dev_uses_its_own_server_and_so_does_every_process_of_the_folder(
    shell_of: MakeShell, truth: Truth
) -> None:
    shop = shell_of("shop")
    source = (shop.folder / "tasks.py").read_text()
    given = f'JetJobs("shop", settings=Settings(nats=NatsSettings(url="{shop.url}")))'
    imports = "from jetjobs.model.settings import NatsSettings, Settings\n"
    (shop.folder / "tasks.py").write_text(imports + source.replace('JetJobs("shop")', given))
    (shop.folder / "program.py").write_text(PROGRAM)
    (shop.folder / "jetjobs.toml").write_text(f'[nats]\nurl = "{shop.url}"\ntls_ca = "/none.pem"\n')
    with Process(["dev", "--store", "memory", "--no-reload"], shop.folder, shop.env) as dev:
        dev.wait_for(f"Not used: {shop.url} ({shop.folder / 'jetjobs.toml'}); `--server URL` uses a server")
        dev.wait_for("created queues: default, mail")
        dev.wait_for("worker ready")
        found = json.loads((shop.folder / ".jetjobs" / "dev.json").read_text())
        line = f"using the dev server at {found['url']} (.jetjobs/dev.json), not {shop.url} "
        assert found["url"] != shop.url
        enqueued = run(["enqueue", "work", "--wait"], shop.folder, env=shop.env)
        assert (enqueued.returncode, enqueued.stderr.count(line)) == (0, 1), enqueued.stderr
        assert run(["queues", "list"], shop.folder, env=shop.env).stderr.count(line) == 1
        with Process(["program.py"], shop.folder, shop.env, program=()) as program:
            assert program.wait_for("using the dev server").startswith(line)
            assert program.popen.wait(20) == 0
            assert program.lines[-1] == "shop"
        assert await streams(truth) == [], "the configured server was not touched"
        elsewhere = run(["queues", "list", "--server", shop.url], shop.folder, env=shop.env)
        assert "nats.tls_ca: /none.pem cannot be read" in error_of(elsewhere), (
            "a named server is used as configured"
        )
        assert dev.end(signal.SIGINT) == 0


async def test_dev_ignores_the_variable_too_and_says_so(shell_of: MakeShell, truth: Truth) -> None:
    shop = shell_of("shop")
    shop.env["JETJOBS_NATS__URL"] = shop.url
    with shop.process("dev", "--store", "memory", "--no-reload") as dev:
        assert dev.wait_for("Not used").endswith(", and other commands here still use it")
        dev.wait_for("worker ready")
        assert dev.end(signal.SIGINT) == 0
    assert await streams(truth) == []


async def test_dev_with_a_server_says_where_it_comes_from_and_asks_off_loopback(
    shell_of: MakeShell, truth: Truth
) -> None:
    shop = shell_of("shop")
    far = "nats://user:s3cret@192.0.2.1:4222"
    refused = shop("dev", "--server", far, code=6)
    assert refused.stderr.splitlines()[-2:] == [
        "error: this would create the queues of app shop on nats://192.0.2.1:4222 and run its jobs; "
        "nothing was changed",
        "hint: confirm with --yes",
    ]
    with Terminal(["dev", "--server", far], shop.folder, shop.env, columns=200) as terminal:
        terminal.wait_for("create the queues of app shop on nats://192.0.2.1:4222 and run its jobs? [y/N] ")
        terminal.press("n\n")
        assert terminal.end() == 6
        assert "s3cret" not in terminal.text
    with shop.process("dev", "--server", shop.url, "--no-reload") as dev:
        assert dev.wait_for("NATS ").endswith(f"{shop.url} (from --server)")
        dev.wait_for("worker ready")
        assert dev.end(signal.SIGINT) == 0
    assert not (shop.folder / ".jetjobs").exists()
    assert "shop-work-mail" in await streams(truth)
