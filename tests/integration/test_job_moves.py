"""Move waiting jobs: run now, reschedule, change the priority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, JobState, Snooze
from jetjobs.admin import CancelOutcome, MoveOutcome
from jetjobs.jetstream.jobs.cancel_marks import CancelMark
from jetjobs.model.errors import BrokerUnavailable, DefinitionError, MalformedJob
from jetjobs.model.events import JobStarted
from jetjobs.model.views.job_query import JobQuery
from jetjobs.testing import Clock
from tests.support.job_states import HOUR, StateTasks
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)


async def test_run_now_and_reschedule_move_a_waiting_job_once(app: JetJobs, truth: Truth, probe: Probe) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=HOUR).enqueue(1)
        two = await zoo.fine.options(delay=HOUR, key="k").enqueue(2)
        due = datetime.now(UTC) + timedelta(days=2)
        assert (await app.jobs.reschedule(two.id, due)).outcome is MoveOutcome.MOVED
        assert (await two.status()).due_at == due
        assert len(await truth.jobs(lane="later")) == 2
        async with running(app.worker()):
            assert (await app.jobs.run_now(one.id)).outcome is MoveOutcome.MOVED
            assert await one.result(SOON) == 1
            assert (await app.jobs.run_now(one.id)).outcome is MoveOutcome.ENDED
            assert (await app.jobs.run_now(two.id)).outcome is MoveOutcome.MOVED
            assert await two.result(SOON) == 2
        assert len(probe.of(JobStarted)) == 2
        await truth.until_empty()


async def test_a_scheduled_anonymous_job_is_moved_shown_and_cancelled(app: JetJobs, truth: Truth) -> None:
    StateTasks(app)
    due = datetime.now(UTC).replace(microsecond=0) + HOUR
    async with provisioned(app):
        for rest in ("fine.-.one", "fine.-.two", "fine"):
            target = f"jobs.work.default.normal.{rest}"
            headers = {"Nats-Schedule": f"@at {due.isoformat()}", "Nats-Schedule-Target": target}
            await truth.js.publish(f"jobs.work.default.later.{rest}", b'{"n": 1}', headers=headers)
        assert (await app.jobs.set_priority("one", "high")).outcome is MoveOutcome.MOVED
        status = await app.jobs.get("one")
        assert (status.priority, status.due_at) == ("high", due)
        assert (await app.jobs.reschedule("one", due + HOUR)).outcome is MoveOutcome.MOVED
        assert (await app.jobs.get("one")).due_at == due + HOUR
        assert (await app.jobs.run_now("two")).outcome is MoveOutcome.MOVED
        [anonymous] = [found.status.id async for found in app.jobs.list() if found.status.id not in ("one", "two")]
        assert (await app.jobs.get(anonymous)).state is JobState.SCHEDULED
        with pytest.raises(MalformedJob, match="invalid target"):
            await app.jobs.run_now(anonymous)
        assert (await app.jobs.cancel(anonymous)).outcome is CancelOutcome.CANCELLED
        assert await truth.jobs() == ["jobs.work.default.later.fine.-.one", "jobs.work.default.normal.fine.-.two"]


@pytest.mark.parametrize("year", [1969, 2262, 9999])
async def test_a_job_is_not_rescheduled_to_a_time_that_the_server_cannot_store(
    app: JetJobs, truth: Truth, year: int
) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=HOUR).enqueue(1)
        before = await one.status()
        with pytest.raises(DefinitionError, match="1970 to 2261"):
            await app.jobs.reschedule(one.id, datetime(year, 6, 1, tzinfo=UTC))
        assert await one.status() == before


async def test_a_job_that_is_due_within_two_seconds_is_not_moved(app: JetJobs, truth: Truth) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=timedelta(seconds=1.5)).enqueue(1)
        before = await truth.jobs()
        answer = await app.jobs.reschedule(one.id, datetime.now(UTC) + HOUR)
        assert answer.outcome is MoveOutcome.TOO_LATE
        assert len(before) == 1
        held = await zoo.hold.enqueue(1)
        assert (await app.jobs.run_now(held.id)).outcome is MoveOutcome.TOO_LATE  # it is queued, so it runs anyway


async def test_the_priority_of_a_waiting_job_can_be_changed(app: JetJobs, truth: Truth) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        queued = await zoo.fine.enqueue(1)
        later = await zoo.fine.options(delay=HOUR).enqueue(2)
        assert (await app.jobs.set_priority(queued.id, "high")).outcome is MoveOutcome.MOVED
        assert (await app.jobs.set_priority(later.id, "low")).outcome is MoveOutcome.MOVED
        assert await truth.jobs(lane="normal") == []
        assert await truth.jobs(lane="high") == [f"jobs.work.default.high.fine.-.{queued.id}"]
        assert (await app.jobs.set_priority(queued.id, "high")).outcome is MoveOutcome.UNCHANGED
        assert (await truth.consumer())["num_pending"] == 0
        with pytest.raises(DefinitionError, match="invalid priority 'later': use high, normal, low"):
            await app.jobs.set_priority(queued.id, "later")
        async with running(app.worker()):
            assert await queued.result(SOON) == 1
            assert (await app.jobs.set_priority(queued.id, "low")).outcome is MoveOutcome.ENDED
            assert (await app.jobs.run_now(later.id)).outcome is MoveOutcome.MOVED
            assert await later.result(SOON) == 2


async def test_a_change_of_priority_whose_confirmation_is_lost_is_made_once(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        one = await zoo.fine.enqueue(1)
        ask = app.jetstream.connection.ask
        lost: list[str] = []

        async def losing(subject: str, *args: Any) -> bytes:
            reply = await ask(subject, *args)
            if ".high." in subject and not lost:
                lost.append(subject)
                raise BrokerUnavailable("lost")
            return reply

        monkeypatch.setattr(app.jetstream.connection, "ask", losing)
        assert (await app.jobs.set_priority(one.id, "high")).outcome is MoveOutcome.MOVED
        assert lost
        assert await truth.jobs() == [f"jobs.work.default.high.fine.-.{one.id}"]


async def test_a_delivered_job_waits_in_lane_retry_and_is_moved_like_a_scheduled_one(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    begun = set[int]()

    @app.task
    async def not_now(n: int) -> int:
        if n in begun:
            return n
        begun.add(n)
        raise Snooze(HOUR)

    async with provisioned(app):
        handles = [await not_now.options(key=f"k{n}").enqueue(n) for n in range(4)]
        run, moved, cancelled, waiting = handles
        async with running(app.worker()):
            await probe.finished(4, "snoozed")
            # The subject alone determines the state: these are in their first attempt.
            statuses = [await handle.status() for handle in handles]
            assert {(s.state, s.lane, s.attempt) for s in statuses} == {(JobState.RETRYING, "retry", 1)}
            listed = await app.jobs.page(JobQuery(state=JobState.RETRYING))
            assert {item.status.id for item in listed.items} == {handle.id for handle in handles}
            assert (await app.jobs.page(JobQuery(state=JobState.SCHEDULED))).scanned == 0
            assert (await not_now.options(key="k0").enqueue(9)).duplicate
            due = datetime.now(UTC) + timedelta(days=2)
            assert (await app.jobs.reschedule(moved.id, due)).outcome is MoveOutcome.MOVED
            assert (await app.jobs.set_priority(moved.id, "high")).outcome is MoveOutcome.MOVED
            status = await moved.status()
            assert (status.lane, status.priority, status.due_at) == ("retry", "high", due)
            assert (await app.jobs.cancel(cancelled.id)).outcome is CancelOutcome.CANCELLED
            assert (await app.jobs.run_now(run.id)).outcome is MoveOutcome.MOVED
            assert await run.result(SOON) == 0
            assert len(await truth.jobs(lane="retry")) == 2
            assert await truth.jobs(lane="later") == []
            assert Clock(app).advance("3d") == 2
            assert [await handle.result(SOON) for handle in (moved, waiting)] == [1, 3]
        await truth.until_empty()


async def test_a_scheduled_job_shows_its_priority(app: JetJobs) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=HOUR).enqueue(1)
        assert (await one.status()).priority == "normal"
        assert (await app.jobs.set_priority(one.id, "high")).outcome is MoveOutcome.MOVED
        status = await app.jobs.get(one.id)
        assert (status.state, status.lane, status.priority) == (JobState.SCHEDULED, "later", "high")
        two = await zoo.fine.enqueue(2)
        assert (await two.status()).priority == "normal"
        assert (await app.jobs.set_priority(two.id, "low")).outcome is MoveOutcome.MOVED
        moved = await two.status()
        assert (moved.state, moved.lane, moved.priority) == (JobState.QUEUED, "low", "low")


async def test_a_pending_cancel_is_shown(app: JetJobs, truth: Truth) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=HOUR).enqueue(1)
        assert (await app.jobs.get(one.id)).cancel is None
        marks = app.jetstream.cancel_marks
        await marks.put(one.id, CancelMark("another-run", "ada", "old"))
        assert (await app.jobs.get(one.id)).cancel is None
        await marks.put(one.id, CancelMark(one.run, "ada", "wrong customer"))
        assert (await app.jobs.get(one.id)).cancel == {"by": "ada", "reason": "wrong customer"}
        await app.jobs.cancel(one.id, by="bob", reason="it was")
        assert (await app.jobs.get(one.id)).cancel == {"by": "bob", "reason": "it was"}
