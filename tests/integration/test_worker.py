"""The worker: every way an attempt can end, and where the job stands on the server afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest

from jetjobs import (
    INJECTED,
    PERMANENT,
    CallNext,
    Context,
    Depends,
    JetJobs,
    JetJobsError,
    JobFailed,
    JobState,
    JobTimeout,
    Reject,
    Retry,
    RetryPolicy,
    Snooze,
    Verdict,
    current_job,
)
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.events import (
    ConnectionLost,
    JobFinished,
    JobStarted,
    LaneTrouble,
    LeaseLostEvent,
    SettleFailed,
    WorkerChanged,
)
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=10)
ONCE = RetryPolicy(max_attempts=1)


# Hand-made jobs


async def test_a_job_published_by_hand_with_a_subject_and_a_json_object_runs_and_gets_an_id(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    seen: list[tuple[str, int]] = []

    @app.task
    async def greet(user: int) -> int:
        seen.append((current_job().id, user))
        return user

    async with provisioned(app):
        await truth.nc.publish("jobs.work.default.normal.greet", b'{"user": 7}')
        await truth.nc.publish("jobs.work.default.normal.greet", b'{"user": 8}')
        async with running(app.worker()):
            await probe.finished(2, "succeeded")
        records = await truth.done()
        assert sorted(user for _, user in seen) == [7, 8]
        assert {record["result"] for record in records.values()} == {7, 8}
        assert set(records) == {job_id for job_id, _ in seen}
        await truth.until_empty()


async def test_a_hand_made_job_with_a_message_id_runs_once_and_is_found_by_that_id(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def greet(user: int) -> int:
        return user

    async with provisioned(app):
        for _ in range(2):
            await truth.nc.publish(
                "jobs.work.default.normal.greet", b'{"user": 7}', headers={"Nats-Msg-Id": "visit-7"}
            )
        await truth.nc.publish(
            "jobs.work.default.normal.greet", b'{"user": 9}', headers={"Nats-Msg-Id": "no token!"}
        )
        async with running(app.worker()):
            await probe.finished(2, "succeeded")
            await truth.until_empty()
        records = await truth.done()
        assert records["visit-7"]["result"] == 7
        assert len(records) == 2
        assert len(probe.of(JobStarted)) == 2


async def test_a_failing_hand_made_job_keeps_its_id_through_retries(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    ids: list[str] = []

    @app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(milliseconds=10)))
    async def fragile() -> None:
        ids.append(current_job().id)
        raise RuntimeError("no")

    async with provisioned(app):
        await truth.nc.publish("jobs.work.default.low.fragile", b"{}")
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        letters = await truth.dead()
        assert len(ids) == 3
        assert set(ids) == set(letters)
        assert len(letters) == 1


@pytest.mark.parametrize(
    ("subject", "body", "reason"),
    [
        ("normal.greet", b"", "malformed"),
        ("normal.greet", b"not json", "malformed"),
        ("normal.greet", b"[1, 2]", "malformed"),
        ("normal.greet", b'"text"', "malformed"),
        ("normal.greet", b"\xff\xfe\x00", "malformed"),
        ("normal.greet", b'{"user":' + b"[" * 1_000_000, "malformed"),
        ("normal.greet", b'{"user": "seven"}', "invalid_arguments"),
        ("normal.greet", b'{"user": 1, "extra": 2}', "invalid_arguments"),
        ("normal.greet", b"{}", "invalid_arguments"),
        ("normal.nobody", b"{}", "unknown_task"),
        ("normal.greet.only-six", b'{"user": 1}', "malformed"),
        ("normal.greet.bad-key.id", b'{"user": 1}', "malformed"),
        ("normal.greet.-.id.more", b'{"user": 1}', "malformed"),
        ("normal.greet", b'{"user": 1}', "malformed"),  # its header
    ],
)
async def test_what_cannot_run_is_dead_lettered_with_its_cause_and_others_keep_flowing(
    app: JetJobs, truth: Truth, probe: Probe, subject: str, body: bytes, reason: str
) -> None:
    @app.task
    async def greet(user: int) -> int:
        return user

    async with provisioned(app):
        headers = {"Jetjobs-Attempt": "many"} if body == b'{"user": 1}' else None
        await truth.nc.publish(f"jobs.work.default.{subject}", body, headers=headers)
        handle = await greet.enqueue(5)
        async with running(app.worker(slots=1)):
            assert await handle.result(SOON) == 5
            await probe.finished(1, "dead_lettered")
        (letter,) = (await truth.dead()).values()
        assert letter["reason"] == reason
        assert letter["body"] == body
        assert letter["text"]
        assert letter["headers"]["Jetjobs-Source"].startswith(f"jobs.work.default.{subject} ")
        await truth.until_empty()
        assert not probe.of(ConnectionLost)


async def test_a_subject_that_is_no_utf8_ends_neither_worker_nor_connection(
    app: JetJobs, server: EmbeddedServer, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def greet() -> str:
        return "hello"

    async with provisioned(app):
        port = int(server.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'CONNECT {"verbose":false}\r\nPUB jobs.work.default.normal.\xff\xfe 2\r\n{}\r\nPING\r\n')
        while await reader.readline() != b"PONG\r\n":
            pass
        writer.close()
        handle = await greet.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == "hello"
            await probe.finished(1, "dead_lettered")
        assert not probe.of(ConnectionLost)


# Ends of an attempt


async def test_a_plain_function_runs_in_a_thread_and_sees_its_job(app: JetJobs) -> None:
    @app.task
    def where() -> list[str]:
        return [threading.current_thread().name, current_job().task]

    async with provisioned(app):
        handle = await where.enqueue()
        async with running(app.worker()):
            thread, task = await handle.result(SOON)
        assert thread.startswith("jetjobs")
        assert task == "where"


def raise_(error: BaseException) -> Any:
    raise error


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


ODD_ENDS: dict[str, tuple[Callable[[], Any], str, bool]] = {
    "exit": (lambda: sys.exit(3), "SystemExit", True),
    "interrupt": (lambda: raise_(KeyboardInterrupt("odd")), "KeyboardInterrupt", True),
    "generator exit": (lambda: raise_(GeneratorExit("odd")), "GeneratorExit", True),
    "group": (lambda: raise_(ExceptionGroup("several", [ValueError(1), KeyError("k")])), "ExceptionGroup", True),
    "stop iteration": (lambda: next(iter([])), "RuntimeError", True),
    "cancelled": (lambda: raise_(asyncio.CancelledError()), "CancelledError", False),
    "cancels itself": (cancel_itself, "CancelledError", False),
    "unserialisable": (object, "UnstorableValue", True),
}
"""What a task does, the error that is told of, and whether a plain function may do it."""


@pytest.mark.parametrize(
    ("kind", "plain"),
    [(kind, plain) for kind in ODD_ENDS for plain in (False, True) if ODD_ENDS[kind][2] or not plain],
)
async def test_whatever_a_task_raises_or_returns_is_a_failed_attempt_and_the_worker_lives(
    app: JetJobs, truth: Truth, kind: str, plain: bool
) -> None:
    end, shown, _ = ODD_ENDS[kind]

    @app.task(retry=ONCE)
    def odd_plain() -> Any:
        return end()

    @app.task(retry=ONCE)
    async def odd() -> Any:
        found = end()
        return await found if asyncio.iscoroutine(found) else found

    @app.task
    async def fine() -> str:
        return "fine"

    async with provisioned(app):
        bad = await (odd_plain if plain else odd).enqueue()
        async with running(app.worker(slots=1)):
            with pytest.raises(JobFailed) as caught:
                await bad.result(SOON)
            assert await (await fine.enqueue()).result(SOON) == "fine"
        assert caught.value.reason == ("permanent" if kind == "unserialisable" else "exhausted")
        # A plain function's GeneratorExit would close whoever waits for its thread: it is told of by another.
        shown = "RuntimeError" if plain and kind == "generator exit" else shown
        assert caught.value.error_type.rpartition(".")[2] == shown
        assert set(await truth.dead()) == {bad.id}
        await truth.until_empty()


async def test_a_task_over_its_timeout_is_stopped_and_fails(app: JetJobs, truth: Truth, probe: Probe) -> None:
    cleaned: list[str] = []

    @app.task(timeout=timedelta(milliseconds=200), retry=ONCE)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("async")

    let_go = threading.Event()

    @app.task(timeout=timedelta(milliseconds=200), retry=ONCE)
    def stuck() -> None:
        let_go.wait(30)

    async with provisioned(app):
        handles = [await slow.enqueue(), await stuck.enqueue()]
        async with running(app.worker()):
            for handle in handles:
                with pytest.raises(JobFailed) as caught:
                    await handle.result(SOON)
                assert caught.value.error_type.endswith(JobTimeout.__name__)
        let_go.set()
        assert cleaned == ["async"]
        assert set(await truth.dead()) == {handle.id for handle in handles}


async def test_a_failing_job_is_retried_from_lane_retry_with_its_history_and_then_dead_lettered(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    attempts: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(seconds=2), backoff="fixed", jitter=False))
    async def fragile(n: int) -> None:
        attempts.append(current_job().attempt)
        raise ValueError(f"attempt {current_job().attempt}")

    async with provisioned(app):
        handle = await fragile.options(headers={"X-Tenant": "acme"}, priority="high").enqueue(1)
        async with running(app.worker()):
            await probe.finished(1, "retried")

            async def waits() -> bool:
                return await truth.jobs() == [f"jobs.work.default.retry.fragile.-.{handle.id}"]

            await eventually(waits)
            assert (await handle.status()).state is JobState.RETRYING
            await truth.until_idle("high")  # backoff holds no slot
            with pytest.raises(JobFailed, match="attempt 3") as caught:
                await handle.result(timedelta(seconds=30))
        assert attempts == [1, 2, 3]
        assert "fragile" in caught.value.traceback
        letter = (await truth.dead())[handle.id]
        assert letter["headers"]["X-Tenant"] == "acme"
        assert letter["headers"]["Jetjobs-Run"] == handle.run
        history = json.loads(letter["headers"]["Jetjobs-Errors"])
        assert [(e["attempt"], e["text"]) for e in history] == [(n, f"attempt {n}") for n in (1, 2, 3)]
        assert letter["body"] == b'{"n":1}'
        assert not [name for name in letter["headers"] if name.startswith("Nats-Schedule")]
        await truth.until_empty()
        assert (await handle.status()).state is JobState.DEAD


async def test_a_job_past_its_deadline_is_dead_lettered_unrun(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def late() -> None: ...

    async with provisioned(app):
        handle = await late.options(deadline=datetime.now(UTC) - timedelta(seconds=1)).enqueue()
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        assert (await truth.dead())[handle.id]["reason"] == "expired"
        assert not probe.of(JobStarted)


# Redelivery


async def _hold(truth: Truth, times: int) -> None:
    """Take the next job like a worker that dies with it: deliver it `times` times and never answer."""
    for _ in range(times):
        subscription = await truth.js.pull_subscribe_bind("normal", "jobs-work-default")
        await subscription.fetch(1, timeout=5)
        await subscription.unsubscribe()


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_job_whose_worker_died_runs_again_as_the_same_attempt(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> list[int]:
        return [current_job().attempt, current_job().delivery]

    async with provisioned(app):
        handle = await work.enqueue()
        await _hold(truth, 1)
        async with running(app.worker()):
            assert await handle.result(SOON) == [1, 2]


@pytest.mark.settings(queues={"lease": "1s", "max_crashes": 1})
async def test_a_job_that_killed_its_workers_too_often_is_dead_lettered_unrun(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        await _hold(truth, 1)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        assert (await truth.dead())[handle.id]["reason"] == "crashed"
        assert not probe.of(JobStarted)


@pytest.mark.settings(queues={"lease": "1s"})
@pytest.mark.parametrize("next_place", ["done", "dead", "retry"])
async def test_a_redelivered_job_that_has_moved_on_is_acked_and_not_run(
    app: JetJobs, truth: Truth, probe: Probe, next_place: str
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        await _hold(truth, 1)
        headers = {"Jetjobs-Run": handle.run, "Jetjobs-Hop": "1"}
        if next_place == "done":
            record = json.dumps({"state": "succeeded", "run": handle.run, "result": None}).encode()
            await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", record)
        elif next_place == "dead":
            await truth.js.publish(f"jobs.dead.default.work.{handle.id}", b"{}", headers=headers)
        else:
            headers["Nats-Schedule"] = f"@at {(datetime.now(UTC) + timedelta(hours=1)).isoformat()}"
            headers["Nats-Schedule-Target"] = f"jobs.work.default.normal.work.-.{handle.id}"
            await truth.js.publish(f"jobs.work.default.retry.work.-.{handle.id}", b"{}", headers=headers)
        async with running(app.worker()):

            async def acked() -> bool:
                return await truth.jobs(lane="normal") == []

            await eventually(acked)
        assert not probe.of(JobStarted)


async def test_a_record_of_another_run_does_not_stop_a_redelivered_job(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(queues={"lease": "1s"})

    @app.task
    async def work() -> str:
        return "new"

    async with provisioned(app):
        handle = await work.options(job_id="mine").enqueue()
        old = json.dumps({"state": "succeeded", "run": "another", "result": "old"}).encode()
        await truth.js.publish("$KV.jobs-done-default.work.mine", old)
        await _hold(truth, 1)
        async with running(app.worker()):
            assert await handle.result(SOON) == "new"


# Leases


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_job_longer_than_its_lease_runs_once(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def long() -> None:
        await asyncio.sleep(2.5)

    async with provisioned(app):
        await long.enqueue()
        async with running(app.worker()), running(app.worker(name="second")):
            await probe.finished(1, "succeeded")
        assert len(probe.of(JobStarted)) == 1
        assert (await truth.consumer())["num_redelivered"] == 0


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_lease_that_runs_out_cancels_the_task_and_touches_nothing(
    app: JetJobs, server: EmbeddedServer, truth: Truth, probe: Probe
) -> None:
    cancelled = asyncio.Event()
    ran = 0

    @app.task
    async def long() -> str:
        nonlocal ran
        ran += 1
        if ran > 1:
            return "second"
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return "first"

    async with provisioned(app):
        handle = await long.enqueue()
        async with running(app.worker()):
            await probe.wait(JobStarted)
            server.stop()
            await probe.wait(LeaseLostEvent)
            await asyncio.wait_for(cancelled.wait(), 5)
            server.start()
            assert await handle.result(SOON) == "second"
        assert (await truth.done())[handle.id]["attempt"] == 1
        assert len(probe.of(JobFinished)) == 1


# Around the task

log: list[str] = []


async def for_app() -> AsyncIterator[str]:
    log.append("app dependency made")
    yield "db"
    log.append("app dependency closed")


async def for_job(db: Annotated[str, Depends(for_app, scope="app")]) -> AsyncIterator[str]:
    log.append("job dependency made")
    yield f"session on {db}"
    log.append("job dependency closed")


async def test_lifespan_middleware_and_dependencies_surround_the_attempt_in_order(app: JetJobs) -> None:
    log.clear()

    @app.lifespan
    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        log.append("worker starts")
        yield
        log.append("worker stops")

    @app.middleware
    async def outer(job: Context, call_next: CallNext) -> object:
        log.append(f"outer {job.task}")
        value = await call_next()
        log.append("outer ends")
        return f"<{value}>"

    @app.middleware
    async def inner(job: Context, call_next: CallNext) -> object:
        log.append("inner")
        return await call_next()

    @app.task
    async def work(session: Annotated[str, Depends(for_job)] = INJECTED) -> str:
        log.append("task")
        return session

    async with provisioned(app):
        handles = [await work.enqueue(), await work.enqueue()]
        async with running(app.worker(slots=1)):
            assert [await handle.result(SOON) for handle in handles] == ["<session on db>"] * 2
    one_job = ["outer work", "inner", "task", "outer ends", "job dependency closed"]
    assert log == [
        "worker starts",
        "app dependency made",
        "job dependency made",
        *one_job,
        "job dependency made",
        *one_job,
        "worker stops",
        "app dependency closed",
    ]


async def test_context_variables_of_one_job_are_not_seen_by_the_next(app: JetJobs) -> None:
    from contextvars import ContextVar

    marked: ContextVar[str] = ContextVar("marked", default="clean")

    @app.task
    async def work() -> str:
        before = marked.get()
        marked.set("dirty")
        return before

    async with provisioned(app):
        handles = [await work.enqueue() for _ in range(3)]
        async with running(app.worker(slots=1)):
            assert [await handle.result(SOON) for handle in handles] == ["clean"] * 3


async def test_a_task_may_enqueue_another(app: JetJobs) -> None:
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    async def parent(n: int) -> int:
        return await (await child.enqueue(n)).result(SOON)

    async with provisioned(app):
        handle = await parent.enqueue(1)
        async with running(app.worker()):
            assert await handle.result(SOON) == 2


# Slots and lanes


async def test_no_more_jobs_run_at_once_than_there_are_slots_and_queue_limits_hold(
    app: JetJobs, probe: Probe
) -> None:
    now: dict[str, int] = {"wide": 0, "narrow": 0}
    most: dict[str, int] = {"wide": 0, "narrow": 0, "all": 0}

    async def work() -> None:
        queue = current_job().queue
        now[queue] += 1
        most[queue] = max(most[queue], now[queue])
        most["all"] = max(most["all"], sum(now.values()))
        await asyncio.sleep(0.02)
        now[queue] -= 1

    wide = app.task(queue="wide", name="wide")(work)
    narrow = app.task(queue="narrow", name="narrow")(work)
    async with provisioned(app):
        await app.enqueue_many([task.bind() for task in (wide, narrow) for _ in range(60)])
        async with running(app.worker(slots=6, queues={"wide": None, "narrow": 2})):
            await probe.finished(120, "succeeded", timeout=30)
    assert most == {"wide": most["wide"], "narrow": 2, "all": 6}
    assert most["wide"] >= 4


async def test_low_priority_is_served_beside_a_backlog_of_high(app: JetJobs, probe: Probe) -> None:
    order: list[str] = []

    @app.task
    async def work(lane: str) -> None:
        order.append(lane)
        await asyncio.sleep(0.001)

    async with provisioned(app):
        await app.enqueue_many(
            [work.options(priority=lane).bind(lane) for lane in ("low", "normal", "high") for _ in range(300)]
        )
        async with running(app.worker(slots=4)):
            await probe.finished(900, timeout=30)
    first = order[:300]
    assert first.count("high") > first.count("normal") > first.count("low") >= 12  # 8:3:1, and nobody starves


async def test_a_surplus_delivery_is_given_back_when_no_slot_comes_free(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    go_on = asyncio.Event()

    @app.task
    async def block() -> None:
        await go_on.wait()

    @app.task
    async def quick() -> None: ...

    async with provisioned_worker(app, slots=1):
        await block.enqueue()
        await probe.wait(JobStarted)
        # The other lanes still have a request open: this one is delivered, and finds no slot.
        handle = await quick.options(priority="high").enqueue()
        await probe.finished(1, "released")
        assert (await handle.status()).state is JobState.QUEUED
        await truth.until_idle("high")
        async with running(app.worker(slots=1, name="second")):
            await handle.result(SOON)
        go_on.set()
        await probe.finished(2, "succeeded")


# Life


async def test_stopping_lets_running_jobs_finish_and_leaves_the_rest_queued(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        await go_on.wait()

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(10)])
        worker = app.worker(slots=4)
        async with running(worker):
            await probe.wait(JobStarted, 4)
            worker.quiet()
            go_on.set()
        assert worker.cut_short == 0
        assert len(probe.of(JobFinished, lambda e: e.outcome == "succeeded")) == 4
        assert len(await truth.jobs()) == 6
        await truth.until_idle()  # nothing is left to its lease


@pytest.mark.settings(worker={"stop_timeout": "200ms"})
async def test_jobs_that_do_not_finish_in_time_are_released_with_their_attempt(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    patient = True

    @app.task
    async def work() -> int:
        if patient:
            await asyncio.sleep(60)
        return current_job().attempt

    async with provisioned(app):
        handle = await work.enqueue()
        worker = app.worker()
        async with running(worker):
            await probe.wait(JobStarted)
        assert worker.cut_short == 1
        assert len(await truth.jobs(lane="returned")) == 1  # served before the backlog of its lane
        assert await truth.jobs(lane="normal") == []
        await truth.until_idle()
        patient = False
        async with running(app.worker()):
            assert await handle.result(SOON) == 1


async def test_a_burst_worker_ends_when_the_queues_are_empty(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None:
        await asyncio.sleep(0.01)

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(50)])
        await work.options(delay=timedelta(hours=1)).enqueue()
        async with asyncio.timeout(20):
            await app.worker(burst=True).run()
        assert len(await truth.done()) == 50
        assert len(await truth.jobs()) == 1


async def test_a_worker_ends_after_its_number_of_jobs(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(50)])
        async with asyncio.timeout(20):
            await app.worker(max_jobs=7, slots=1).run()
        assert len(await truth.done()) == 7
        assert len(await truth.jobs()) == 43


# Connection


async def test_an_idle_worker_starts_a_job_at_once_after_a_server_restart(
    app: JetJobs, server: EmbeddedServer, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        async with running(app.worker()):
            assert await (await work.enqueue()).result(SOON) == "done"
            server.kill()
            await probe.wait(ConnectionLost)
            server.start()
            assert await (await work.enqueue()).result(SOON) == "done"
        assert len(probe.of(ConnectionLost)) == 1


async def test_a_hand_made_job_with_huge_headers_is_dead_lettered_with_all_of_them(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        big = {f"X-{n}": "ü" * 5000 for n in range(6)}
        await truth.nc.publish("jobs.work.default.normal.work", b"{}", headers=big)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        (letter,) = (await truth.dead()).values()
        assert letter["reason"] == "malformed"
        store = await truth.js.object_store("jobs-payloads")
        kept = json.loads((await store.get(letter["headers"]["Jetjobs-Payload-Headers"])).data or b"{}")
        assert big.items() <= kept.items()
        await truth.until_empty()


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_task_that_blocks_the_loop_past_its_lease_keeps_it_and_is_named(
    app: JetJobs, truth: Truth, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def rude() -> str:
        time.sleep(3)  # noqa: ASYNC251 - the fault under test
        return "done"

    async with provisioned(app):
        handle = await rude.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == "done"
        assert len(probe.of(JobStarted)) == 1
        assert not probe.of(LeaseLostEvent)
        assert (await truth.consumer())["num_redelivered"] == 0
    blocked = [record for record in caplog.records if getattr(record, "event", "") == "worker.loop_blocked"]
    assert [getattr(record, "task", "") for record in blocked] == ["rude"]


async def test_the_lease_is_the_lanes_own_whatever_the_settings_say(make_app: MakeApp, truth: Truth) -> None:
    async with make_app(queues={"lease": "1s"}) as first:
        await first.provision(["default"])
    app = make_app(queues={"lease": "30s"})
    probe = Probe()
    app.observe(probe)

    @app.task
    async def long() -> None:
        await asyncio.sleep(2.5)

    async with app:
        await long.enqueue()
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
        assert len(probe.of(JobStarted)) == 1


# Signals and verdicts


async def test_a_task_that_snoozes_five_times_within_the_duplicate_window_still_runs(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    calls: list[tuple[int, int]] = []

    @app.task
    async def patient() -> str:
        calls.append((current_job().attempt, current_job().delivery))
        if len(calls) <= 5:
            raise Snooze(timedelta(milliseconds=50))
        return "at last"

    async with provisioned(app):
        handle = await patient.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == "at last"
        assert calls == [(1, 1)] * 6  # no attempt spent, no delivery counted
        assert len(probe.of(JobFinished, lambda e: e.outcome == "snoozed")) == 5
        await truth.until_empty()


async def test_what_a_task_or_the_app_says_of_an_error_decides_what_follows(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    class Busy(Exception): ...

    class Gone(Exception): ...

    @app.classify(Busy, Gone)
    def judge(error: Exception) -> Verdict:
        return Verdict(True, 0.05) if isinstance(error, Busy) else PERMANENT

    long = RetryPolicy(base=timedelta(hours=1), jitter=False)

    @app.task(retry=long)
    async def work(kind: str) -> str:
        if current_job().attempt > 1:
            return "second"
        if kind == "retry":
            raise Retry(timedelta(milliseconds=50))
        if kind == "reject":
            raise Reject("never mind")
        raise {"busy": Busy, "gone": Gone, "other": ValueError}[kind]("x")

    async with provisioned(app):
        handles = {kind: await work.enqueue(kind) for kind in ("retry", "reject", "busy", "gone", "other")}
        own = work.options(retry=RetryPolicy(base=timedelta(milliseconds=50), jitter=False))
        handles["own policy"] = await own.enqueue("other")
        async with running(app.worker()):
            for kind in ("retry", "busy", "own policy"):
                assert await handles[kind].result(SOON) == "second"
            for kind in ("reject", "gone"):
                with pytest.raises(JobFailed) as caught:
                    await handles[kind].result(SOON)
                assert caught.value.reason == "permanent"
            assert (await handles["other"].status()).state is JobState.RETRYING  # in an hour, by the task's policy
        assert (await truth.dead())[handles["reject"].id]["text"] == "never mind"


# Found by trying to break it


@pytest.mark.settings(worker={"provision": "verify"})
async def test_a_worker_pulls_again_after_all_its_lanes_were_away_for_long(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with provisioned_worker(app):
        await (await work.enqueue()).result(SOON)
        for lane in ("high", "normal", "low"):
            await truth.js.delete_consumer("jobs-work-default", lane)
        # Refused again and again while they are away: no refusal may be the last word.
        await probe.wait(LaneTrouble, 3)
        await probe.wait(LaneTrouble, 6, where=lambda e: "503" in e.error or "409" in e.error, timeout=20)
        await app.provision()
        assert await (await work.enqueue()).result(timedelta(seconds=20)) == "done"


async def test_results_of_hand_made_jobs_are_kept_apart_when_the_stream_was_made_anew(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def greet(name: str) -> str:
        return name

    async with provisioned(app):
        async with running(app.worker()):
            for name in ("old 1", "old 2"):
                await truth.nc.publish("jobs.work.default.normal.greet", json.dumps({"name": name}).encode())
            await probe.finished(2, "succeeded")
            await truth.js.delete_stream("jobs-work-default")
            await probe.wait(LaneTrouble)
            await app.provision()
            for name in ("new 1", "new 2"):
                await truth.js.publish("jobs.work.default.normal.greet", json.dumps({"name": name}).encode())
            await probe.finished(4, "succeeded", timeout=20)
        assert {r["result"] for r in (await truth.done()).values()} == {"old 1", "old 2", "new 1", "new 2"}


async def test_a_reply_too_long_for_the_protocol_ends_no_worker(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        reply = {"Jetjobs-Reply": "_INBOX." + "x" * 4100}
        await truth.js.publish("jobs.work.default.normal.work", b"{}", headers=reply)
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
            await (await work.enqueue()).result(SOON)
        assert not probe.of(ConnectionLost)


async def test_two_hand_made_jobs_of_one_id_are_both_kept_when_they_fail(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=200), jitter=False))
    async def work(n: int) -> int:
        if current_job().attempt == 1:
            raise RuntimeError("once")
        return n

    async with provisioned(app):
        for n in (1, 2):
            await truth.js.publish("jobs.work.default.normal.work.-.same", json.dumps({"n": n}).encode())
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
            await probe.finished(1, "dead_lettered")
        (letter,) = (await truth.dead()).values()
        kept = {json.loads(letter["body"])["n"], (await truth.done())["same"]["result"]}
        assert kept == {1, 2}
        assert "taken" in letter["text"]


async def test_a_move_whose_message_id_somebody_used_before_is_made_all_the_same(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=50)))
    async def work(n: int) -> int:
        if n == 7 and current_job().attempt == 1:
            raise RuntimeError("once")
        return n

    async with provisioned(app):
        handle = await work.enqueue(7)
        forged = {"Nats-Msg-Id": f"{handle.id}.{handle.run}.1"}
        await truth.js.publish("jobs.work.default.normal.work", b'{"n": 1}', headers=forged)
        async with running(app.worker()):
            assert await handle.result(SOON) == 7


@pytest.mark.settings(queues={"lease": "1s", "max_crashes": 1})
async def test_a_job_whose_outcome_cannot_be_stored_is_kept_and_counted_as_no_crash(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        return "kept"

    async with provisioned(app):
        await truth.js.delete_stream("KV_jobs-done-default")
        handle = await work.enqueue()
        worker = app.worker()
        async with running(worker):
            await probe.wait(SettleFailed)
            await asyncio.sleep(3)  # three leases
            assert not worker.ready
            await app.provision()
            assert await handle.result(SOON) == "kept"
        assert len(probe.of(JobStarted)) == len(probe.of(SettleFailed)) == 1
        assert await truth.dead() == {}


async def test_an_app_opened_on_another_loop_says_so(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with provisioned(app):

        def elsewhere() -> None:
            asyncio.run(work.enqueue())

        with pytest.raises(JetJobsError, match="another event loop"):
            await asyncio.to_thread(elsewhere)


async def test_a_worker_told_to_stop_while_it_starts_never_becomes_ready(app: JetJobs, probe: Probe) -> None:
    entered = asyncio.Event()
    left: list[str] = []

    @app.lifespan
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            left.append("cleaned")
        yield

    @app.task
    async def fine() -> None: ...

    async with provisioned(app):
        worker = app.worker()
        life = asyncio.create_task(worker.run())
        await entered.wait()
        worker.quiet()
        async with asyncio.timeout(20):
            await life
        assert left == ["cleaned"]
    assert [e.phase for e in probe.of(WorkerChanged)] == ["started", "stopped"]
