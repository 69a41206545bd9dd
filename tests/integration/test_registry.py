"""The registry of workers and the requests to them, in one process with a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, JobState
from jetjobs.admin import CancelOutcome, Purged, QueueSlots
from jetjobs.errors import WorkerNotFound, WorkerSilent
from jetjobs.jetstream.workers.control_client import ask_all
from jetjobs.jetstream.workers.registry import TTL_S
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.worker.leader.maintenance import duties
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from jetjobs.worker.options import Phase
from jetjobs.worker.worker import Worker
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

KV = "KV_jobs-workers"


async def until_phase(app: JetJobs, name: str, phase: str) -> WorkerRecord:
    async def check() -> WorkerRecord | None:
        record = await app.workers.get(name)
        return record if record.phase == phase else None

    return await eventually(check, 30)


async def registered(app: JetJobs, count: int) -> list[WorkerRecord]:
    """Wait until that many workers are registered and ready."""

    async def check() -> list[WorkerRecord] | None:
        found = await app.workers.list()
        return found if len(found) == count and all(w.phase == "ready" for w in found) else None

    return await eventually(check, 30)


async def test_a_worker_is_registered_while_it_runs(app: JetJobs, truth: Truth) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def send(user: int, copies: int = 1) -> None:
        entered.set()
        await leave.wait()

    @app.task
    async def other() -> None: ...

    async with provisioned(app):
        assert await app.workers.list() == []
        handle = await send.enqueue(user=1)
        async with running(app.worker(slots=4, queues={"mail": 2, "default": None}, name="web.1")):
            await entered.wait()

            async def busy() -> WorkerRecord | None:
                [record] = await app.workers.list()
                return record if record.running else None

            record = await eventually(busy, 30)
            assert re.fullmatch("web-1-[0-9a-f]{6}", record.key)
            assert (record.name, record.phase) == ("web.1", "ready")
            assert (record.host, record.pid) == (socket.gethostname(), os.getpid())
            assert record.queues == {"mail": QueueSlots(1, 2), "default": QueueSlots(0, 4)}
            assert (record.busy, record.total) == (1, 4)
            assert [(job.id, job.task, job.queue) for job in record.running] == [(handle.id, "send", "mail")]
            assert record.tasks == {
                "send": send.definition.fingerprint,
                "other": other.definition.fingerprint,
            }
            assert record.memory_bytes > 5_000_000
            assert record.version
            assert record.python
            assert await app.workers.list("mail") == await app.workers.list("default") != []
            assert await app.workers.list("nothing") == []
            stored = await truth.js.get_last_msg(KV, f"$KV.jobs-workers.{record.key}")
            assert (stored.headers or {})["Nats-TTL"] == f"{TTL_S}s"
            leave.set()
        assert await app.workers.list() == []
        await eventually(lambda: truth.subjects(KV, "$KV.jobs-workers.*"), 30, where=lambda found: found == {})


async def test_workers_with_the_same_name_have_different_keys(make_app: MakeApp) -> None:
    first, second = make_app(), make_app()
    for one in (first, second):

        @one.task
        async def nothing() -> None: ...

    async with (
        provisioned(first),
        second,
        running(first.worker(name="twin")) as a,
        running(second.worker(name="twin")) as b,
    ):
        keys = [record.key for record in await registered(first, 2)]
        assert all(key.startswith("twin-") for key in keys)
        await first.workers.quiet(keys[1])
        await until_phase(first, keys[1], "quiet")
        assert {a.phase, b.phase} == {Phase.READY, Phase.QUIET}
        with pytest.raises(WorkerNotFound, match="several"):
            await first.workers.get("twin")


async def test_an_ambiguous_worker_name_is_refused(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    async with app:
        await app.provision([])
        for key in ("a", "b"):
            await truth.js.publish(f"$KV.jobs-workers.{key}", json.dumps({"name": "x"}).encode())
        await truth.js.publish("$KV.jobs-workers.c", b"no JSON")
        await truth.js.publish("$KV.jobs-workers.d", b'{"running": 7}')
        with pytest.raises(WorkerNotFound, match="several"):
            await app.workers.get("x")
        with pytest.raises(WorkerNotFound):
            await app.workers.get("c")
        # It is registered, but not subscribed: it has died.
        with pytest.raises(WorkerNotFound, match="gone"):
            await app.workers.quiet("a")


async def test_a_quiet_worker_takes_no_jobs_and_stays_until_it_is_stopped(app: JetJobs, probe: Probe) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> str:
        entered.set()
        await leave.wait()
        return "held"

    @app.task
    async def quick() -> str:
        return "done"

    async with provisioned(app):
        worker = app.worker(name="w")
        life = asyncio.create_task(worker.run())
        handle = await hold.enqueue()
        await entered.wait()
        assert (await app.workers.quiet("w"))["phase"] == "quiet"
        await until_phase(app, "w", "quiet")
        assert not worker.ready
        queue = await app.queues.get("default", rates_over=0)
        assert (queue.running, queue.workers, queue.slots, queue.starts_in) == (1, 0, 0, None)
        late = await quick.enqueue()
        leave.set()
        assert await handle.result(timedelta(seconds=30)) == "held"
        assert not life.done()
        async with running(app.worker(name="other")):
            assert await late.result(timedelta(seconds=30)) == "done"
        assert [event.job_id for event in await probe.finished(2)] == [handle.id, late.id]
        assert (await app.workers.stop("w"))["ok"] is True
        await asyncio.wait_for(life, 30)
        assert worker.cut_short == 0
        assert await app.workers.list() == []


async def test_stop_now_releases_the_running_jobs(app: JetJobs, probe: Probe, truth: Truth) -> None:
    entered = asyncio.Event()

    @app.task
    async def hold() -> None:
        entered.set()
        await asyncio.Event().wait()

    async with provisioned(app):
        worker = app.worker(name="w")
        life = asyncio.create_task(worker.run())
        await hold.enqueue()
        await entered.wait()
        await app.workers.stop("w", now=True)
        await asyncio.wait_for(life, 30)
        assert worker.cut_short == 1
        assert len(await truth.jobs(lane="returned")) == 1


# Control


async def started(app: JetJobs, name: str) -> tuple[Worker, asyncio.Task[None]]:
    worker = app.worker(name=name)
    life = asyncio.create_task(worker.run())
    await wait_until(lambda: worker.phase is Phase.READY, 30)
    return worker, life


async def test_every_request_gets_an_answer(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def nothing() -> None: ...

    async with provisioned(app):
        worker, life = await started(app, "w")

        async def echo(request: dict[str, object]) -> dict[str, object]:
            return {"said": request["text"]}

        def fails(request: dict[str, object]) -> dict[str, object]:
            raise ValueError("no")

        worker.control.on("echo", echo)
        worker.control.on("fails", fails)
        ask, key = app.workers.request, (await app.workers.get("w")).key
        assert await ask("w", "ping") == {"worker": key, "ok": True, "phase": "ready"}
        answer = await ask("w", "echo", {"text": "hi"})
        assert answer == {"worker": key, "ok": True, "said": "hi"}
        unknown = await ask("w", "dance")
        assert unknown["ok"] is False
        assert "dance" in unknown["error"]
        assert set(unknown["words"]) >= {"ping", "quiet", "stop", "echo"}
        failed = await ask("w", "fails")
        assert (failed["ok"], failed["error"]) == (False, "ValueError: no")
        for nonsense in (b"", b"[]", b"7", b'{"x": 1}', b"\xff"):
            reply = await truth.nc.request(f"jobs.control.worker.{key}", nonsense, timeout=20)
            assert json.loads(reply.data)["ok"] is False
        # A request without a reply subject has its effect too.
        await truth.nc.publish("jobs.control.workers", b'{"do": "stop"}')
        await asyncio.wait_for(life, 30)


async def test_a_request_to_all_workers_names_those_that_do_not_answer(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def nothing() -> None: ...

    async with provisioned(app):
        connection, names = app.jetstream.connection, app.jetstream.names
        answers = await ask_all(connection, names, "ping", timeout_s=30)
        assert (answers.by_worker, answers.silent) == ({}, [])
        async with running(app.worker(name="a")), running(app.worker(name="b")):
            keys = {record.key for record in await registered(app, 2)}
            answers = await app.workers.request_all("ping", timeout=30)
            assert set(answers.by_worker) == keys
            assert answers.silent == []
            await truth.js.publish("$KV.jobs-workers.ghost", b'{"name": "ghost"}')
            answers = await app.workers.request_all("ping", timeout=1)
            assert set(answers.by_worker) == keys
            assert answers.silent == ["ghost"]


async def test_a_worker_that_does_not_answer_is_silent_not_gone(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision([])
        await truth.nc.subscribe("jobs.control.worker.w")
        await truth.js.publish("$KV.jobs-workers.w", b"{}")
        with pytest.raises(WorkerSilent):
            await app.workers.quiet("w", timeout=0.5)


async def test_a_worker_works_without_a_registry(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def quick() -> str:
        return "done"

    async with provisioned(app):
        await truth.js.delete_stream(KV)
        async with running(app.worker()):
            assert await (await quick.enqueue()).result(timedelta(seconds=30)) == "done"
            assert await app.workers.list() == []


async def test_the_roles_of_the_example_configuration_may_do_their_work(tmp_path: Path) -> None:
    with GuardedServer(tmp_path) as guarded:

        def app_of(role: str) -> JetJobs:
            app = JetJobs("t", settings=guarded.settings_of(role))

            @app.task
            async def echo(text: str) -> str:
                return text

            return app

        async with app_of("setup") as setup:
            await setup.provision()
        async with app_of("operator") as operator, app_of("worker") as working, app_of("producer") as producer:
            await producer.tasks["echo"].enqueue("unwanted")
            assert await operator.queues.purge("default") == Purged(1, 0)
            await operator.queues.pause("default", reason="why", for_=timedelta(hours=1))
            await producer.tasks["echo"].options(delay=timedelta(hours=1)).enqueue("a")
            await producer.tasks["echo"].enqueue("b")
            async with running(working.worker(name="w")):
                [record] = await registered(operator, 1)
                [state] = await operator.queues.list()
                assert (state.queued, state.scheduled, state.workers) == (1, 1, 1)
                assert state.pause is not None
                assert state.pause.reason == "why"
                assert await operator.queues.purge("default", scheduled=True) == Purged(1, 1)
                keyed, large = producer.tasks["echo"].options(key="k"), "c" * 2_000_000
                handle = await keyed.enqueue(large)
                assert (await keyed.enqueue(large)).duplicate
                assert await operator.queues.resume("default")
                assert await handle.result(timedelta(seconds=30)) == large
                assert (await operator.workers.quiet("w"))["phase"] == "quiet"
                assert set((await operator.workers.request_all("ping", timeout=30)).by_worker) == {record.key}
                job = await producer.tasks["echo"].options(delay=timedelta(hours=1)).enqueue("d")
                assert (await operator.jobs.get(job.id)).state is JobState.SCHEDULED
                assert (await operator.jobs.cancel(job.id)).outcome is CancelOutcome.CANCELLED
                jetstream = working.jetstream
                for duty in duties(jetstream, StrandedJobs(jetstream, "w", 30.0, lambda event: None)):
                    assert (await duty.run()).repaired == 0
                await operator.workers.stop("w")
        denied = [line for line in guarded.log().splitlines() if "Violation" in line]
        assert denied == []
