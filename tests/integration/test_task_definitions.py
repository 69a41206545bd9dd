"""Workers publish the definitions of their tasks once, beside their records, and readers of records skip them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated, Any

import pytest

from jetjobs import JetJobs, Secret
from jetjobs.admin import TaskInfo
from jetjobs.errors import BrokerError
from jetjobs.jetstream.workers import registry
from jetjobs.jetstream.workers.registry import TASK_TTL_S
from jetjobs.worker.fleet import registration
from tests.conftest import MakeApp
from tests.support.probe import eventually
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

KV = "KV_jobs-workers"


async def defined(app: JetJobs, count: int = 1) -> list[TaskInfo]:
    """Wait until the definitions of that many tasks are stored."""

    async def check() -> list[TaskInfo] | None:
        found = await app.workers.tasks()
        return found if len(found) == count and all(task.definition for task in found) else None

    return await eventually(check, 30)


async def stored(truth: Truth) -> list[str]:
    return sorted(await truth.subjects(KV, "$KV.jobs-workers.task.>"))


async def test_a_worker_publishes_its_tasks_once_and_readers_of_workers_skip_them(
    app: JetJobs, truth: Truth
) -> None:
    @app.task(queue="mail", aliases=["post"])
    async def send(user: int, token: Annotated[str, Secret()] = "hunter2") -> None:
        """Sends \x1b[2J mail."""

    @app.task
    async def other() -> None: ...

    async with provisioned(app):
        async with running(app.worker(name="web")):
            assert [task.name for task in await defined(app, 2)] == ["other", "send"]
            keys = [f"$KV.jobs-workers.task.{t.name}.{t.definition.fingerprint}" for t in (other, send)]
            assert await stored(truth) == keys
            message = await truth.js.get_last_msg(KV, keys[1])
            assert (message.headers or {})["Nats-TTL"] == f"{TASK_TTL_S}s"
            assert b"hunter2" not in (message.data or b"")
            assert json.loads(message.data or b"") == send.definition.as_dict()
            [worker] = await app.workers.list()  # and nothing that was read from a definition
            record = json.loads((await truth.js.get_last_msg(KV, f"$KV.jobs-workers.{worker.key}")).data or b"")
            marks = {"send": send.definition.fingerprint, "post": send.definition.fingerprint}
            assert record["tasks"] == {**marks, "other": other.definition.fingerprint}
            await app.workers.quiet("web")
            await eventually(app.workers.list, 30, where=lambda found: found[0].phase == "quiet")
            assert (await truth.js.get_last_msg(KV, keys[1])).seq == message.seq  # a heartbeat does not write it
        assert await app.workers.tasks() == []  # no running worker has them
        assert await stored(truth) == keys  # another worker might


async def test_workers_of_two_versions_are_told_apart(make_app: MakeApp) -> None:
    old, new = make_app(), make_app()

    @old.task(name="send")
    async def send_old(user: int) -> None: ...

    @new.task(name="send")
    async def send_new(user: int, copy: bool = False) -> None: ...

    async with provisioned(old), new, running(old.worker(name="a")), running(new.worker(name="b")):

        async def both() -> TaskInfo | None:
            for task in await old.workers.tasks():
                if len(task.versions) == 2 and all(one.definition for one in task.versions):
                    return task
            return None

        task = await eventually(both, 30)
        assert {one.fingerprint for one in task.versions} == {
            send_old.definition.fingerprint, send_new.definition.fingerprint,
        }  # fmt: skip
        assert task.differences() == ["schema", "signature"]
        findings = await old.doctor(only=["workers"])
        text = next(one.text for one in findings if one.check == "schemas")
        assert text.startswith("the arguments of task send differ between a-")


async def test_a_worker_with_500_tasks_starts_quickly_and_keeps_its_record_small(
    app: JetJobs, truth: Truth
) -> None:
    def make() -> Any:
        async def send(user: int, text: str, tags: list[str] | None = None) -> None:
            """Sends a message."""

        return send

    for number in range(500):
        app.task(name=f"send_{number:03}")(make())
    began = time.monotonic()
    async with provisioned_worker(app) as worker:
        await eventually(lambda: asyncio.sleep(0, worker.ready), 30)
        assert time.monotonic() - began < 10
        await defined(app, 500)
        [record] = await app.workers.list()
        assert len(record.tasks) == 500
        data = (await truth.js.get_last_msg(KV, f"$KV.jobs-workers.{record.key}")).data or b""
        assert len(data) < 40_000


async def test_definitions_that_cannot_be_stored_do_not_stop_the_worker(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are published again later, and `tasks` shows the name in the meantime."""
    monkeypatch.setattr(registration, "RETRY_S", 0.0)
    publish = registry.publish_tasks

    async def refuse(connection: Any, names: Any, tasks: Any) -> None:
        raise BrokerError("on purpose")

    monkeypatch.setattr(registration, "publish_tasks", refuse)

    @app.task
    async def send(user: int) -> int:
        return user

    async with provisioned_worker(app, name="w"):
        assert await (await send.enqueue(user=3)).result(timeout=30) == 3
        [task] = await app.workers.tasks()
        assert (task.name, task.definition) == ("send", None)
        monkeypatch.setattr(registration, "publish_tasks", publish)
        await app.workers.quiet("w")  # the next write of the record
        assert (await defined(app))[0].definition == send.definition
    assert [line.message for line in caplog.records if "definitions" in line.message] == [
        "the definitions of the tasks could not be stored; retrying"
    ]


async def test_an_operator_of_the_example_may_read_them(tmp_path: Any) -> None:
    with GuardedServer(tmp_path) as server:
        worker_app, operator = (
            JetJobs("jobs", settings=server.settings_of(role)) for role in ("worker", "operator")
        )
        setup = JetJobs("jobs", settings=server.settings_of("setup"))
        for one in (worker_app, setup):

            @one.task
            async def send(user: int) -> None: ...

        async with provisioned(setup), worker_app, operator, running(worker_app.worker()):
            [task] = await defined(operator)
            assert task.definition is not None
            assert task.definition.signature == "send(user: int) -> None"
