"""Jobs whose task a worker does not know are parked until they meet a worker that does, or dead-lettered."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, JobCancelled, JobState, RetryPolicy
from jetjobs.admin import CancelOutcome, MoveOutcome
from jetjobs.errors import JobFailed
from jetjobs.model.events import JobFinished, JobStarted
from jetjobs.model.job import JobStatus
from jetjobs.model.views.dead_letter import ReplayOutcome
from jetjobs.observe.logs import log_event
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.roles import GuardedServer, Removed
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)
HOUR = timedelta(hours=1)


@pytest.fixture
def new(make_app: MakeApp) -> JetJobs:
    """The next version of `app`: it has the task `resize`."""
    new = make_app()

    @new.task
    async def resize(n: int) -> int:
        return 10 * n

    return new


@pytest.fixture(autouse=True)
def work(app: JetJobs) -> None:
    """`app` has another task, with a similar name."""

    @app.task
    async def resized(n: int) -> None: ...


async def until_parked(app: JetJobs, job_id: str) -> JobStatus:
    return await eventually(lambda: app.jobs.get(job_id), where=lambda found: found.state is JobState.RETRYING)


async def message_of(truth: Truth, subject: str) -> dict[str, str]:
    return (await truth.js.get_last_msg("jobs-work-default", subject)).headers or {}


async def test_a_parked_job_runs_on_its_first_attempt_once_a_worker_knows_its_task(
    app: JetJobs, new: JetJobs, truth: Truth, probe: Probe
) -> None:
    async with provisioned(app), new:
        async with running(app.worker()):
            handle = await new.tasks["resize"].enqueue(4)
            status = await until_parked(app, handle.id)
            assert status.reason == "parked: no worker knows task 'resize'"
            assert (status.attempt, status.crashes, status.lane, status.history) == (1, 0, "retry", ())
            assert (await handle.status()).reason == status.reason
            (parked,) = {event.outcome for event in await probe.finished(2, "parked")}
            async with running(new.worker()):
                assert await handle.result(SOON) == 40
        first = probe.of(JobFinished)[0]
        assert first.error is not None
        assert (parked, first.error.text) == ("parked", "no worker knows task 'resize'")
        assert 0.5 <= first.retry_in_s <= 1.0
        assert not probe.of(JobStarted)
        record = (await truth.done())[handle.id]
        assert (record["state"], record["attempt"]) == ("succeeded", 1)
        await truth.until_empty()
        assert await truth.dead() == {}


async def test_while_another_worker_knows_the_task_the_job_waits_a_moment_and_longer_than_the_grace_period(
    make_app: MakeApp, new: JetJobs, truth: Truth
) -> None:
    old, probe = make_app(queues={"unknown_task_grace": 0}), Probe()
    old.observe(probe)

    @old.task
    async def other() -> None: ...

    async with provisioned(old), new, running(new.worker()), running(old.worker()):
        handles = (await new.enqueue_many([new.tasks["resize"].bind(n) for n in range(50)])).stored
        assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == [10 * n for n in range(50)]
        parked = probe.of(JobFinished)
        assert {event.outcome for event in parked} == {"parked"}
        first = {event.job_id: event.retry_in_s for event in reversed(parked)}.values()
        assert first
        assert 0.1 <= min(first) <= max(first) <= 0.2
        texts = {event.error.text for event in parked if event.error is not None}
        assert texts == {"waits for a worker that knows task 'resize'"}
        assert {record["attempt"] for record in (await truth.done()).values()} == {1}
        assert await truth.dead() == {}


@pytest.mark.settings(queues={"unknown_task_grace": "1s"})
async def test_after_the_grace_period_the_job_is_dead_and_a_replay_runs_it(
    app: JetJobs, new: JetJobs, truth: Truth, probe: Probe
) -> None:
    async with provisioned(app), new:
        async with running(app.worker()):
            began = time.monotonic()
            handle = await new.tasks["resize"].enqueue(4)
            with pytest.raises(JobFailed, match="did you mean 'resized'"):
                await handle.result(SOON)
            assert 1.0 <= time.monotonic() - began < 5.0
            await truth.until_empty()
            (letter,) = (await truth.dead()).values()
            assert letter["reason"] == "unknown_task"
            assert letter["text"] == "no task named 'resize'; did you mean 'resized'?"
            found = await app.dead.get(handle.id)
            assert found is not None
            refused = await app.dead.replay(found)
            assert (refused.outcome, refused.why) == (ReplayOutcome.REFUSED, "no task named 'resize'")
        assert len(await truth.dead()) == 1
        async with running(new.worker()):
            assert (await new.dead.replay(found)).outcome is ReplayOutcome.REPLAYED
            assert await (await new.job(handle.id)).result(SOON) == 40
        assert await truth.dead() == {}


async def test_a_parked_job_can_be_cancelled(app: JetJobs, new: JetJobs, truth: Truth) -> None:
    async with provisioned(app), new, running(app.worker()):
        handle = await new.tasks["resize"].enqueue(4)
        await until_parked(app, handle.id)
        answer = await app.jobs.cancel(handle.id, by="ada", reason="wrong size")
        assert answer.outcome is CancelOutcome.CANCELLED
        with pytest.raises(JobCancelled, match="by ada: wrong size"):
            await handle.result(SOON)
        assert await truth.jobs() == []


async def test_a_parked_job_expires_at_its_deadline(app: JetJobs, new: JetJobs, truth: Truth) -> None:
    async with provisioned(app), new, running(app.worker()):
        deadline = datetime.now(UTC) + timedelta(seconds=1)
        handle = await new.tasks["resize"].options(deadline=deadline).enqueue(4)
        with pytest.raises(JobFailed, match=r"by its deadline, .* it was parked: no worker knows task"):
            await handle.result(SOON)
        assert {letter["reason"] for letter in (await truth.dead()).values()} == {"expired"}


async def test_run_now_moves_a_parked_job_and_its_grace_period_goes_on(
    app: JetJobs, new: JetJobs, truth: Truth, probe: Probe
) -> None:
    async with provisioned(app), new:
        since = f"{time.time() - 100:.6f}"  # so that it is not due within the next 30 s
        headers = {"Jetjobs-Parked": since, "Jetjobs-Crashes": "1", "X-Order": "7"}
        await truth.nc.publish("jobs.work.default.normal.resize", b'{"n": 4}', headers=headers)
        async with running(app.worker()):
            await probe.finished(1, "parked")
        (subject,) = await truth.jobs(lane="retry")
        moved = await message_of(truth, subject)
        # It has kept its crashes: a job that kills the workers that know its task does not get rid of them.
        assert {name: moved[name] for name in headers} == headers
        job_id = subject.rsplit(".", 1)[1]
        assert (await app.jobs.run_now(job_id)).outcome is MoveOutcome.MOVED
        (subject,) = await truth.jobs(lane="normal")
        assert (await message_of(truth, subject))["Jetjobs-Parked"] == since
        assert (await app.jobs.get(job_id)).reason is None  # queued
        async with running(new.worker()):
            assert await (await new.job(job_id)).result(SOON) == 40


async def test_a_worker_that_knows_the_task_ends_the_parking(
    app: JetJobs, truth: Truth, probe: Probe, make_app: MakeApp
) -> None:
    new = make_app()

    @new.task(retry=RetryPolicy(base=HOUR))
    async def fails() -> None:
        raise RuntimeError("no")

    async with provisioned(app), new:
        handle = await fails.enqueue()
        async with running(app.worker()):
            await probe.finished(1, "parked")
        async with running(new.worker()):
            status = await eventually(handle.status, where=lambda found: found.attempt == 2)
        assert (status.state, status.reason) == (JobState.RETRYING, None)
        (subject,) = await truth.jobs(lane="retry")
        assert "Jetjobs-Parked" not in await message_of(truth, subject)


async def test_a_worker_reads_the_registry_once_a_second_for_all_jobs(
    app: JetJobs, new: JetJobs, truth: Truth, probe: Probe
) -> None:
    reads = 0

    async def count(message: object) -> None:
        nonlocal reads
        reads += 1

    async with provisioned(app), new:
        await truth.nc.subscribe("$JS.API.DIRECT.GET.KV_jobs-workers", cb=count)
        await truth.nc.flush()
        await new.enqueue_many([new.tasks["resize"].bind(n) for n in range(500)])
        async with running(app.worker(slots=50, schedules=False)):
            await probe.finished(500, "parked")
            await truth.nc.flush()
            assert len({event.job_id for event in probe.of(JobFinished)}) == 500
            assert 1 <= reads <= 6  # three requests a reading, and at most two readings


async def test_without_permission_to_read_the_registry_the_grace_period_decides(tmp_path: Path) -> None:
    removed = Removed("worker", "publish", "$JS.API.DIRECT.GET.KV_jobs-workers")
    with GuardedServer(tmp_path, removed) as server:
        app = JetJobs("test", settings=server.settings_of("worker", queues={"unknown_task_grace": "1s"}))
        probe = Probe()
        app.observe(probe)

        @app.task
        async def other() -> None: ...

        async with JetJobs("test", settings=server.settings_of("setup")) as setup:
            await setup.provision(["default"])
        truth = await Truth.connect(server.url.replace("nats://", "nats://root:secret@"))
        async with app, running(app.worker()):
            await truth.nc.publish("jobs.work.default.normal.resize", b'{"n": 4}')
            await probe.finished(1, "dead_lettered")
        assert probe.of(JobFinished, lambda event: event.outcome == "parked")
        await truth.close()


async def test_the_log_line_of_a_parked_job_says_what_it_waits_for(
    app: JetJobs, new: JetJobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jetjobs.worker")
    app.observe(log_event)
    async with provisioned(app), new, running(app.worker()):
        handle = await new.tasks["resize"].enqueue(4)
        await until_parked(app, handle.id)
    (line, *_) = [line for line in caplog.records if getattr(line, "event", "") == "job.parked"]
    fields = vars(line)
    assert (fields["job_id"], fields["task"], fields["attempt"]) == (handle.id, "resize", 1)
    assert fields["error"] == "no worker knows task 'resize'"
    assert 0.5 <= fields["retry_in_s"] <= 1.0
