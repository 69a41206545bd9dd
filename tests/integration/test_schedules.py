"""Schedules against a real server: placed once, fired by the server, edited, taken back, caught up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, RetryPolicy, current_job
from jetjobs.devserver import EmbeddedServer
from jetjobs.jetstream.changeover import Changeover
from jetjobs.jetstream.publisher import _block, stage
from jetjobs.jetstream.schedule_edits import next_generation
from jetjobs.jetstream.schedules import Definition, ScheduleStore
from jetjobs.jetstream.ticks import Marker, Placing, Ticks, tick_job
from jetjobs.model.errors import (
    BrokerError,
    DefinitionError,
    InvalidArguments,
    JobTooLarge,
    QueueNotFound,
    ScheduleConflict,
    ScheduleNotFound,
    UnknownTask,
)
from jetjobs.model.planning import Plan, Tick, plan
from jetjobs.model.schedule import Schedule, make_schedule, schedule_key, slot_token
from jetjobs.model.settings import build_settings
from jetjobs.worker.declared import sync_declared
from jetjobs.worker.planner import Planner
from jetjobs.worker.worker import running
from tests.conftest import MakeApp
from tests.integration.test_leader import fill
from tests.support.probe import Probe, eventually
from tests.support.server import Truth

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SOON = timedelta(seconds=30)

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def work(app: JetJobs) -> Any:
    @app.task
    async def work(n: int = 0) -> int:
        return n

    return work


@contextlib.asynccontextmanager
async def planning(*apps: JetJobs) -> AsyncIterator[list[Planner]]:
    """As if each of these apps' processes led, all at once."""
    planners = [Planner(app.jetstream, lambda: 1) for app in apps]
    tasks = [asyncio.create_task(planner.run()) for planner in planners]
    try:
        yield planners
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def now_of(app: JetJobs) -> datetime:
    return await app.jetstream.server_clock.now()


async def set_marker(app: JetJobs, name: str, slot: datetime) -> None:
    """As if the schedule had last been planned then."""
    definition = await app.jetstream.schedules.get(name)
    assert definition is not None
    schedule = definition.schedule
    assert schedule is not None
    schedule = schedule.model_copy(update={"since": slot})
    revision = await app.jetstream.schedules.put(schedule, definition.revision)
    assert revision
    marker = await app.jetstream.ticks.marker(schedule.queue, name)
    record = {"slot": slot.isoformat(), "generation": schedule.generation, "missed": 0}
    staged = app.jetstream.ticks._staged_marker(schedule.queue, name, record, marker.sequence)
    await app.jetstream.publisher.store_batch(f"jobs-work-{schedule.queue}", [staged])


async def put_bare(app: JetJobs, truth: Truth, name: str, task: Any, **rule: Any) -> Schedule:
    """A schedule of which nothing is planned: as if its ticks had been purged, and its marker set back."""
    schedule = (await app.schedules.put(name, task, **rule)).schedule
    await truth.js.purge_stream(
        f"jobs-work-{schedule.queue}", subject=app.jetstream.names.planned(schedule.queue, schedule.key)
    )
    await set_marker(app, name, schedule.since)
    return schedule


async def standing(truth: Truth, queue: str = "default") -> list[str]:
    """The subject of each tick in the queue, as often as there are messages on it."""
    found = await truth.subjects(f"jobs-work-{queue}", f"jobs.work.{queue}.*.>")
    return sorted(s for s, count in found.items() for _ in range(count) if ".tick." not in s)


async def standing_once(truth: Truth) -> list[str]:
    """All ticks, each seen once: one that is being fired may be seen in two lanes for a moment."""

    async def once() -> list[str] | None:
        found = await standing(truth)
        doubled = [tick for tick, count in Counter(s.split(".", 4)[4] for s in found).items() if count > 1]
        return None if doubled else found

    return await eventually(once, 10)


def slots_of(subjects: list[str]) -> list[str]:
    return sorted(subject.rsplit(".", 1)[1] for subject in subjects)


# Placing


async def test_ticks_stand_a_minute_ahead_and_the_server_fires_them(app: JetJobs, work: Any, truth: Truth) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("often", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 50), 30)
            fired = await eventually(lambda: ready(truth, 2), 30)
        found = await standing_once(truth)
        first = min(slots_of(found))
        begin = datetime.strptime(first, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        expected = [slot_token(begin + i * SECOND) for i in range(len(found))]
        assert slots_of(found) == expected  # none missing in between
        message = await truth.js.get_last_msg("jobs-work-default", fired[0])
        for subject in fired:
            stored = await truth.api("STREAM.MSG.GET.jobs-work-default", {"last_by_subj": subject})
            slot = datetime.strptime(subject.rsplit(".", 1)[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            assert datetime.fromisoformat(stored["message"]["time"]) >= slot  # never before its time
        headers = message.headers or {}
        assert headers["Jetjobs-Schedule"] == "often"
        assert slot_token(datetime.fromisoformat(headers["Jetjobs-Slot"])) == fired[0].rsplit(".", 1)[1]


async def placed(truth: Truth, count: int) -> list[str] | None:
    found = await truth.jobs(lane="later")
    return found if len(found) >= count else None


async def ready(truth: Truth, count: int) -> list[str] | None:
    found = await truth.jobs(lane="normal")
    return found if len(found) >= count else None


async def test_two_leaders_at_once_place_every_tick_once(make_app: MakeApp, truth: Truth) -> None:
    first, second = make_app("one"), make_app("two")
    for app in (first, second):

        @app.task
        async def work() -> None: ...

    async with first, second:
        await first.provision()
        for number in range(1, 6):
            await first.schedules.put(f"s{number}", "work", every=number * SECOND)
        async with planning(first, second):

            async def enough() -> bool:
                by_key = Counter(subject.split(".")[5] for subject in await truth.jobs())
                return len(by_key) == 5 and min(by_key.values()) >= 12

            await eventually(enough, 40)
        found = await standing_once(truth)
        per_tick = Counter((subject.split(".")[5], subject.split(".")[6]) for subject in found)
        assert set(per_tick.values()) == {1}
        for number in range(1, 6):
            key = make_schedule({"name": f"s{number}", "task": "work", "every": SECOND}).key
            slots = sorted(uid for token, uid in per_tick if token == key)
            times = [datetime.strptime(uid, "%Y%m%dT%H%M%SZ") for uid in slots]
            assert {b - a for a, b in itertools.pairwise(times)} == {number * SECOND}


async def test_a_stale_leader_is_refused_even_after_a_restart(
    app: JetJobs, work: Any, server: EmbeddedServer, truth: Truth
) -> None:
    async with app:
        await app.provision()
        schedule = await put_bare(app, truth, "s", work, every=10 * SECOND)
        marker = await app.jetstream.ticks.marker("default", "s")
        now = await now_of(app)
        one = Placing(schedule, plan(schedule, marker.progress, now), marker)
        assert one.plan.ticks
        [stored] = await app.jetstream.ticks.place([one], now.timestamp(), 1)
        assert isinstance(stored, Marker)
        before = slots_of(await standing(truth))  # their lanes change as they fire
        server.kill()
        server.start()
        await eventually(lambda: connected(app), 30)
        assert await app.jetstream.ticks.place([one], now.timestamp(), 2) == [None]
        assert slots_of(await standing(truth)) == before


async def connected(app: JetJobs) -> bool:
    with contextlib.suppress(BrokerError):
        return (await app.jetstream.ticks.marker("default", "s")).sequence > 0
    return False


async def test_one_stale_marker_does_not_keep_the_others_of_its_batch(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        ticks, now = app.jetstream.ticks, await now_of(app)
        placings = []
        for name in "abc":
            schedule = await put_bare(app, truth, name, work, every=30 * SECOND)
            marker = await ticks.marker("default", name)
            placings.append(Placing(schedule, plan(schedule, marker.progress, now), marker))
        await ticks.place([placings[1]], now.timestamp(), 1)
        answers = await ticks.place(placings, now.timestamp(), 2)
        assert [answer is None for answer in answers] == [False, True, False]
        for name, answer in zip("abc", answers, strict=True):
            there = await ticks.marker("default", name)
            assert answer is None or there.sequence == answer.sequence
        per_tick = Counter(subject.split(".", 5)[5] for subject in await standing_once(truth))
        assert set(per_tick.values()) == {1}
        assert len({key.split(".")[0] for key in per_tick}) == 3


async def test_a_leader_that_dies_in_the_middle_of_a_batch_leaves_nothing(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        schedule = await put_bare(app, truth, "s", work, every=20 * SECOND)
        marker, now = await app.jetstream.ticks.marker("default", "s"), await now_of(app)
        tick = plan(schedule, marker.progress, now).ticks[0]
        job = stage(app.jetstream.ticks._job(schedule, tick, now.timestamp()))
        # The first message of a batch that is never committed.
        reply = await app.jetstream.connection.ask(job.subject, job.body, _block(job, "abandoned", 1), 5.0)
        assert reply == b""
        assert await truth.jobs() == []
        async with planning(app):
            found = await eventually(lambda: placed(truth, 2), 30)
        assert set(Counter(slots_of(found)).values()) == {1}
        assert slot_token(tick.slot) in slots_of(found)


# Editing


@pytest.fixture(params=[True, False], ids=["in the batch", "after the batch"])
def takes_back(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Old ticks are removed within the batch of a change, or after it as on servers before 2.14."""
    monkeypatch.setattr(Ticks, "takes_back", request.param)
    return bool(request.param)


async def test_pause_takes_back_what_has_not_fired_and_resume_begins_anew(
    app: JetJobs, work: Any, truth: Truth, takes_back: bool
) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=2 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
            info = await app.schedules.pause("s")
            assert info.schedule.paused
            assert info.next is None
            assert await truth.jobs(lane="later") == []
            before = await truth.jobs()
            assert (await app.schedules.pause("s")).revision == info.revision  # it was already
            resumed = await app.schedules.resume("s")
            assert not resumed.schedule.paused
            await eventually(lambda: placed(truth, 20), 30)
        fired_before = set(slots_of(before))
        new = set(slots_of(await standing_once(truth))) - fired_before
        assert min(new) > slot_token(resumed.schedule.since - 2 * SECOND)


async def test_an_edit_takes_back_the_ticks_of_the_definition_before(
    app: JetJobs, work: Any, truth: Truth, takes_back: bool
) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=3 * SECOND, args={"n": 1})
        async with planning(app):
            await eventually(lambda: placed(truth, 15), 30)
            await app.schedules.put("s", work, every=5 * SECOND, args={"n": 2})
            await eventually(lambda: placed(truth, 8), 30)

            async def only_new() -> bool:
                bodies = [await body_of(truth, subject) for subject in await truth.jobs(lane="later")]
                return bool(bodies) and all(body == {"n": 2} for body in bodies)

            await eventually(only_new, 30)
        later = [datetime.strptime(uid, "%Y%m%dT%H%M%SZ") for uid in slots_of(await truth.jobs(lane="later"))]
        assert {b - a for a, b in itertools.pairwise(later)} == {5 * SECOND}


async def test_no_slot_is_lost_or_doubled_by_edits(
    app: JetJobs, work: Any, truth: Truth, takes_back: bool
) -> None:
    async with app:
        await app.provision()
        first = await app.schedules.put("s", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
            for number in range(25):
                await app.schedules.put("s", work, every=SECOND, args={"n": number})
                await asyncio.sleep(0.2)
            until = await now_of(app) + 5 * SECOND
            last = slot_token(until)

            async def planned() -> bool:
                return max(slots_of(await truth.jobs())) > last

            await eventually(planned, 30)
        slots = [uid for uid in slots_of(await standing_once(truth)) if uid <= last]
        begin = first.schedule.after(first.schedule.since)
        assert begin is not None
        assert slots == [slot_token(begin + i * SECOND) for i in range(len(slots))]
        assert slots[-1] == last


async def test_a_leader_finishes_what_an_editor_who_died_has_begun(app: JetJobs, work: Any, truth: Truth) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=2 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
            there = await app.jetstream.schedules.get("s")
            assert there is not None
            assert there.schedule is not None
            # He wrote the definition, and no more.
            paused = there.schedule.model_copy(
                update={"paused": True, "generation": "3000000000000000", "since": await now_of(app)}
            )
            await app.jetstream.schedules.put(paused, there.revision)

            async def taken_back() -> bool:
                return await truth.jobs(lane="later") == []

            await eventually(taken_back, 30)
            marker = await app.jetstream.ticks.marker("default", "s")
            assert marker.generation == "3000000000000000"


async def body_of(truth: Truth, subject: str) -> Any:
    with contextlib.suppress(Exception):  # fired in this very moment
        return json.loads((await truth.js.get_last_msg("jobs-work-default", subject)).data or b"{}")
    return {"n": 2}


async def test_delete_takes_back_what_was_planned_but_no_tick_that_is_retried(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(base=HOUR, cap=HOUR))
    async def fails() -> None:
        raise RuntimeError("no")

    async with app:
        await app.provision()
        await app.schedules.put("s", "fails", every=2 * SECOND)
        async with running(app.worker(schedules=False)), planning(app):
            await probe.finished(2, "retried", 30)
            await app.schedules.delete("s")
            with pytest.raises(ScheduleNotFound):
                await app.schedules.get("s")

            async def only_retries() -> bool:
                subjects = await truth.jobs()
                hops = [
                    (await truth.js.get_last_msg("jobs-work-default", subject)).headers or {}
                    for subject in subjects
                ]
                return len(hops) >= 2 and all(headers.get("Jetjobs-Hop") == "1" for headers in hops)

            await eventually(only_retries, 30)
        # And the name may be used again.
        info = await app.schedules.put("s", "fails", every=HOUR)
        assert info.next is not None


async def test_a_schedule_that_moves_to_another_queue_leaves_nothing_behind(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app:
        await app.provision(["default", "other"])
        await app.schedules.put("s", work, every=2 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 10), 30)
            await app.schedules.put("s", work, every=2 * SECOND, queue="other")
            await eventually(lambda: moved(truth), 30)
        await each_slot_once_over_both(truth, 2 * SECOND)


async def moved(truth: Truth) -> bool:
    """Nothing waits in the one queue any more, and the other is planned."""
    return await truth.jobs(lane="later") == [] and len(await truth.jobs("other", "later")) > 10


async def each_slot_once_over_both(truth: Truth, every: timedelta) -> None:
    slots = slots_of([*await standing_once(truth), *await standing(truth, "other")])
    assert [slot for slot, count in Counter(slots).items() if count > 1] == []
    times = [datetime.strptime(uid, "%Y%m%dT%H%M%SZ") for uid in slots]
    assert {b - a for a, b in itertools.pairwise(times)} == {every}


async def test_a_leader_ends_what_an_editor_who_died_had_left_in_another_queue(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app:
        await app.provision(["default", "other"])
        await app.schedules.put("s", work, every=2 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 10), 30)
            there = await app.jetstream.schedules.get("s")
            assert there is not None
            assert there.schedule is not None
            now = await now_of(app)
            moving = {"queue": "other", "left": ("default",), "since": now, "generation": next_generation(now)}
            await app.jetstream.schedules.put(there.schedule.model_copy(update=moving), there.revision)
            await eventually(lambda: moved(truth), 30)
        await each_slot_once_over_both(truth, 2 * SECOND)

        # The same when it was deleted, by somebody who died over it.
        await app.schedules.put("d", work, every=2 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 10), 30)
        there = await app.jetstream.schedules.get("d")
        assert there is not None
        await app.jetstream.schedules.delete("d", there.revision, ("default",), next_generation(await now_of(app)))
        with pytest.raises(ScheduleNotFound):
            await app.schedules.delete("d")
        assert await truth.jobs(lane="later") == []


async def test_an_edit_needs_no_leader_to_be_planned(app: JetJobs, work: Any, truth: Truth) -> None:
    """So whatever becomes of the leader meanwhile, it costs no slot."""
    async with app:
        await app.provision()
        first = await app.schedules.put("s", work, every=SECOND)
        for number in range(4):
            await app.schedules.put("s", work, every=SECOND, args={"n": number})
            await asyncio.sleep(0.3)
        slots = slots_of(await standing_once(truth))
        last = await now_of(app) + 50 * SECOND
        assert max(slots) > slot_token(last)
        await each_slot_once(truth, first.schedule)
        left = await truth.subjects("jobs-work-default", "jobs.work.default.tick._taken")
        assert sum(left.values()) <= 60  # those of the last change only


async def test_after_an_outage_an_edit_still_gives_what_the_policy_promises(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        for name, misfire in (("all", "all"), ("last", "last"), ("skip", "skip")):
            await put_bare(app, truth, name, work, every=HOUR, misfire=misfire)
            await set_marker(app, name, await now_of(app) - 10 * HOUR)
            await app.schedules.put(name, work, every=2 * HOUR, misfire="skip")
        by_key = Counter(subject.split(".")[5] for subject in await truth.jobs(lane="normal"))
        keys = {name: schedule_key(name) for name in ("all", "last", "skip")}
        assert [by_key[keys[name]] for name in ("all", "last", "skip")] == [10, 1, 0]
        missed = {info.schedule.name: info.missed for info in await app.schedules.list()}
        assert missed == {"all": 0, "last": 9, "skip": 10}


async def test_one_that_is_deleted_and_put_again_has_every_slot_from_then_on(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=SECOND)
        for _ in range(5):
            await app.schedules.put("s", work, every=SECOND)
            await asyncio.sleep(0.2)
            await app.schedules.delete("s")
            again = await app.schedules.put("s", work, every=SECOND)
            slots = [uid for uid in slots_of(await standing_once(truth)) if uid > slot_token(again.schedule.since)]
            begin = again.schedule.after(again.schedule.since)
            assert begin is not None
            assert slots == [slot_token(begin + i * SECOND) for i in range(len(slots))]


async def test_a_delete_that_is_slow_leaves_alone_what_was_put_meanwhile(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=SECOND)
        await app.schedules.delete("s")
        trace = await app.jetstream.schedules.get("s")
        assert trace is not None
        again = await app.schedules.put("s", work, every=SECOND)
        before = await truth.jobs(lane="later")
        await app.jetstream.schedule_edits.finish_delete(trace)  # whoever deleted it, or met its trace
        marker = await app.jetstream.ticks.marker("default", "s")
        assert (marker.generation, marker.gone) == (again.schedule.generation, False)
        assert len(await truth.jobs(lane="later")) >= len(before) - 2


async def test_an_edit_first_ends_the_one_before_that_was_left_undone(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what nobody had planned of the one before that would belong to nobody."""

    async def die(self: Changeover, schedule: Schedule) -> Marker:
        raise ConnectionResetError("died")

    async with app:
        await app.provision()
        await put_bare(app, truth, "s", work, every=HOUR, misfire="all")
        await set_marker(app, "s", await now_of(app) - 10 * HOUR)
        with monkeypatch.context() as dying:
            dying.setattr(Changeover, "to", die)
            with pytest.raises(ConnectionResetError):
                await app.schedules.put("s", work, every=2 * HOUR)
        await app.schedules.put("s", work, every=3 * HOUR)
        assert len(await truth.jobs(lane="normal")) == 10


async def test_large_ticks_of_an_outage_are_placed_in_portions(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work(text: str) -> None: ...

    async with app:
        await app.provision()
        rule: dict[str, Any] = {"every": HOUR, "misfire": "all", "misfire_limit": 200}
        await put_bare(app, truth, "s", work, args={"text": "x" * 50_000}, **rule)
        await set_marker(app, "s", await now_of(app) - 200 * HOUR)
        await app.schedules.put("s", work, args={"text": "y"}, **rule)
        assert len(await truth.jobs(lane="normal")) == 200


async def test_a_queue_that_is_gone_keeps_no_other_schedule_from_its_ticks_and_runs_nothing_again(
    make_app: MakeApp, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()

    @app.task
    async def work() -> None: ...

    @app.task(queue="other")
    async def elsewhere() -> None: ...

    async with app:
        await app.provision(["default", "other"])
        await put_bare(app, truth, "good", work, every=SECOND)
        await put_bare(app, truth, "gone", elsewhere, every=HOUR, misfire="all")
        await set_marker(app, "gone", await now_of(app) - 100 * HOUR)
        await truth.api("STREAM.DELETE.jobs-work-other")
        async with planning(app) as planners:
            await eventually(lambda: placed(truth, 20), 30)
            await eventually(lambda: told(caplog, "schedule.unplaced"), 30)

            async def held() -> bool:
                return "gone" in planners[0].lateness()

            await eventually(held, 30)
            await app.provision(["default", "other"])

            async def marked() -> bool:
                return (await app.jetstream.ticks.marker("other", "gone")).sequence > 0

            await eventually(marked, 30)
        assert await truth.jobs(queue="other", lane="normal") == []
        warnings = [record for record in caplog.records if getattr(record, "event", "") == "schedule.unplaced"]
        assert len(warnings) == 1


async def test_a_new_rule_has_no_slot_before_it_was_made(app: JetJobs, work: Any, truth: Truth) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=HOUR)
        info = await app.schedules.put("s", work, every=SECOND)
        slots = slots_of(await standing_once(truth))
        assert slots[0] > slot_token(info.schedule.since)


async def test_two_who_move_a_schedule_from_queue_to_queue_lose_and_double_no_slot(
    make_app: MakeApp, truth: Truth
) -> None:
    app, other = make_app(), make_app("other")
    random.seed(5)
    tasks = {}
    for one in (app, other):

        @one.task
        async def first() -> None: ...

        @one.task(queue="second")
        async def second() -> None: ...

        @one.task(queue="third")
        async def third() -> None: ...

        tasks[one] = [first, second, third]
    async with app, other:
        await app.provision(["default", "second", "third"])
        begun = await app.schedules.put("s", tasks[app][0], every=SECOND)
        async with planning(app):

            async def move(one: JetJobs) -> None:
                for _ in range(12):
                    with contextlib.suppress(ScheduleConflict):
                        await one.schedules.put("s", random.choice(tasks[one]), every=SECOND)
                    await asyncio.sleep(random.uniform(0.0, 0.7))

            await asyncio.gather(move(app), move(other))
        await each_slot_once_in(truth, ("default", "second", "third"), begun.schedule)


async def each_slot_once_in(truth: Truth, queues: tuple[str, ...], schedule: Schedule) -> None:
    async def once() -> list[str] | None:
        found = [subject for queue in queues for subject in await standing(truth, queue)]
        lanes = Counter((s.split(".")[2], s.split(".", 4)[4]) for s in found)
        return None if max(lanes.values()) > 1 else slots_of(found)  # one that is being fired is seen in two lanes

    slots = await eventually(once, 10)
    assert [slot for slot, count in Counter(slots).items() if count > 1] == []
    begin, every = schedule.after(schedule.since), schedule.every
    assert begin is not None
    assert every is not None
    assert slots == [slot_token(begin + i * every) for i in range(len(slots))]


@pytest.mark.parametrize("leads", [True, False])
async def test_what_an_editor_who_died_had_left_is_ended_by_the_next_one(
    make_app: MakeApp, truth: Truth, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    app = make_app()

    @app.task
    async def first() -> None: ...

    @app.task(queue="second")
    async def second() -> None: ...

    @app.task(queue="third")
    async def third() -> None: ...

    async def die(self: Changeover, schedule: Schedule) -> Marker:
        raise ConnectionResetError("died")

    async with app:
        await app.provision(["default", "second", "third"])
        begun = await app.schedules.put("s", first, every=SECOND)
        with monkeypatch.context() as dying:
            dying.setattr(Changeover, "to", die)
            with pytest.raises(ConnectionResetError):
                await app.schedules.put("s", second, every=SECOND)
        async with planning(app) if leads else contextlib.nullcontext():
            await app.schedules.put("s", third, every=SECOND)
            await asyncio.sleep(0.5)
        await each_slot_once_in(truth, ("default", "second", "third"), begun.schedule)
        if not leads:  # else a leader may have begun there in between, and some slots are that queue's
            assert await truth.jobs(queue="second") == []


async def test_a_clock_that_is_behind_neither_holds_an_edit_up_nor_doubles_a_slot(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        first = await app.schedules.put("s", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: ready(truth, 2), 30)
        clock = app.jetstream.server_clock
        await clock.now()
        assert clock._offset is not None
        clock._offset -= 10.0
        before = (await app.jetstream.ticks.marker("default", "s")).sequence
        await app.schedules.put("s", work, every=SECOND, args={"n": 2})
        after = (await app.jetstream.ticks.marker("default", "s")).sequence
        assert after - before < 200
        await each_slot_once(truth, first.schedule)


async def test_a_generation_above_which_there_is_none_keeps_no_other_schedule_from_its_ticks(
    app: JetJobs, work: Any, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    highest = "4102444800000000"
    async with app:
        await app.provision()
        good = await put_bare(app, truth, "good", work, every=SECOND)
        evil = await put_bare(app, truth, "evil", work, every=SECOND)
        record = {"slot": (await now_of(app)).isoformat(), "generation": highest}
        await truth.js.publish("jobs.work.default.tick.evil", json.dumps(record).encode())
        async with planning(app):
            found = await eventually(lambda: placed(truth, 20), 30)
            assert {subject.split(".")[5] for subject in found} == {good.key}
            await eventually(lambda: told(caplog, "schedule.unplaced"), 30)
        info = (await truth.api("STREAM.INFO.jobs-work-default"))["state"]
        assert info["last_seq"] < 1_000
        assert evil.generation < highest


async def told(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return any(getattr(record, "event", "") == event for record in caplog.records)


@pytest.mark.parametrize("before_ms", [(10,), (30,), (60,), (230, 120), (900, 300, 20)])
async def test_edits_right_before_a_slot_neither_double_nor_lose_it(
    app: JetJobs, work: Any, truth: Truth, before_ms: tuple[int, ...]
) -> None:
    async with app:
        await app.provision()
        first = await app.schedules.put("s", work, every=2 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
            for _ in range(3):
                slot = first.schedule.after(await now_of(app) + SECOND)
                assert slot is not None
                for wait_ms in before_ms:
                    moment = slot - timedelta(milliseconds=wait_ms)
                    await asyncio.sleep(max(0.0, (moment - await now_of(app)).total_seconds()))
                    await app.schedules.put("s", work, every=2 * SECOND)
            last = slot_token(await now_of(app) + 10 * SECOND)

            async def planned() -> bool:
                return max(slots_of(await truth.jobs())) > last

            await eventually(planned, 30)
        await each_slot_once(truth, first.schedule)


async def each_slot_once(truth: Truth, schedule: Schedule) -> None:
    """From its beginning, with no hole."""
    slots = slots_of(await standing_once(truth))
    assert [slot for slot, count in Counter(slots).items() if count > 1] == []
    begin = schedule.after(schedule.since)
    assert begin is not None
    assert schedule.every is not None
    assert slots == [slot_token(begin + i * schedule.every) for i in range(len(slots))]


@pytest.mark.patient
@pytest.mark.parametrize(
    "where", ["ScheduleStore._write", "Ticks.marker", "Ticks.now", "Ticks.planned", "Ticks.change"]
)
async def test_an_editor_who_stands_still_doubles_nothing(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Once with a leader beside him, once without."""
    async with app:
        await app.provision()
        first = await app.schedules.put("s", work, every=SECOND)
        kind, name = where.split(".")
        owner = {"ScheduleStore": ScheduleStore, "Ticks": Ticks}[kind]
        original = getattr(owner, name)
        still = False

        async def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal still
            if still:
                still = False
                await asyncio.sleep(4)
            return await original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, slow)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
            still = True
            await app.schedules.put("s", work, every=SECOND)
            await eventually(lambda: placed(truth, 20), 30)
        still = True
        await app.schedules.put("s", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
        await each_slot_once(truth, first.schedule)


@pytest.mark.patient
async def test_markers_that_were_forged_or_lost_run_nothing_again(app: JetJobs, work: Any, truth: Truth) -> None:
    forged = {
        "garbled": b"garbage",
        "strange": b'{"slot": "2026-01-01T00:00:00+00:00", "generation": "zzz"}',
        "future": b'{"slot": "2026-01-01T00:00:00+00:00", "generation": "3999999999999999"}',
    }
    names = {*forged, "lost"}

    def by_schedule(subjects: list[str]) -> dict[str, list[str]]:
        return {name: slots_of([s for s in subjects if s.split(".")[5] == schedule_key(name)]) for name in names}

    async with app:
        await app.provision()
        for name in names:
            await app.schedules.put(name, work, every=SECOND, misfire="all")
        async with planning(app):
            await eventually(lambda: ready(truth, 16), 30)
            for name, body in forged.items():
                await truth.js.publish(f"jobs.work.default.tick.{name}", body)
            await truth.js.purge_stream("jobs-work-default", subject="jobs.work.default.tick.lost")
            before = {name: max(slots) for name, slots in by_schedule(await truth.jobs()).items()}

            async def go_on() -> bool:
                after = by_schedule(await truth.jobs())
                return all(max(after[name]) > before[name] for name in names)

            await eventually(go_on, 50)
        for slots in by_schedule(await standing_once(truth)).values():
            assert len(set(slots)) == len(slots)


async def test_what_was_last_is_known_through_edits(app: JetJobs, work: Any, truth: Truth) -> None:
    async with app:
        await app.provision()
        await app.schedules.put("s", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: ready(truth, 2), 30)
            for info in (
                await app.schedules.put("s", work, every=HOUR),
                await app.schedules.pause("s"),
                await app.schedules.resume("s"),
            ):
                assert info.last is not None
                assert info.last >= info.schedule.since - MINUTE


async def test_two_who_edit_one_schedule_one_wins_and_the_other_is_told(app: JetJobs, work: Any) -> None:
    async with app:
        await app.provision()
        seen = await app.schedules.put("s", work, every=MINUTE)
        answers = await asyncio.gather(
            app.schedules.put("s", work, every=2 * MINUTE, revision=seen.revision),
            app.schedules.put("s", work, every=3 * MINUTE, revision=seen.revision),
            return_exceptions=True,
        )
        [won] = [answer for answer in answers if not isinstance(answer, BaseException)]
        [lost] = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(lost, ScheduleConflict)
        assert "changed meanwhile" in str(lost)
        assert lost.hint
        assert (await app.schedules.get("s")).schedule.every == won.schedule.every
        with pytest.raises(ScheduleConflict, match="its revision is"):
            await app.schedules.put("s", work, every=MINUTE, revision=seen.revision)
        with pytest.raises(ScheduleConflict):
            await app.schedules.put("s", work, every=MINUTE, revision=0)


async def test_bad_input_is_refused_before_anything_is_stored(app: JetJobs, work: Any, truth: Truth) -> None:
    async with app:
        await app.provision()
        bad: list[tuple[type[Exception], dict[str, Any]]] = [
            (DefinitionError, {"cron": "not a cron"}),
            (DefinitionError, {"cron": "* * * * *", "tz": "Nowhere/Land"}),
            (DefinitionError, {"every": SECOND / 2}),
            (DefinitionError, {}),
            (InvalidArguments, {"every": MINUTE, "args": {"n": "many"}}),
            (InvalidArguments, {"every": MINUTE, "args": {"unknown": 1}}),
            (QueueNotFound, {"every": MINUTE, "queue": "nowhere"}),
        ]
        for kind, options in bad:
            with pytest.raises(kind):
                await app.schedules.put("s", work, **options)
        with pytest.raises(UnknownTask):
            await app.schedules.put("s", "worc", every=MINUTE)
        for change in (app.schedules.pause, app.schedules.resume, app.schedules.delete, app.schedules.run_now):
            with pytest.raises(ScheduleNotFound):
                await change("s")
        assert await truth.subjects("KV_jobs-schedules") == {}


# The code's own


async def test_what_the_code_declares_is_stored_and_what_it_drops_is_deleted(
    make_app: MakeApp, truth: Truth
) -> None:
    def version(*names: str, every: timedelta = MINUTE) -> JetJobs:
        app = make_app("billing")

        @app.task
        async def work() -> None: ...

        for name in names:
            work.every(every, name=name)
        return app

    first = version("a", "b")
    async with first:
        await first.provision()
        await first.schedules.put("by-hand", "work", every=HOUR)
        await sync_declared(first.jetstream, "billing", first.schedules_declared)
        assert [info.schedule.name for info in await first.schedules.list()] == ["a", "b", "by-hand"]
        await first.schedules.pause("a")
        revisions = {info.schedule.name: info.revision for info in await first.schedules.list()}
        await sync_declared(first.jetstream, "billing", first.schedules_declared)
        assert {info.schedule.name: info.revision for info in await first.schedules.list()} == revisions
        with pytest.raises(ScheduleConflict, match="declared in the code of app 'billing'"):
            await first.schedules.put("a", "work", every=HOUR)
        with pytest.raises(ScheduleConflict, match="declared in the code"):
            await first.schedules.delete("a")
    second = version("a", "c", "by-hand", every=2 * MINUTE)
    async with second:
        await sync_declared(second.jetstream, "billing", second.schedules_declared)
        found = {info.schedule.name: info.schedule for info in await second.schedules.list()}
        assert found.keys() == {"a", "c", "by-hand"}
        assert found["a"].paused  # through the deploy
        assert found["a"].every == 2 * MINUTE
        assert found["by-hand"].every == HOUR  # not the code's: left alone
        # An app of another name in the same namespace touches none of them.
        await sync_declared(second.jetstream, "mail", {})
        assert len(await second.schedules.list()) == 3


async def test_a_worker_stores_what_its_code_declares_and_runs_it(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    slots: list[tuple[datetime, str]] = []

    @app.task
    async def report(region: str, slot: datetime) -> None:
        tick = current_job().schedule
        assert tick is not None
        assert tick.slot == slot
        slots.append((slot, f"{region} {tick.name}"))

    report.every(SECOND, args={"region": "eu"})
    async with app:
        await app.provision()
        async with running(app.worker()):
            await probe.finished(3, "succeeded", 30)
            extra = await app.schedules.run_now("report")
            await extra.result(SOON)
    assert {text for _, text in slots} == {"eu report"}
    times = [slot for slot, _ in slots]
    assert all(slot.microsecond == 0 and slot.utcoffset() == timedelta(0) for slot in times)
    done = await truth.done()
    assert extra.id in done
    assert {done[f"{extra.id.split('-')[0]}-{slot_token(slot)}"]["state"] for slot in times[:2]} == {"succeeded"}


# Misfire and overlap


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"misfire": "last"}, 1),
        ({"misfire": "skip"}, 0),
        ({"misfire": "all"}, 72),
        ({"misfire": "all", "misfire_limit": 5}, 5),
    ],
)
async def test_after_three_days_without_a_scheduler(
    app: JetJobs, work: Any, truth: Truth, policy: dict[str, Any], expected: int
) -> None:
    async with app:
        await app.provision()
        # Counted so that now is half-way between two slots.
        now = (await now_of(app)).replace(microsecond=0)
        anchor = now - timedelta(minutes=30)
        await app.schedules.put("s", work, every=HOUR, anchor=anchor, **policy)
        await set_marker(app, "s", anchor - timedelta(hours=72))
        async with planning(app) as planners:

            async def caught_up() -> bool:
                progress = (await app.jetstream.ticks.marker("default", "s")).progress
                return progress is not None and progress.slot == anchor

            await eventually(caught_up, 30)
            assert planners[0].lateness() in ({"s": 0.0}, {})
        due = slots_of(await truth.jobs(lane="normal"))
        all_slots = [slot_token(anchor - timedelta(hours=i)) for i in range(71, -1, -1)]
        assert due == (all_slots[-expected:] if expected else [])
        assert await truth.jobs(lane="later") == []
        info = await app.schedules.get("s")
        assert info.missed == 72 - expected
        assert info.last == (anchor if expected else None)
        assert info.late_s == 0.0


async def test_with_overlap_skip_a_tick_gives_way_to_an_earlier_one_that_is_alive(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    release = asyncio.Event()
    ran: list[str] = []

    @app.task
    async def slow() -> None:
        ran.append(current_job().id)
        await release.wait()

    async with app:
        await app.provision()
        await app.schedules.put("s", slow, every=SECOND, overlap="skip")
        async with running(app.worker(schedules=False)), planning(app):
            cancelled = await probe.finished(2, "cancelled", 30)
            assert len(ran) == 1
            release.set()
            await probe.finished(2, "succeeded", 30)
            await app.schedules.pause("s")
        done = await truth.done()
        record = done[cancelled[0].job_id]
        assert record["state"] == "cancelled"
        assert "earlier tick" in json.dumps(record)
        assert cancelled[0].job_id > ran[0]


async def test_with_overlap_skip_an_earlier_tick_that_only_waits_for_its_jitter_is_not_alive(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        schedule = await put_bare(app, truth, "s", work, every=SECOND, overlap="skip", jitter=HOUR)
        now = (await now_of(app)).replace(microsecond=0)
        ticks = app.jetstream.ticks
        marker = await ticks.marker("default", "s")
        due = [Tick(now, now + HOUR), Tick(now + SECOND, now - SECOND)]
        one = Placing(schedule, Plan(tuple(due), now + SECOND), marker)
        assert (await ticks.place([one], now.timestamp(), 1))[0] is not None
        job = tick_job(schedule, due[1], now.timestamp())
        assert not await ticks.earlier(job)
        # Once it has fired it is, whatever its task is by now.
        [later] = await truth.jobs(lane="later")
        message = await truth.js.get_last_msg("jobs-work-default", later)
        await truth.js.publish(later.replace(".later.work.", ".normal.other."), message.data or b"")
        assert await ticks.earlier(job)


async def test_with_overlap_allow_ticks_run_beside_each_other(app: JetJobs, probe: Probe) -> None:
    running_now = 0
    most = asyncio.Event()

    @app.task
    async def slow() -> None:
        nonlocal running_now
        running_now += 1
        if running_now == 2:
            most.set()
        await most.wait()

    async with app:
        await app.provision()
        await app.schedules.put("s", slow, every=SECOND)
        async with running(app.worker(schedules=False)), planning(app):
            await probe.finished(2, "succeeded", 30)


# Faults


async def test_a_definition_that_cannot_be_read_keeps_no_other_from_its_ticks(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with app:
        await app.provision()
        for name, body in {"broken": b"{", "other": b'{"name": "x", "task": "t", "every": "PT1M"}'}.items():
            await truth.js.publish(f"$KV.jobs-schedules.{name}", body)
        await app.schedules.put("sound", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
            await truth.js.publish("$KV.jobs-schedules.sound2", b"\xff\xfe")
            await app.schedules.put("sound3", work, every=SECOND)
            await eventually(lambda: placed(truth, 80), 30)
        assert [info.schedule.name for info in await app.schedules.list()] == ["sound", "sound3"]
        with pytest.raises(DefinitionError, match="cannot be read"):
            await app.schedules.get("broken")
        await app.schedules.delete("broken")
        await app.schedules.put("other", work, every=MINUTE)
        assert [info.schedule.name for info in await app.schedules.list()] == ["other", "sound", "sound3"]


async def test_a_bucket_that_is_deleted_and_comes_back(app: JetJobs, work: Any, truth: Truth) -> None:
    work.every(SECOND, name="s")

    async def sync() -> None:
        await sync_declared(app.jetstream, "test", app.schedules_declared)

    async def planned(name: str) -> bool:
        key = make_schedule({"name": name, "task": "work", "every": SECOND}).key
        return key in {subject.split(".")[5] for subject in await truth.jobs(lane="later")}

    async with app:
        await app.provision()
        planner = asyncio.create_task(Planner(app.jetstream, lambda: 1, sync).run())
        await eventually(lambda: planned("s"), 30)
        await truth.api("STREAM.DELETE.KV_jobs-schedules")
        app.jetstream.connection.post(
            "$KV.jobs-schedules.s", b""
        )  # lets the planner look, and see that it is gone
        await asyncio.sleep(0.5)
        await app.provision()
        await app.schedules.put("t", work, every=2 * SECOND)
        await eventually(lambda: planned("t"), 30)

        async def declared() -> bool:
            with contextlib.suppress(BrokerError):
                return [info.schedule.name for info in await app.schedules.list()] == ["s", "t"]
            return False

        await eventually(declared, 30)
        planner.cancel()
        await asyncio.gather(planner, return_exceptions=True)
        per_tick = Counter(subject.split(".", 5)[5] for subject in await standing_once(truth))
        assert set(per_tick.values()) == {1}


@pytest.mark.patient
async def test_a_full_storage_keeps_the_tick_until_there_is_room(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("jetstream { max_file_store: 20MB }\n")
    with EmbeddedServer(extra=("-c", str(config))) as server:
        app = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

        @app.task
        async def work() -> None: ...

        async with app:
            truth = await Truth.connect(server.url)
            await app.provision()
            await truth.api(
                "STREAM.CREATE.ballast", {"name": "ballast", "subjects": ["ballast"], "num_replicas": 1}
            )
            await put_bare(app, truth, "s", work, every=20 * SECOND, misfire="all")
            await fill(truth)
            async with planning(app) as planners:

                async def late() -> bool:
                    return planners[0].lateness().get("s", 0.0) > 0.5

                await eventually(late, 50)
                assert await truth.jobs() == []
                await truth.js.purge_stream("ballast")
                found = await eventually(lambda: placed(truth, 1), 30)
            assert found
            slots = slots_of(await standing_once(truth))
            times = [datetime.strptime(uid, "%Y%m%dT%H%M%SZ") for uid in slots]
            assert {b - a for a, b in itertools.pairwise(times)} == {20 * SECOND}
            await truth.close()


async def test_one_that_cannot_be_placed_keeps_no_other_of_its_batch(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("max_payload: 131072\njetstream {}\n")
    with EmbeddedServer(extra=("-c", str(config))) as server:
        app = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

        @app.task
        async def work(text: str = "") -> None: ...

        async with app:
            truth = await Truth.connect(server.url)
            await app.provision()
            with pytest.raises(JobTooLarge):
                await app.schedules.put("large", work, every=SECOND, args={"text": "x" * 65_400})
            # By hand, as no check of ours would let it.
            large = make_schedule(
                {
                    "name": "b",
                    "task": "work",
                    "every": SECOND,
                    "args": {"text": "x" * 65_400},
                    "generation": "0000000000000001",
                }
            )
            for name in ("a", "z"):
                await app.schedules.put(name, work, every=SECOND)
            await app.jetstream.schedules.put(large, 0)
            async with planning(app):

                async def both() -> bool:
                    keys = Counter(subject.split(".")[5] for subject in await truth.jobs(lane="later"))
                    return len(keys) == 2 and min(keys.values()) > 20

                await eventually(both, 30)
            assert app.jetstream.connection.connected
            await truth.close()


async def test_markers_of_schedules_that_are_gone_are_tidied_away(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.planner.TIDY_S", 0.2)
    monkeypatch.setattr("jetjobs.worker.old_markers.FORGET_S", 0.0)
    async with app:
        await app.provision()
        for name in ("stays", "deleted", "torn"):
            await app.schedules.put(name, work, every=20 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 6), 30)
            await app.schedules.delete("deleted")
            # As if its editor had died after the definition was deleted.
            torn = await app.jetstream.schedules.get("torn")
            assert isinstance(torn, Definition)
            await app.jetstream.schedules.delete(
                "torn", torn.revision, ("default",), next_generation(await now_of(app))
            )

            async def tidy() -> bool:
                markers = await truth.subjects("jobs-work-default", "jobs.work.default.tick.*")
                return {name for name in markers if ".tick._" not in name} == {"jobs.work.default.tick.stays"}

            await eventually(tidy, 30)
        keys = {subject.split(".")[5] for subject in await truth.jobs(lane="later")}
        stays = await app.schedules.get("stays")
        assert keys == {stays.schedule.key}


async def test_the_time_is_the_servers_whatever_this_machine_says(app: JetJobs, work: Any, truth: Truth) -> None:
    class Jumping:
        """A wall clock that jumps an hour back and forth; the monotonic one of the machine."""

        jumps = 0

        def wall(self) -> float:
            self.jumps += 1
            return datetime.now(UTC).timestamp() + (3600.0 if self.jumps % 2 else -3600.0)

        def monotonic(self) -> float:
            return time.monotonic()

    from jetjobs.jetstream.server_clock import ServerClock

    async with app:
        await app.provision()
        app.jetstream.server_clock._clock = Jumping()
        clock = ServerClock(app.jetstream.connection, "KV_jobs-schedules", Jumping())
        info = await truth.api("STREAM.INFO.KV_jobs-schedules")
        there = datetime.fromisoformat(info["ts"])
        assert abs(await clock.now() - there) < 5 * SECOND
        await app.schedules.put("s", work, every=5 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 10), 30)
        times = [datetime.strptime(uid, "%Y%m%dT%H%M%SZ") for uid in slots_of(await standing_once(truth))]
        assert {b - a for a, b in itertools.pairwise(times)} == {5 * SECOND}


def test_a_schedule_says_itself_without_its_arguments() -> None:
    one = make_schedule({"name": "s", "task": "t", "every": MINUTE, "args": {"password": "hunter2"}})
    assert isinstance(one, Schedule)
    assert "hunter2" not in repr(one)
