"""Events on core NATS: published while a client watches, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, RetryPolicy, Snooze, Worker
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import ConfigError, DefinitionError
from jetjobs.events import LiveEvent
from jetjobs.model.events import JobStarted
from jetjobs.model.settings import build_settings
from jetjobs.worker.fleet import event_publisher
from tests.support.probe import eventually, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=40)


class Watcher:
    """Reads `app.events()` into a list."""

    def __init__(self) -> None:
        self.heard: list[LiveEvent] = []
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def read(self, app: JetJobs, **wish: Any) -> None:
        async with contextlib.aclosing(app.events(begun=self.begun.set_result, **wish)) as events:
            async for event in events:
                self.heard.append(event)

    def of(self, task: str) -> str:
        """The id of the job of that task."""
        return next(event.job_id for event in self.heard if event.task == task)

    def kinds(self, job_id: str) -> list[str]:
        return [event.kind for event in self.heard if event.job_id == job_id]

    async def has(self, kind: str, job_id: str = "") -> LiveEvent:
        async def look() -> LiveEvent | None:
            return next((e for e in self.heard if e.kind == kind and job_id in ("", e.job_id)), None)

        return await eventually(look, 40)


@contextlib.asynccontextmanager
async def watching(app: JetJobs, **wish: Any) -> AsyncIterator[Watcher]:
    """A watcher that the workers know of."""
    watcher = Watcher()
    task = asyncio.create_task(watcher.read(app, **wish))
    try:
        await asyncio.wait_for(watcher.begun, 40)
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_ready(worker: Worker) -> None:
    await wait_until(lambda: worker.ready, 40)


@pytest.fixture
async def opened(app: JetJobs) -> AsyncIterator[JetJobs]:
    @app.task(retry=RetryPolicy(max_attempts=2, backoff="fixed", base=timedelta(milliseconds=50)))
    async def work(how: str = "well") -> str:
        if how == "badly":
            raise ValueError("it went\nbadly")
        if how == "later":
            raise Snooze(timedelta(hours=1))
        return "done"

    async with provisioned(app):
        yield app


async def hear_all(truth: Truth) -> list[tuple[str, dict[str, Any]]]:
    heard: list[tuple[str, dict[str, Any]]] = []

    async def hear(message: Any) -> None:
        heard.append((message.subject, json.loads(message.data)))

    await truth.nc.subscribe("jobs.events.>", cb=hear)
    await truth.api("INFO")  # a flush of nats-py does not guarantee the subscription
    return heard


async def test_no_job_event_is_published_without_a_watcher(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = await hear_all(truth)
    worker, work = opened.worker(name="w1"), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        await (await work.enqueue()).result(SOON)
        monkeypatch.setattr(event_publisher, "WATCHED_S", 0.05)
        worker.event_publisher.on_watch({})
        await eventually(lambda: _is_unwatched(worker))
        for handle in [await work.enqueue() for _ in range(20)]:
            await handle.result(SOON)
    # The last event: all earlier ones have arrived before it.
    await eventually(lambda: _includes(heard, "jobs.events.worker.stopped.w1"))
    words = ["started", "ready", "quiet", "stopped"]
    assert [subject.split(".")[2:4] for subject, _ in heard] == [["worker", word] for word in words]


async def _includes(heard: list[tuple[str, dict[str, Any]]], subject: str) -> bool:
    return subject in [other for other, _ in heard]


async def _is_unwatched(worker: Worker) -> bool:
    return not worker.event_publisher.watched


async def test_a_watcher_receives_the_events_of_jobs(opened: JetJobs, truth: Truth) -> None:
    heard = await hear_all(truth)
    worker, work = opened.worker(name="w.1"), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with watching(opened) as watcher:
            good, bad, later = [await work.enqueue(how) for how in ("well", "badly", "later")]
            ended = await watcher.has("job.succeeded", good.id)
            assert (ended.queue, ended.task, ended.worker, ended.attempt) == ("default", "work", "w.1", 1)
            assert ended.run_time is not None
            dead = await watcher.has("job.dead_lettered", bad.id)
            assert (dead.reason, dead.error_type, dead.error) == ("exhausted", "ValueError", "it went\nbadly")
            snoozed = await watcher.has("job.snoozed", later.id)
            assert snoozed.retry_in == timedelta(hours=1)
            retries = ["job.started", "job.retried", "job.started", "job.dead_lettered"]
            assert watcher.kinds(bad.id) == retries
            assert watcher.kinds(good.id) == ["job.started", "job.succeeded"]
            subject = f"jobs.events.job.succeeded.default.work.{good.id}"
            await eventually(lambda: _includes(heard, subject))


async def test_each_watcher_receives_only_the_events_it_selects(opened: JetJobs) -> None:
    worker, work = opened.worker(), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with (
            watching(opened, queue="default", task="work", kinds=["job.s*d", "job.dead*"]) as some,
            watching(opened, kinds="job.succeeded") as one,
            watching(opened, queue="other") as other,
            watching(opened) as everything,
        ):
            bad, good = await work.enqueue("badly"), await work.enqueue()
            for watcher in (some, everything):
                await watcher.has("job.dead_lettered", bad.id)
                await watcher.has("job.succeeded", good.id)
            await one.has("job.succeeded", good.id)
            assert some.kinds(bad.id) == ["job.started", "job.started", "job.dead_lettered"]
            assert one.kinds(bad.id) == []
            assert other.heard == []


async def test_a_watcher_receives_starts_and_stops_of_workers(opened: JetJobs) -> None:
    async with watching(opened, kinds="worker.*") as watcher:
        assert watcher.begun.result() == 0
        worker = opened.worker(name="late")
        async with running(worker):
            await watcher.has("worker.ready")
        await watcher.has("worker.stopped")
        kinds = [event.kind for event in watcher.heard]
    assert kinds == ["worker.started", "worker.ready", "worker.quiet", "worker.stopped"]
    assert {event.worker for event in watcher.heard} == {"late"}
    assert watcher.heard[0].detail == "default"


async def test_a_watcher_receives_progress(opened: JetJobs) -> None:
    from jetjobs import current_job

    @opened.task
    async def count() -> None:
        current_job().progress(0.5, "half")

    worker = opened.worker()
    async with running(worker):
        await until_ready(worker)
        async with watching(opened, task="count") as watcher:
            handle = await count.enqueue()
            event = await watcher.has("job.progress", handle.id)
            assert (event.progress, event.message, event.task) == (0.5, "half", "count")
            await watcher.has("job.succeeded", handle.id)


@pytest.mark.timeout(120)
async def test_watching_continues_after_a_server_outage(opened: JetJobs, server: EmbeddedServer) -> None:
    worker, work = opened.worker(), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with watching(opened, kinds="job.succeeded") as watcher:
            await watcher.has("job.succeeded", (await work.enqueue()).id)
            server.stop()
            server.start()
            handle = await work.enqueue()
            await handle.result(SOON)

            # The worker may reconnect after us: until the next announcement it may publish nothing.
            async def heard() -> bool:
                again = await work.enqueue()
                await again.result(SOON)
                return "job.succeeded" in watcher.kinds(again.id)

            await eventually(heard, 60)


async def test_events_of_a_busy_task_are_skipped_and_counted_while_those_of_a_rare_task_are_published(
    opened: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    @opened.task
    async def rare() -> None: ...

    monkeypatch.setattr(event_publisher, "MAX_PER_SECOND", 2)
    worker, work = opened.worker(slots=1), opened.tasks["work"]
    await opened.enqueue_many([*[work.bind() for _ in range(100)], rare.bind(), work.bind("badly")])
    async with watching(opened) as watcher, running(worker):
        await watcher.has("worker.ready")
        worker.event_publisher.on_watch({})
        await watcher.has("job.dead_lettered")  # a rare kind of the busy task
        assert (await watcher.has("job.succeeded", watcher.of("rare"))).skipped == 0

        async def accounted_for() -> bool:
            # The next event of the task has the count of skipped events.
            await (await work.enqueue()).result(SOON)
            return any(event.skipped for event in watcher.heard if event.task == "work")

        await eventually(accounted_for, 40)


async def test_a_new_watcher_does_not_inherit_the_skipped_events_of_others(
    opened: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[LiveEvent] = []
    worker = opened.worker()
    monkeypatch.setattr(worker.event_publisher, "_publish", published.append)
    monkeypatch.setattr(event_publisher, "MAX_PER_SECOND", 0)
    worker.event_publisher.on_watch({})
    worker.event_publisher(JobStarted("default", "work", "j1", 1, 1, 0.0))
    monkeypatch.setattr(event_publisher, "WATCHED_S", 0.0)
    worker.event_publisher.on_watch({})
    worker.event_publisher(JobStarted("default", "work", "j2", 1, 1, 0.0))
    monkeypatch.setattr(event_publisher, "WATCHED_S", 10.0)
    monkeypatch.setattr(event_publisher, "MAX_PER_SECOND", 10)
    worker.event_publisher.on_watch({})
    worker.event_publisher(JobStarted("default", "work", "j3", 1, 1, 0.0))
    assert [(event.job_id, event.skipped) for event in published] == [("j3", 0)]


async def test_names_of_tasks_do_not_fill_the_memory_of_a_worker(opened: JetJobs) -> None:
    worker = opened.worker()
    worker.event_publisher.on_watch({})
    for number in range(2 * event_publisher.MAX_COUNTERS + 1):
        worker.event_publisher(JobStarted("default", f"t{number}", "j1", 1, 1, 0.0))
    assert len(worker.event_publisher._counters) <= event_publisher.MAX_COUNTERS


async def test_invalid_filters_are_refused_at_once(opened: JetJobs) -> None:
    with pytest.raises(ConfigError, match="no kind of event matches 'jobs"):
        opened.events(kinds="jobs.*")
    with pytest.raises(DefinitionError):
        opened.events(queue="no good")


async def test_rates_are_measured_since_the_previous_list(opened: JetJobs) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @opened.task
    async def last() -> None:
        begun.set()
        await go_on.wait()

    work = opened.tasks["work"]
    async with running(opened.worker(slots=1)):
        handle = await last.enqueue()
        await asyncio.wait_for(begun.wait(), 40)
        waiting = await work.enqueue()
        for hour in (1, 2):
            await work.options(delay=timedelta(hours=hour)).enqueue()

        async def shown() -> bool:
            return [job.id for job in await opened.jobs.running()] == [handle.id]

        await eventually(shown, 40)

        async def one_waits() -> bool:
            (queue,) = await opened.queues.list(rates_over=0)
            return (queue.queued, queue.running, queue.scheduled, queue.workers) == (1, 1, 2, 1)

        await eventually(one_waits, 40)
        before = await opened.queues.list(rates_over=0)
        (again,) = await opened.queues.list(before=before)
        assert (again.in_per_s, again.out_per_s, again.oldest is not None) == (0, 0, True)
        go_on.set()
        await waiting.result(SOON)


async def test_the_roles_of_the_example_configuration_may_watch(tmp_path: Path) -> None:
    with GuardedServer(tmp_path) as guarded:

        def app_of(user: str) -> JetJobs:
            address = guarded.url.replace("nats://", f"nats://{user}:secret@")
            nats = {"url": address, "inbox_prefix": f"_INBOX_{user}"}
            app = JetJobs(user, settings=build_settings({"nats": nats}))

            @app.task
            async def work() -> str:
                return "done"

            return app

        async with app_of("setup") as setup:
            await setup.provision()
        async with app_of("operator") as operator, app_of("worker") as working, app_of("producer") as producer:
            worker = working.worker()
            async with running(worker):
                await until_ready(worker)
                async with watching(operator) as watcher:
                    handle = await producer.tasks["work"].enqueue()
                    await watcher.has("job.succeeded", handle.id)
                assert [queue.queue for queue in await operator.queues.list()] == ["default"]
                assert await operator.jobs.running() == []
        denied = [line for line in guarded.log().splitlines() if "Violation" in line]
        assert denied == []
