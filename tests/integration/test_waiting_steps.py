"""State `waiting`: steps of a flow in lane `gate`, which only their flow or its deadline moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jetjobs import JetJobs, JobState
from jetjobs.admin import CancelOutcome, JobQuery, MoveOutcome, Purged
from jetjobs.model.wire.ids import key_token
from tests.support.job_states import HOUR, StateTasks
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned

KEY = key_token("flow\0one")
STEP = f"{KEY}-fine"


async def put_gate(truth: Truth, due: datetime) -> str:
    """Store a gate as any producer may."""
    subject = f"jobs.work.default.gate.fine.{KEY}.fine"
    headers = {
        "Nats-Schedule": f"@at {due.isoformat()}",
        "Nats-Schedule-Target": f"jobs.work.default.normal.fine.{KEY}.fine",
        "Jetjobs-Flow": "one",
        "Jetjobs-Step": "fine.0.1",
        "Jetjobs-After": '{"/n": "before"}',
    }
    await truth.js.publish(subject, b"{}", headers=headers)
    return subject


async def test_a_gate_is_shown_as_waiting(app: JetJobs, truth: Truth) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        await put_gate(truth, datetime.now(UTC) + HOUR)
        later = await zoo.fine.options(delay=HOUR).enqueue(1)
        assert (await app.jobs.get(STEP)).state is JobState.WAITING
        assert {found.status.id async for found in app.jobs.list()} == {STEP, later.id}
        listed = [found.status async for found in app.jobs.list(JobQuery(state=JobState.WAITING))]
        assert [(status.id, status.state, status.lane) for status in listed] == [(STEP, JobState.WAITING, "gate")]


async def test_neither_a_move_nor_a_purge_touches_a_gate(app: JetJobs, truth: Truth) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        subject = await put_gate(truth, datetime.now(UTC) + HOUR)
        await zoo.fine.options(delay=HOUR).enqueue(1)
        before = await truth.js.get_last_msg("jobs-work-default", subject)
        assert (await app.jobs.run_now(STEP)).outcome is MoveOutcome.WAITS
        assert (await app.jobs.reschedule(STEP, delay="1m")).outcome is MoveOutcome.WAITS
        assert (await app.jobs.set_priority(STEP, "high")).outcome is MoveOutcome.WAITS
        assert await app.queues.purge("default", scheduled=True) == Purged(0, 1)
        assert await truth.jobs() == [subject]
        after = await truth.js.get_last_msg("jobs-work-default", subject)
        assert (after.seq, after.headers) == (before.seq, before.headers)


async def test_a_gate_can_be_cancelled(app: JetJobs, truth: Truth) -> None:
    StateTasks(app)
    async with provisioned(app):
        await put_gate(truth, datetime.now(UTC) + HOUR)
        assert (await app.jobs.cancel(STEP)).outcome is CancelOutcome.CANCELLED
        assert await truth.jobs() == []
        assert (await truth.done())[STEP]["state"] == "cancelled"


async def test_the_server_moves_a_gate_at_its_deadline(app: JetJobs, truth: Truth) -> None:
    StateTasks(app)
    async with provisioned(app):
        await put_gate(truth, datetime.now(UTC) - timedelta(seconds=1))
        lane = [f"jobs.work.default.normal.fine.{KEY}.fine"]
        await eventually(truth.jobs, where=lambda found: found == lane)
