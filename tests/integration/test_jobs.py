"""Jobs by their id alone: where they stand, lists of them, and moves of those that wait."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar

import pytest

from jetjobs import INJECTED, Depends, JetJobs, JobHandle, JobState, RetryPolicy, Snooze, current_job
from jetjobs.admin.cancel import CancelOutcome
from jetjobs.admin.reschedule import MoveOutcome
from jetjobs.jetstream.jobs.cancel_marks import CancelMark
from jetjobs.model.errors import (
    BrokerUnavailable,
    ConfigError,
    DefinitionError,
    JobAmbiguous,
    JobNotFound,
    MalformedJob,
    QueueNotFound,
)
from jetjobs.model.events import JobStarted
from jetjobs.model.job import JobStatus
from jetjobs.model.views.job_query import JobQuery
from jetjobs.testing import Clock
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=20)
HOUR = timedelta(hours=1)
ONCE = RetryPolicy(max_attempts=1)


class Zoo:
    """A task for each way to stand somewhere."""

    def __init__(self, app: JetJobs) -> None:
        self.gate = asyncio.Event()

        @app.task
        async def fine(n: int) -> int:
            return n

        @app.task(queue="other", retry=ONCE)
        async def broken(n: int) -> None:
            raise RuntimeError(f"number {n}")

        @app.task(retry=RetryPolicy(base=HOUR, jitter=False))
        async def fragile(n: int) -> None:
            raise RuntimeError("not yet")

        @app.task
        async def hold(n: int) -> str:
            await self.gate.wait()
            return "held"

        self.fine, self.broken, self.fragile, self.hold = fine, broken, fragile, hold


async def test_a_job_is_found_by_its_id_alone_in_every_state(app: JetJobs, probe: Probe) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        queued = await zoo.fine.enqueue(1)
        assert (await app.jobs.get(queued.id)).state is JobState.QUEUED
        scheduled = await zoo.fine.options(delay=HOUR, key="k").enqueue(2)
        dead = await zoo.broken.enqueue(3)
        retrying = await zoo.fragile.enqueue(4)
        held = await zoo.hold.enqueue(5)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            await probe.finished(1, "retried")
            await probe.finished(1, "succeeded")

            async def shown() -> bool:
                return (await app.jobs.get(held.id)).state is JobState.RUNNING

            await eventually(shown)
            states = {h.id: await app.jobs.get(h.id) for h in (queued, scheduled, dead, retrying)}
            assert (states[queued.id].state, states[queued.id].result) == (JobState.SUCCEEDED, 1)
            assert (states[scheduled.id].state, states[scheduled.id].lane) == (JobState.SCHEDULED, "later")
            assert (states[dead.id].state, states[dead.id].queue) == (JobState.DEAD, "other")
            assert states[dead.id].error == "RuntimeError: number 3"
            assert (states[retrying.id].state, states[retrying.id].attempt) == (JobState.RETRYING, 2)
            assert [entry["text"] for entry in states[retrying.id].history] == ["not yet"]
            handle = await app.job(held.id)
            zoo.gate.set()
            assert await handle.result(SOON) == "held"


async def test_what_is_nowhere_or_no_id_or_twice_is_said_so(app: JetJobs) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        with pytest.raises(JobNotFound, match="no job is found by the id"):
            await app.jobs.get("nosuch")
        with pytest.raises(JobNotFound, match="is no job id"):
            await app.jobs.get("no such>")
        await zoo.fine.options(job_id="mine").enqueue(1)
        await zoo.hold.options(job_id="mine").enqueue(2)
        with pytest.raises(JobAmbiguous, match="default/fine, default/hold") as caught:
            await app.jobs.get("mine")
        assert caught.value.places == [("default", "fine"), ("default", "hold")]
        assert (await app.jobs.get("mine", task="hold")).task == "hold"


async def test_lists_page_by_state_task_and_arguments(app: JetJobs, probe: Probe) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        report = await app.enqueue_many([zoo.fine.bind(n) for n in range(30)])
        await zoo.hold.enqueue(99)
        ids = [handle.id for handle in report.stored]

        found: list[str] = []
        cursor = None
        pages = 0
        query = JobQuery(JobState.QUEUED, task="fine")
        while True:
            page = await app.jobs.page(query, limit=12, cursor=cursor)
            found += [item.status.id for item in page.items]
            pages += 1
            cursor = page.cursor
            if cursor is None:
                break
        assert found == ids
        assert pages == 3

        page = await app.jobs.page(JobQuery(where=(("args.n", "7"),)))
        assert [(item.status.id, item.arguments) for item in page.items] == [(ids[7], {"n": 7})]
        nothing = await app.jobs.page(JobQuery(where=(("args.nosuch.deep", "7"),)))
        assert (nothing.items, nothing.unknown) == ([], ("args.nosuch.deep",))

        with pytest.raises(ConfigError, match="of another list"):
            await app.jobs.page(JobQuery(JobState.DEAD), cursor=(await app.jobs.page(query, limit=1)).cursor)
        with pytest.raises(ConfigError, match="is no cursor"):
            await app.jobs.page(query, cursor="%%%")
        with pytest.raises(ConfigError, match="only arguments"):
            JobQuery(where=(("user", "7"),))
        with pytest.raises(QueueNotFound):
            await app.jobs.page(JobQuery(queue="nosuch"))

        await zoo.broken.enqueue(1)
        async with running(app.worker()):
            await probe.finished(30, "succeeded")
            await probe.finished(1, "dead_lettered")
            done = [item async for item in app.jobs.list(JobQuery(JobState.SUCCEEDED))]
            assert {item.status.id for item in done} == set(ids)
            dead = await app.jobs.page(JobQuery(JobState.DEAD, task="broken"))
            assert [item.status.error for item in dead.items] == ["RuntimeError: number 1"]

            async def shown() -> bool:
                page = await app.jobs.page(JobQuery(JobState.RUNNING))
                return [item.status.task for item in page.items] == ["hold"]

            await eventually(shown)
            recent = await app.jobs.page(JobQuery(JobState.DEAD, since=datetime.now(UTC) + HOUR))
            assert recent.items == []
            zoo.gate.set()


async def test_a_list_of_running_jobs_does_not_read_those_that_wait(app: JetJobs, probe: Probe) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        query = JobQuery(JobState.RUNNING)
        held = [await zoo.hold.enqueue(n) for n in range(2)]
        async with running(app.worker(slots=2)):
            await probe.wait(JobStarted, 2, timeout=30)
            report = await app.enqueue_many([zoo.fine.bind(n) for n in range(300)])
            assert len(report.stored) == 300

            async def shown() -> bool:
                return len((await app.jobs.page(query)).items) == 2

            await eventually(shown, 30)
            page = await app.jobs.page(query)
            assert {item.status.id for item in page.items} == {h.id for h in held}
            assert page.cursor is None
            assert page.scanned < 100  # a few may be taken ahead
            first = await app.jobs.page(query, limit=1)
            assert first.cursor is not None
            second = await app.jobs.page(query, limit=1, cursor=first.cursor)
            assert {first.items[0].status.id, second.items[0].status.id} == {h.id for h in held}
            zoo.gate.set()
            await probe.finished(302, "succeeded", timeout=30)
        assert (await app.jobs.page(query)).items == []


async def test_a_list_holds_and_acks_nothing(app: JetJobs, truth: Truth) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        await app.enqueue_many([zoo.fine.bind(n) for n in range(50)])
        before = await truth.consumer()
        assert len((await app.jobs.page(limit=100)).items) == 50
        after = await truth.consumer()
        for count in ("num_pending", "num_ack_pending"):
            assert before[count] == after[count]
        names = await truth.api("CONSUMER.NAMES.jobs-work-default")
        assert set(names["consumers"]) == {"high", "normal", "low", "returned"}


# Moves


async def test_run_now_and_reschedule_move_a_job_that_waits_once(app: JetJobs, truth: Truth, probe: Probe) -> None:
    zoo = Zoo(app)
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


async def test_a_job_for_later_published_without_jetjobs_is_moved_shown_and_cancelled(
    app: JetJobs, truth: Truth
) -> None:
    Zoo(app)
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
        with pytest.raises(MalformedJob, match="no usable target"):
            await app.jobs.run_now(anonymous)
        assert (await app.jobs.cancel(anonymous)).outcome is CancelOutcome.CANCELLED
        assert await truth.jobs() == ["jobs.work.default.later.fine.-.one", "jobs.work.default.normal.fine.-.two"]


@pytest.mark.parametrize("year", [1969, 2262, 9999])
async def test_a_job_is_not_rescheduled_to_a_time_that_the_server_cannot_hold(
    app: JetJobs, truth: Truth, year: int
) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=HOUR).enqueue(1)
        before = await one.status()
        with pytest.raises(DefinitionError, match="1970 to 2261"):
            await app.jobs.reschedule(one.id, datetime(year, 6, 1, tzinfo=UTC))
        assert await one.status() == before


async def test_a_job_that_is_due_within_two_seconds_is_not_moved(app: JetJobs, truth: Truth) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        one = await zoo.fine.options(delay=timedelta(seconds=1.5)).enqueue(1)
        before = await truth.jobs()
        answer = await app.jobs.reschedule(one.id, datetime.now(UTC) + HOUR)
        assert answer.outcome is MoveOutcome.TOO_LATE
        assert len(before) == 1
        held = await zoo.hold.enqueue(1)
        assert (await app.jobs.run_now(held.id)).outcome is MoveOutcome.TOO_LATE  # it is queued: it runs anyway


async def test_the_priority_of_a_waiting_job_can_be_changed(app: JetJobs, truth: Truth) -> None:
    zoo = Zoo(app)
    async with provisioned(app):
        queued = await zoo.fine.enqueue(1)
        later = await zoo.fine.options(delay=HOUR).enqueue(2)
        assert (await app.jobs.set_priority(queued.id, "high")).outcome is MoveOutcome.MOVED
        assert (await app.jobs.set_priority(later.id, "low")).outcome is MoveOutcome.MOVED
        assert await truth.jobs(lane="normal") == []
        assert await truth.jobs(lane="high") == [f"jobs.work.default.high.fine.-.{queued.id}"]
        assert (await app.jobs.set_priority(queued.id, "high")).outcome is MoveOutcome.UNCHANGED
        assert (await truth.consumer())["num_pending"] == 0
        with pytest.raises(ConfigError):
            await app.jobs.set_priority(queued.id, "later")
        async with running(app.worker()):
            assert await queued.result(SOON) == 1
            assert (await app.jobs.set_priority(queued.id, "low")).outcome is MoveOutcome.ENDED
            assert (await app.jobs.run_now(later.id)).outcome is MoveOutcome.MOVED
            assert await later.result(SOON) == 2


async def test_a_change_of_priority_whose_confirmation_is_lost_is_made_once(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = Zoo(app)
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


async def test_a_job_that_was_delivered_waits_in_lane_retry_and_is_handled_like_one_for_later(
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
            # The state is told by the subject alone: these are in their first attempt.
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


async def test_a_job_for_later_says_which_lane_it_is_for(app: JetJobs) -> None:
    zoo = Zoo(app)
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


async def test_a_cancel_that_is_not_done_is_told_of(app: JetJobs, truth: Truth) -> None:
    zoo = Zoo(app)
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


async def test_a_job_knows_which_job_enqueued_it_wherever_it_stands(app: JetJobs, truth: Truth) -> None:
    broken = asyncio.Event()
    broken.set()

    @app.task(retry=ONCE)
    async def leaf(n: int) -> None:
        if broken.is_set():
            raise RuntimeError("not yet")

    @app.task
    async def branch() -> list[str]:
        later = await leaf.options(delay=HOUR).enqueue(1)
        report = await app.enqueue_many([leaf.bind(2)])
        return [current_job().id, later.id, *[handle.id for handle in report.handles if handle is not None]]

    @app.task
    async def trunk() -> list[str]:
        return await (await branch.enqueue()).result(SOON)

    async with provisioned_worker(app, slots=4):
        root = await trunk.enqueue()
        middle, later, dead = await root.result(SOON)

        async def lineage_of(job_id: str, state: JobState) -> tuple[str | None, str | None] | None:
            status = await app.jobs.get(job_id)
            return (status.parent, status.root) if status.state is state else None

        assert await lineage_of(root.id, JobState.SUCCEEDED) == (None, None)
        assert await lineage_of(middle, JobState.SUCCEEDED) == (root.id, root.id)
        assert await lineage_of(later, JobState.SCHEDULED) == (middle, root.id)
        assert await eventually(lambda: lineage_of(dead, JobState.DEAD)) == (middle, root.id)
        broken.clear()
        letter = await app.dead.get(dead)
        assert letter is not None
        await app.dead.replay(letter)
        assert await eventually(lambda: lineage_of(dead, JobState.SUCCEEDED)) == (middle, root.id)
        await app.jobs.cancel(later)
        assert await lineage_of(later, JobState.CANCELLED) == (middle, root.id)


class Polled:
    """Of the app: made within the first job that needs it, and goes on by itself."""

    enqueue: ClassVar[Callable[[], Awaitable[JobHandle[None]]]]

    def __init__(self) -> None:
        self.polling = asyncio.create_task(self._poll())

    async def _poll(self) -> str:
        return (await Polled.enqueue()).id


async def test_what_an_object_of_the_app_enqueues_is_no_child_of_the_job_that_made_it(app: JetJobs) -> None:
    @app.task
    async def leaf() -> None: ...

    @app.task
    async def first(polled: Annotated[Polled, Depends(Polled, scope="app")] = INJECTED) -> str:
        return await polled.polling

    Polled.enqueue = leaf.enqueue
    async with provisioned_worker(app):
        handle = await first.enqueue()
        enqueued = await handle.result(SOON)
        assert (await app.jobs.get(enqueued)).parent is None


@pytest.mark.parametrize(
    ("written", "parent", "root"),
    [
        ({"Jetjobs-Parent": "p1", "Jetjobs-Root": "r1"}, "p1", "r1"),
        ({"Jetjobs-Parent": "p1"}, "p1", "p1"),
        ({"Jetjobs-Parent": "p1", "Jetjobs-Root": "x" * 20_000}, "p1", "p1"),
        ({"Jetjobs-Parent": "no id", "Jetjobs-Root": "r1"}, None, None),
        ({"Jetjobs-Root": "r1"}, None, None),
    ],
)
async def test_a_line_that_somebody_wrote_by_hand_counts_as_far_as_it_is_ids(
    app: JetJobs, written: dict[str, str], parent: str | None, root: str | None
) -> None:
    @app.task
    async def leaf() -> None: ...

    @app.task
    async def branch() -> list[str | None]:
        job = current_job()
        child = await leaf.options(delay=HOUR).enqueue()
        return [job.parent_id, job.root_id, child.id]

    async with provisioned(app):
        await app.jetstream.connection.nc.publish("jobs.work.default.normal.branch", b"{}", headers=written)
        status = await eventually(lambda: _first(app))
        assert (status.parent, status.root) == (parent, root)
        async with running(app.worker()):
            handle = await app.job(status.id)
            told = await handle.result(SOON)
        assert told[:2] == [parent, root or status.id]
        child = await app.jobs.get(told[2])
        assert (child.parent, child.root) == (status.id, root or status.id)
        ended = await app.jobs.get(status.id)
        assert (ended.parent, ended.root) == (parent, root)


async def _first(app: JetJobs) -> JobStatus | None:
    items = (await app.jobs.page()).items
    return items[0].status if items else None


async def test_a_plain_function_enqueues_on_the_loop_and_is_the_parent(app: JetJobs) -> None:
    @app.task
    async def child(how: str) -> str | None:
        return current_job().parent_id

    @app.task
    def parent(
        loop: Annotated[asyncio.AbstractEventLoop, Depends(asyncio.get_running_loop)] = INJECTED,
    ) -> list[str]:
        def enqueue(how: str) -> None:
            made.append(asyncio.run_coroutine_threadsafe(child.enqueue(how), loop).result().id)

        made: list[str] = []
        enqueue("itself")
        for thread in (
            threading.Thread(target=contextvars.copy_context().run, args=(enqueue, "in a copy")),
            threading.Thread(target=enqueue, args=("alone",)),
        ):
            thread.start()
            thread.join()
        return made

    async with provisioned_worker(app):
        handle = await parent.enqueue()
        made = await handle.result(SOON)
        parents = [await (await app.job(job_id)).result(SOON) for job_id in made]
    assert parents == [handle.id, handle.id, None]
