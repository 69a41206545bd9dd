"""Events on core NATS: told to whoever watches, and to nobody when nobody does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.errors import NoRespondersError

from jetjobs import ConfigError, DefinitionError, JetJobs, LiveEvent, RetryPolicy, Snooze, Worker
from jetjobs.devserver import EmbeddedServer
from jetjobs.model.events import WorkerChanged
from jetjobs.model.settings import build_settings
from jetjobs.queues import Glances
from jetjobs.worker import telling
from jetjobs.worker.worker import running
from tests.support.letters import bury, letter_of
from tests.support.probe import eventually
from tests.support.roles import GuardedServer
from tests.support.server import Truth

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

    def kinds(self, job_id: str) -> list[str]:
        return [event.kind for event in self.heard if event.job_id == job_id]

    async def has(self, kind: str, job_id: str = "") -> LiveEvent:
        async def look() -> LiveEvent | None:
            return next((e for e in self.heard if e.kind == kind and job_id in ("", e.job_id)), None)

        return await eventually(look, 40)


@contextlib.asynccontextmanager
async def watching(app: JetJobs, worker: Worker | None = None, **wish: Any) -> AsyncIterator[Watcher]:
    """A watcher that the worker has heard of; afterwards, that it has ended."""
    watcher = Watcher()
    before = worker.telling.watchers if worker is not None else 0

    async def known() -> bool:
        return worker is None or worker.telling.watchers > before

    async def forgotten() -> bool:
        return worker is None or worker.telling.watchers <= before

    task = asyncio.create_task(watcher.read(app, **wish))
    try:
        await asyncio.wait_for(watcher.begun, 40)
        await eventually(known, 40)
        yield watcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await eventually(forgotten, 40)


async def until_ready(worker: Worker) -> None:
    async def look() -> bool:
        return worker.ready

    await eventually(look, 40)


@pytest.fixture
async def opened(app: JetJobs) -> AsyncIterator[JetJobs]:
    @app.task(retry=RetryPolicy(max_attempts=2, backoff="fixed", base=timedelta(milliseconds=50)))
    async def work(how: str = "well") -> str:
        if how == "badly":
            raise ValueError("it went\nbadly")
        if how == "later":
            raise Snooze(timedelta(hours=1))
        return "done"

    async with app:
        await app.provision()
        yield app


async def hear_all(truth: Truth) -> list[tuple[str, dict[str, Any]]]:
    heard: list[tuple[str, dict[str, Any]]] = []

    async def hear(message: Any) -> None:
        heard.append((message.subject, json.loads(message.data)))

    await truth.nc.subscribe("jobs.events.>", cb=hear)
    await truth.nc.flush()
    return heard


async def ask(truth: Truth, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the worker. The server may know of its subscription a moment after the worker is ready."""

    async def answer() -> dict[str, Any] | None:
        with contextlib.suppress(NoRespondersError):
            message = await truth.nc.request("jobs.control.workers", json.dumps(request).encode(), timeout=30)
            return dict(json.loads(message.data))
        return None

    return await eventually(answer, 40)


async def test_nothing_is_published_while_nobody_watches(opened: JetJobs, truth: Truth) -> None:
    heard = await hear_all(truth)
    worker = opened.worker()
    async with running(worker):
        handles = [await opened.tasks["work"].enqueue() for _ in range(20)]
        for handle in handles:
            await handle.result(SOON)
        assert worker.telling.watchers == 0
    await opened.jetstream.connection.nc.flush()
    await truth.nc.flush()
    assert heard == []


async def test_a_watcher_hears_how_jobs_go(opened: JetJobs, truth: Truth) -> None:
    heard = await hear_all(truth)
    worker, work = opened.worker(name="w.1"), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with watching(opened, worker) as watcher:
            good, bad, later = [await work.enqueue(how) for how in ("well", "badly", "later")]
            ended = await watcher.has("job.succeeded", good.id)
            assert (ended.queue, ended.task, ended.worker, ended.attempt) == ("default", "work", "w.1", 1)
            assert ended.run_s is not None
            dead = await watcher.has("job.dead_lettered", bad.id)
            assert (dead.reason, dead.error_type, dead.error) == ("exhausted", "ValueError", "it went\nbadly")
            snoozed = await watcher.has("job.snoozed", later.id)
            assert snoozed.retry_in_s == 3600
            retries = ["job.started", "job.retried", "job.started", "job.dead_lettered"]
            assert watcher.kinds(bad.id) == retries
            assert watcher.kinds(good.id) == ["job.started", "job.succeeded"]
        await truth.nc.flush()
        subjects = [subject for subject, _ in heard]
        assert f"jobs.events.job.succeeded.default.work.{good.id}" in subjects
        before = len(heard)
        await (await work.enqueue()).result(SOON)
    await opened.jetstream.connection.nc.flush()
    await truth.nc.flush()
    assert len(heard) == before


async def test_only_what_is_wished_for_is_published(opened: JetJobs, truth: Truth) -> None:
    heard = await hear_all(truth)
    worker, work = opened.worker(), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with watching(
            opened, worker, queue="default", task="work", kinds=["job.s*d", "job.dead*"]
        ) as watcher:
            bad, good = await work.enqueue("badly"), await work.enqueue()
            await watcher.has("job.dead_lettered", bad.id)
            await watcher.has("job.succeeded", good.id)
            assert watcher.kinds(bad.id) == ["job.started", "job.started", "job.dead_lettered"]
        async with watching(opened, worker, queue="other") as other:
            await (await work.enqueue()).result(SOON)
            assert other.heard == []
    await opened.jetstream.connection.nc.flush()
    await truth.nc.flush()
    assert {subject.split(".")[3] for subject, _ in heard} == {"started", "succeeded", "dead_lettered"}


async def test_two_watchers_hear_each_what_they_want(opened: JetJobs) -> None:
    worker = opened.worker()
    async with running(worker):
        await until_ready(worker)
        async with (
            watching(opened, worker, kinds="job.succeeded") as one,
            watching(opened, worker, kinds="job.started") as two,
        ):
            handle = await opened.tasks["work"].enqueue()
            await one.has("job.succeeded")
            await two.has("job.started")
            assert one.kinds(handle.id) == ["job.succeeded"]
            assert two.kinds(handle.id) == ["job.started"]


async def test_workers_that_start_and_stop_are_heard_of(opened: JetJobs) -> None:
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


async def test_a_watcher_hears_of_progress(opened: JetJobs) -> None:
    from jetjobs import current_job

    @opened.task
    async def count() -> None:
        current_job().progress(0.5, "half")

    worker = opened.worker()
    async with running(worker):
        await until_ready(worker)
        async with watching(opened, worker, task="count") as watcher:
            handle = await count.enqueue()
            told = await watcher.has("job.progress", handle.id)
            assert (told.progress, told.message, told.task) == (0.5, "half", "count")
            await watcher.has("job.succeeded", handle.id)


@pytest.mark.timeout(120)
async def test_watching_goes_on_after_the_server_was_away(opened: JetJobs, server: EmbeddedServer) -> None:
    worker, work = opened.worker(), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with watching(opened, worker, kinds="job.succeeded") as watcher:
            await watcher.has("job.succeeded", (await work.enqueue()).id)
            server.stop()
            server.start()
            handle = await work.enqueue()
            await handle.result(SOON)

            # A reconnect of the worker may come after ours: until the next announcement it may tell nothing.
            async def heard() -> bool:
                again = await work.enqueue()
                await again.result(SOON)
                return "job.succeeded" in watcher.kinds(again.id)

            await eventually(heard, 60)


async def test_a_wish_ends_by_itself_when_the_watcher_is_gone(opened: JetJobs, truth: Truth) -> None:
    worker, work = opened.worker(), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        request = {"do": "watch", "watcher": "x", "for_s": 0.05}
        assert (await ask(truth, request))["ok"] is True
        assert worker.telling.watchers == 1
        await asyncio.sleep(0.1)
        await (await work.enqueue()).result(SOON)
        assert worker.telling.watchers == 0


@pytest.mark.parametrize(
    "request_", [{"kinds": "job.*"}, {"for_s": "long"}, {"for_s": None}, {"kinds": ["x"] * 51}]
)
async def test_an_announcement_that_cannot_be_read_is_refused(
    opened: JetJobs, truth: Truth, request_: dict[str, Any]
) -> None:
    worker = opened.worker()
    async with running(worker):
        await until_ready(worker)
        assert (await ask(truth, {"do": "watch", "watcher": "x", **request_}))["ok"] is False
        assert worker.telling.watchers == 0


async def test_more_events_than_the_limit_are_counted_not_told(
    opened: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "MOST_A_SECOND", 1)
    worker, work = opened.worker(), opened.tasks["work"]
    async with running(worker):
        await until_ready(worker)
        async with watching(opened, worker, kinds="job.succeeded") as watcher:
            await opened.enqueue_many([work.bind() for _ in range(200)])

            async def all_accounted_for() -> bool:
                # A further job brings the count of what was left out before it.
                await (await work.enqueue()).result(SOON)
                return any(event.skipped for event in watcher.heard)

            await eventually(all_accounted_for, 40)


async def test_a_new_watcher_does_not_inherit_what_was_left_out_for_others(
    opened: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "MOST_A_SECOND", 0)
    worker = opened.worker()
    worker.telling.hear({"watcher": "first"})
    for _ in range(3):
        worker.telling(WorkerChanged("ready"))
    worker.telling.hear({"watcher": "first", "for_s": 0})
    worker.telling.hear({"watcher": "second"})
    told: list[LiveEvent] = []
    monkeypatch.setattr(worker.telling, "_publish", told.append)
    monkeypatch.setattr(telling, "MOST_A_SECOND", 10)
    worker.telling(WorkerChanged("quiet"))
    assert [event.skipped for event in told] == [0]


async def test_wrong_wishes_are_refused_at_once(opened: JetJobs) -> None:
    with pytest.raises(ConfigError, match="no kind of event matches 'jobs"):
        opened.events(kinds="jobs.*")
    with pytest.raises(DefinitionError):
        opened.events(queue="no good")


async def test_glances_and_running_jobs_only_read(opened: JetJobs, truth: Truth) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @opened.task
    async def last() -> None:
        begun.set()
        await go_on.wait()

    work = opened.tasks["work"]
    seen = Glances()
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
            (queue,) = await opened.queues.glance(seen, await opened.workers.list())
            return (queue.queued, queue.running, queue.later, queue.workers) == (1, 1, 2, 1)

        await eventually(one_waits, 40)
        (again,) = await opened.queues.glance(seen, [])
        assert (again.in_per_s, again.out_per_s, again.oldest_s is not None) == (0, 0, True)
        go_on.set()
        await waiting.result(SOON)


async def test_a_glance_finds_the_oldest_anew_when_the_one_it_knew_is_gone(opened: JetJobs, truth: Truth) -> None:
    work = opened.tasks["work"]
    seen = Glances()

    async def oldest_s() -> float | None:
        (queue,) = await opened.queues.glance(seen, [])
        return queue.oldest_s

    assert await oldest_s() is None
    lowest = await work.options(priority="low").enqueue()
    first = await oldest_s()
    assert first is not None
    await work.options(priority="high").enqueue()
    again = await oldest_s()
    assert again is not None
    assert again >= first
    key = ("default", "low")
    assert seen.fronts[key][0] < seen.fronts["default", "high"][0]
    # Gone, and another there.
    next_low = await work.options(priority="low").enqueue()
    await opened.jobs.cancel(lowest.id)
    before = seen.fronts[key][0]
    assert await oldest_s() is not None
    assert seen.fronts[key][0] > before
    # What it knows is of a stream that is no more: it looks from the beginning.
    seen.fronts[key] = (10_000, 0)
    assert await oldest_s() is not None
    assert seen.fronts[key][0] < 10_000
    for job_id in [next_low.id, *[item.status.id for item in (await opened.jobs.page()).items]]:
        await opened.jobs.cancel(job_id)
    assert await oldest_s() is None


async def test_a_glance_sees_dead_letters_come_and_go(opened: JetJobs) -> None:
    seen = Glances()

    async def dead() -> int:
        (queue,) = await opened.queues.glance(seen, [])
        return queue.dead

    assert await dead() == 0
    ids = await bury(opened, "work", [b"{}", b"{}"])
    assert await dead() == 2
    assert await dead() == 2
    await bury(opened, "work", [b"{}"])
    assert await opened.dead.delete(await letter_of(opened, ids[0]))
    assert await dead() == 2  # one gone, one new
    assert await opened.dead.delete(await letter_of(opened, ids[1]))
    assert await dead() == 1


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
                async with watching(operator, worker) as watcher:
                    handle = await producer.tasks["work"].enqueue()
                    await watcher.has("job.succeeded", handle.id)
                assert [
                    q.queue for q in await operator.queues.glance(Glances(), await operator.workers.list())
                ] == ["default"]
                assert await operator.jobs.running() == []
        denied = [line for line in guarded.log().splitlines() if "Violation" in line]
        assert denied == []
