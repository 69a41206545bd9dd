"""Queues counted: as the streams stand, by the leader alone, and only while it leads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, QueueNotFound, RetryPolicy
from jetjobs.jetstream.queue_counts import count_queue
from jetjobs.model.queue_counts import QueueCounts
from jetjobs.worker import counting
from jetjobs.worker.worker import Worker, running
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.roles import GuardedServer
from tests.support.server import Truth

LATER = timedelta(hours=1)


def with_tasks(app: JetJobs) -> asyncio.Event:
    """Jobs of `hold` run until the event is set."""
    go_on = asyncio.Event()

    @app.task
    async def hold(n: int) -> None:
        await go_on.wait()

    @app.task(retry=RetryPolicy(max_attempts=2, base=LATER, cap=LATER, jitter=False))
    async def fail(n: int) -> None:
        raise ValueError("no")

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def perish(n: int) -> None:
        raise ValueError("no")

    return go_on


async def test_a_queue_is_counted_as_its_streams_stand(app: JetJobs, probe: Probe, truth: Truth) -> None:
    go_on = with_tasks(app)
    async with app:
        await app.provision(["default", "idle"])
        for name, count in (("fail", 3), ("perish", 4)):
            await app.enqueue_many([app.tasks[name].bind(n) for n in range(count)])
        await app.enqueue_many([app.tasks["hold"].options(delay=LATER).bind(n) for n in range(5)])
        hold = app.tasks["hold"]
        await app.enqueue_many([hold.options(queue="idle", priority=p).bind(1) for p in ("high", "low", "low")])
        async with running(app.worker(queues={"default": None})):
            await probe.finished(3, "retried")
            await probe.finished(4, "dead_lettered")
            await app.enqueue_many([hold.options(priority=p).bind(n) for n in range(2) for p in ("high", "low")])

            async def all_run() -> QueueCounts | None:
                counts = await count_queue(app.jetstream, "default")
                return counts if counts.running == 4 and not counts.queued else None

            counts = await eventually(all_run, 30)
            assert (counts.scheduled, counts.retrying, counts.exact) == (5, 3, True)
            assert counts.dead == len(await truth.dead()) == 4
            assert (counts.demand, counts.oldest_s, counts.limit_bytes) == (4, 0.0, 0)
            assert counts.bytes == (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["bytes"]
            assert len(await truth.jobs()) == 4 + 5 + 3
            idle = await count_queue(app.jetstream, "idle")
            assert (idle.queued, idle.running, idle.scheduled, idle.dead, idle.demand) == (3, 0, 0, 0, 3)
            assert 0 < idle.oldest_s < 60
            go_on.set()
            await probe.finished(4, "succeeded")


async def test_an_empty_queue_counts_nothing(app: JetJobs) -> None:
    with_tasks(app)
    async with app:
        await app.provision()
        counts = await count_queue(app.jetstream, "default")
        assert counts == QueueCounts("default", bytes=counts.bytes)


async def test_more_jobs_for_later_than_are_looked_at_count_as_scheduled(app: JetJobs, probe: Probe) -> None:
    with_tasks(app)
    async with app:
        await app.provision()
        await app.enqueue_many([app.tasks["hold"].options(delay=LATER).bind(n) for n in range(10)])
        await app.tasks["fail"].enqueue(1)
        async with running(app.worker()):
            await probe.finished(1, "retried")
        counts = await count_queue(app.jetstream, "default", most_later=10)
        assert (counts.scheduled + counts.retrying, counts.exact) == (11, False)
        counts = await count_queue(app.jetstream, "default", most_later=11)
        assert (counts.scheduled, counts.retrying, counts.exact) == (10, 1, True)


async def test_a_paused_queue_has_no_demand(app: JetJobs, truth: Truth) -> None:
    with_tasks(app)
    async with app:
        await app.provision()
        await app.tasks["hold"].enqueue(1)
        until = datetime.now(UTC) + LATER
        for lane in ("high", "normal", "low"):
            assert not (await count_queue(app.jetstream, "default")).paused
            await truth.api(f"CONSUMER.PAUSE.jobs-work-default.{lane}", {"pause_until": until.isoformat()})
        counts = await count_queue(app.jetstream, "default")
        assert counts.paused_until is not None
        assert abs(counts.paused_until - until) < timedelta(seconds=2)
        assert (counts.queued, counts.demand) == (1, 0)


async def test_the_oldest_is_counted_from_when_it_was_due(app: JetJobs, truth: Truth) -> None:
    with_tasks(app)
    async with app:
        await app.provision()
        an_hour_ago = datetime.now(UTC) - LATER
        # As the server writes it when it fires a schedule, and as a worker does that gives a job back.
        headers = {"Jetjobs-Due-At": f"{an_hour_ago.timestamp():.6f}"}
        await truth.js.publish("jobs.work.default.back.hold.-.u1", b'{"n": 1}', headers=headers)
        await app.tasks["hold"].enqueue(2)
        counts = await count_queue(app.jetstream, "default")
        assert 3600 <= counts.oldest_s < 3660


async def test_a_queue_that_is_not_there_is_missing(app: JetJobs) -> None:
    with_tasks(app)
    async with app:
        await app.provision()
        with pytest.raises(QueueNotFound):
            await count_queue(app.jetstream, "nosuch")


# The leader


def counted(worker: Worker) -> list[str]:
    return [counts.queue for counts in worker.queue_counts]


async def test_only_the_leader_has_counts_and_the_next_one_takes_over(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "EVERY_S", 0.2)
    one, two = make_app(), make_app()
    for app in (one, two):
        with_tasks(app)
    async with one, two:
        await one.provision(["default", "mail"])
        first, second = one.worker(name="first"), two.worker(name="second")
        first.count_queues = second.count_queues = True

        async def leader_counts() -> bool:
            return counted(first) == ["default", "mail"]

        async def other_counts() -> bool:
            return counted(second) == ["default", "mail"]

        async with running(second):
            await eventually(other_counts, 30)
            async with running(first):
                await asyncio.sleep(1.0)
                assert counted(first) == []
                assert counted(second) == ["default", "mail"]
                second.quiet()
                await eventually(leader_counts, 30)
                assert counted(second) == []
        assert counted(first) == []


async def test_a_queue_that_cannot_be_counted_is_left_out_and_counts_as_an_error(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "EVERY_S", 0.2)
    with_tasks(app)
    async with app:
        await app.provision(["default", "mail"])
        worker = app.worker()
        worker.count_queues = True
        async with running(worker):

            async def both() -> bool:
                return counted(worker) == ["default", "mail"]

            async def one() -> bool:
                return counted(worker) == ["default"] and worker.count_errors > 0

            await eventually(both, 30)
            assert worker.count_errors == 0
            await truth.api("CONSUMER.DELETE.jobs-work-mail.normal")
            await eventually(one, 30)


async def test_nothing_is_counted_where_nobody_asks(app: JetJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tasks(app)
    async with app:
        await app.provision()
        async with running(app.worker()) as worker:
            assert worker.queue_counts == []
            assert worker.queue_workers == {}
            assert worker.count_errors == 0


async def test_the_worker_of_the_example_configuration_may_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "EVERY_S", 0.2)
    monkeypatch.setenv("JOBS_OPERATOR_PASSWORD", "secret")
    with GuardedServer(tmp_path) as guarded:

        def app_of(role: str) -> JetJobs:
            app = JetJobs("t", settings=guarded.settings_of(role))
            with_tasks(app)
            return app

        async with app_of("setup") as setup:
            await setup.provision()
        async with app_of("worker") as working:
            worker = working.worker()
            worker.count_queues = True

            async def counts() -> bool:
                return counted(worker) == ["default"] and worker.queue_workers == {"default": 1}

            async with running(worker):
                await eventually(counts, 30)
            assert worker.count_errors == 0
        assert [line for line in guarded.log().splitlines() if "Violation" in line] == []
