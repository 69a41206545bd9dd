"""Schedules against a real server: placed once, fired by the server, edited, taken back, caught up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
import types
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.messages.publisher import _block, stage
from jetjobs.jetstream.schedules.ticks import tick_job
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
from jetjobs.model.schedule.plan import Mark, Plan, Step, Tick, plan, step
from jetjobs.model.schedule.schedule import Schedule, make_schedule, time_of_token, time_token
from jetjobs.worker.scheduling.declared import sync_declared
from jetjobs.worker.scheduling.planner import Planner
from tests.conftest import MakeApp
from tests.integration.test_leader import fill
from tests.support.probe import Probe, background, eventually
from tests.support.server import Truth, server_of
from tests.support.workers import provisioned, provisioned_worker, running

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SOON = timedelta(seconds=30)

pytestmark = pytest.mark.timeout(150)


@contextlib.asynccontextmanager
async def planning(*apps: JetJobs) -> AsyncIterator[list[Planner]]:
    """As if each of these apps' processes led, all at once."""
    planners = [Planner(app.jetstream, lambda: 1) for app in apps]
    async with background(*(planner.run() for planner in planners)):
        yield planners


async def now_of(app: JetJobs) -> datetime:
    return await app.jetstream.server_clock.now()


async def set_back(app: JetJobs, truth: Truth, name: str, moment: datetime, **changed: Any) -> Schedule:
    """As if the schedule had been made before that moment, and was last planned then."""
    definition = await app.jetstream.schedules.find(name)
    assert definition.schedule is not None
    schedule = definition.schedule.model_copy(update={"since": moment - HOUR, **changed})
    ack = await truth.js.publish(f"$KV.jobs-schedules.{name}", schedule.model_dump_json().encode())
    mark = {"revision": ack.seq, "planned_until": moment.isoformat()}
    subject = f"jobs.work.{schedule.queue}.mark.schedule.{name}"
    await truth.js.publish(subject, json.dumps(mark).encode(), headers={"Nats-Rollup": "sub"})
    return schedule


async def aligned(app: JetJobs, name: str) -> bool:
    """Whether the leader has seen what was written last."""
    info = await app.schedules.get(name)
    return info.planned_by == info.revision


async def standing(truth: Truth, queue: str = "default") -> list[str]:
    """The subject of each tick in the queue, as often as there are messages on it."""
    found = await truth.subjects(f"jobs-work-{queue}", f"jobs.work.{queue}.*.>")
    return sorted(s for s, count in found.items() for _ in range(count) if ".mark." not in s)


async def standing_once(truth: Truth) -> list[str]:
    """All ticks, each seen once: one that is being fired may be seen in two lanes for a moment."""

    async def once() -> list[str] | None:
        found = await standing(truth)
        doubled = [tick for tick, count in Counter(s.split(".", 4)[4] for s in found).items() if count > 1]
        return None if doubled else found

    return await eventually(once, 10)


def slots_of(subjects: list[str]) -> list[str]:
    return sorted(subject.rsplit(".", 1)[1] for subject in subjects)


def gaps(scheduled_times: list[str]) -> set[timedelta]:
    """The times between each scheduled time and the next."""
    times = [datetime.strptime(scheduled_time, "%Y%m%dT%H%M%SZ") for scheduled_time in scheduled_times]
    return {after - before for before, after in itertools.pairwise(times)}


# Placing


async def test_ticks_stand_a_minute_ahead_and_the_server_fires_them(app: JetJobs, work: Any, truth: Truth) -> None:
    async with provisioned(app):
        await app.schedules.put("often", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 50), 30)
            fired = await eventually(lambda: ready(truth, 2), 30)
        found = await standing_once(truth)
        assert gaps(slots_of(found)) == {SECOND}  # none missing in between
        message = await truth.js.get_last_msg("jobs-work-default", fired[0])
        for subject in fired:
            stored = await truth.api("STREAM.MSG.GET.jobs-work-default", {"last_by_subj": subject})
            scheduled_time = time_of_token(subject.rsplit(".", 1)[1])
            assert scheduled_time is not None
            assert datetime.fromisoformat(stored["message"]["time"]) >= scheduled_time  # never before its time
        headers = message.headers or {}
        assert headers["Jetjobs-Schedule"] == "often"
        assert time_token(datetime.fromisoformat(headers["Jetjobs-Scheduled-Time"])) == fired[0].rsplit(".", 1)[1]


async def placed(truth: Truth, count: int, queue: str = "default") -> list[str] | None:
    found = await truth.jobs(queue, "later")
    return found if len(found) >= count else None


async def ready(truth: Truth, count: int) -> list[str] | None:
    found = await truth.jobs(lane="normal")
    return found if len(found) >= count else None


async def test_two_leaders_at_once_place_every_tick_once(make_app: MakeApp, truth: Truth) -> None:
    first, second = make_app("one"), make_app("two")
    for app in (first, second):

        @app.task
        async def work() -> None: ...

    async with provisioned(first), second:
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
            scheduled_times = sorted(uid for token, uid in per_tick if token == key)
            assert gaps(scheduled_times) == {number * SECOND}


async def test_a_stale_leader_is_refused_even_after_a_restart(
    app: JetJobs, work: Any, server: EmbeddedServer, truth: Truth
) -> None:
    async with provisioned(app):
        schedule = (await app.schedules.put("s", work, every=10 * SECOND)).schedule
        now = await now_of(app)
        one = step(schedule, Mark(), plan(schedule, Mark(), now), now)
        assert one.plan.ticks
        assert await app.jetstream.ticks.store("default", [one], now) is not None
        before = slots_of(await standing(truth))  # their lanes change as they fire
        server.kill()
        server.start()
        await eventually(lambda: connected(app), 30)
        assert await app.jetstream.ticks.store("default", [one], now) is None
        assert slots_of(await standing(truth)) == before


async def connected(app: JetJobs) -> bool:
    with contextlib.suppress(BrokerError):
        return (await app.jetstream.ticks.mark("default", "s")).sequence > 0
    return False


async def test_a_leader_that_dies_in_the_middle_of_a_batch_leaves_nothing(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        schedule, now = (await app.schedules.put("s", work, every=20 * SECOND)).schedule, await now_of(app)
        tick = plan(schedule, Mark(), now).ticks[0]
        job = stage(app.jetstream.ticks._job(schedule, tick, now))
        # The first message of a batch that is never committed.
        reply = await app.jetstream.connection.ask(job.subject, job.body, _block(job, "abandoned", 1), 5.0)
        assert reply == b""
        assert await truth.jobs() == []
        async with planning(app):
            found = await eventually(lambda: placed(truth, 2), 30)
        assert set(Counter(slots_of(found)).values()) == {1}
        assert time_token(tick.scheduled_time) in slots_of(found)


# Faults of the server and of others


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
        await app.schedules.put("gone", elsewhere, every=SECOND, misfire="all")
        async with planning(app) as planners:
            await eventually(lambda: placed(truth, 50, "other"), 30)
            deleted = await now_of(app)
            await truth.api("STREAM.DELETE.jobs-work-other")
            definition = await app.jetstream.schedules.find("gone")
            assert definition.schedule is not None
            await app.jetstream.schedules.put(definition.schedule, definition)  # so that it is looked at
            await app.schedules.put("good", work, every=SECOND)
            await eventually(lambda: placed(truth, 20), 30)
            await eventually(lambda: told(caplog, "schedule.unplaced"), 30)
            assert "gone" in planners[0].lateness()
            await app.provision(["default", "other"])
            await eventually(lambda: aligned(app, "gone"), 30)
        # The leader knows how far it had planned, though the mark is gone.
        assert min(slots_of(await standing(truth, "other"))) > time_token(deleted)
        warnings = [record for record in caplog.records if getattr(record, "event", "") == "schedule.unplaced"]
        assert len([record for record in warnings if record.levelname == "WARNING"]) == 1


async def told(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return any(getattr(record, "event", "") == event for record in caplog.records)


@pytest.mark.patient
async def test_marks_that_were_forged_or_lost_run_nothing_again_and_lose_nothing(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    forged = {
        "garbled": b"garbage",
        "strange": b'{"planned_until": "2026-01-01T00:00:00+00:00", "revision": "zzz"}',
        "naive": b'{"planned_until": "2026-01-01T00:00:00", "revision": 1}',
    }
    names = {*forged, "lost"}

    def by_schedule(subjects: list[str]) -> dict[str, list[str]]:
        keys = {name: make_schedule({"name": name, "task": "t", "every": SECOND}).key for name in names}
        return {name: slots_of([s for s in subjects if s.split(".")[5] == key]) for name, key in keys.items()}

    async with provisioned(app):
        for name in names:
            await app.schedules.put(name, work, every=SECOND, misfire="all")
        async with planning(app):
            await eventually(lambda: ready(truth, 16), 30)
            for name, body in forged.items():
                await truth.js.publish(f"jobs.work.default.mark.schedule.{name}", body)
            await truth.js.purge_stream("jobs-work-default", subject="jobs.work.default.mark.schedule.lost")
            before = {
                name: max(scheduled_times) for name, scheduled_times in by_schedule(await truth.jobs()).items()
            }

            async def go_on() -> bool:
                after = by_schedule(await truth.jobs())
                return all(max(after[name]) > before[name] for name in names)

            await eventually(go_on, 70)
        for scheduled_times in by_schedule(await standing_once(truth)).values():
            assert gaps(scheduled_times) == {SECOND}


# Bad input


async def test_two_who_edit_one_schedule_one_wins_and_the_other_is_told(app: JetJobs, work: Any) -> None:
    async with provisioned(app):
        seen = await app.schedules.put("s", work, every=MINUTE)
        answers = await asyncio.gather(
            app.schedules.put("s", work, every=2 * MINUTE, revision=seen.revision),
            app.schedules.put("s", work, every=3 * MINUTE, revision=seen.revision),
            return_exceptions=True,
        )
        [won] = [answer for answer in answers if not isinstance(answer, BaseException)]
        [lost] = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(lost, ScheduleConflict)
        assert "has changed" in str(lost)
        assert lost.hint
        assert (await app.schedules.get("s")).schedule.every == won.schedule.every
        with pytest.raises(ScheduleConflict, match="its revision is"):
            await app.schedules.put("s", work, every=MINUTE, revision=seen.revision)
        with pytest.raises(ScheduleConflict):
            await app.schedules.put("s", work, every=MINUTE, revision=0)


async def test_bad_input_is_refused_before_anything_is_stored(app: JetJobs, work: Any, truth: Truth) -> None:
    async with provisioned(app):
        bad: list[tuple[type[Exception], dict[str, Any]]] = [
            (DefinitionError, {"cron": "not a cron"}),
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
    async with provisioned(first):
        await first.schedules.put("by-hand", "work", every=HOUR)
        await sync_declared(first.jetstream, "billing", first.declared_schedules)
        assert [info.schedule.name for info in await first.schedules.list()] == ["a", "b", "by-hand"]
        await first.schedules.pause("a")
        revisions = {info.schedule.name: info.revision for info in await first.schedules.list()}
        await sync_declared(first.jetstream, "billing", first.declared_schedules)
        assert {info.schedule.name: info.revision for info in await first.schedules.list()} == revisions
        with pytest.raises(ScheduleConflict, match="declared in the code of app 'billing'"):
            await first.schedules.put("a", "work", every=HOUR)
        with pytest.raises(ScheduleConflict, match="declared in the code"):
            await first.schedules.delete("a")
    second = version("a", "c", "by-hand", every=2 * MINUTE)
    async with second:
        await sync_declared(second.jetstream, "billing", second.declared_schedules)
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
    scheduled_times: list[tuple[datetime, str]] = []

    @app.task
    async def report(region: str, scheduled_time: datetime) -> None:
        tick = current_job().schedule
        assert tick is not None
        assert tick.scheduled_time == scheduled_time
        scheduled_times.append((scheduled_time, f"{region} {tick.name}"))

    report.every(SECOND, args={"region": "eu"})
    async with provisioned_worker(app):
        await probe.finished(3, "succeeded", 30)
        extra = await app.schedules.run_now("report")
        await extra.result(SOON)
    assert {text for _, text in scheduled_times} == {"eu report"}
    times = [scheduled_time for scheduled_time, _ in scheduled_times]
    assert all(
        scheduled_time.microsecond == 0 and scheduled_time.utcoffset() == timedelta(0) for scheduled_time in times
    )
    done = await truth.done()
    assert extra.id in done
    assert {
        done[f"{extra.id.split('-')[0]}-{time_token(scheduled_time)}"]["state"] for scheduled_time in times[:2]
    } == {"succeeded"}


# Misfire and overlap


@pytest.mark.parametrize(("misfire", "expected"), [("last", 1), ("skip", 0), ("all", 72)])
async def test_after_three_days_without_a_leader(
    app: JetJobs, work: Any, truth: Truth, misfire: Any, expected: int
) -> None:
    async with provisioned(app):
        await app.schedules.put("s", work, every=HOUR, misfire=misfire)
        # The last scheduled time counts as half an hour old, whatever the time is.
        now = (await now_of(app)).replace(microsecond=0)
        newest = now.replace(minute=0, second=0)
        if now - newest < timedelta(minutes=2) or now - newest > timedelta(minutes=58):
            newest -= HOUR
        await set_back(app, truth, "s", newest - 72 * HOUR, end=newest)
        async with planning(app) as planners:

            async def caught_up() -> bool:
                return (await app.jetstream.ticks.mark("default", "s")).planned_until == newest

            await eventually(caught_up, 30)
            assert planners[0].lateness() in ({"s": 0.0}, {})
        all_slots = [time_token(newest - timedelta(hours=i)) for i in range(71, -1, -1)]
        assert slots_of(await truth.jobs()) == (all_slots[-expected:] if expected else [])
        info = await app.schedules.get("s")
        assert info.missed == 72 - expected
        assert info.last == (newest if expected else None)
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

    async with provisioned(app):
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
    async with provisioned(app):
        schedule = (await app.schedules.put("s", work, every=SECOND, overlap="skip", jitter=HOUR)).schedule
        now = (await now_of(app)).replace(microsecond=0)
        ticks = app.jetstream.ticks
        due = (Tick(now, now + HOUR), Tick(now + SECOND, now - SECOND))
        assert await ticks.store("default", [Step("s", Mark(1, now), Plan(due), schedule=schedule)], now)
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

    async with provisioned(app):
        await app.schedules.put("s", slow, every=SECOND)
        async with running(app.worker(schedules=False)), planning(app):
            await probe.finished(2, "succeeded", 30)


# Faults


async def test_a_definition_that_cannot_be_read_keeps_no_other_from_its_ticks(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
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


@pytest.mark.patient
async def test_a_full_storage_keeps_the_tick_until_there_is_room(tmp_path: Path) -> None:
    async with server_of(tmp_path, "jetstream { max_file_store: 20MB }") as (app, truth):

        @app.task
        async def work() -> None: ...

        async with provisioned(app):
            await truth.api(
                "STREAM.CREATE.ballast", {"name": "ballast", "subjects": ["ballast"], "num_replicas": 1}
            )
            await app.schedules.put("s", work, every=20 * SECOND, misfire="all")
            await fill(truth)
            async with planning(app) as planners:

                async def late() -> bool:
                    return planners[0].lateness().get("s", 0.0) > 0.5

                await eventually(late, 50)
                assert await truth.jobs() == []
                await truth.js.purge_stream("ballast")
                found = await eventually(lambda: placed(truth, 1), 30)
            assert found
            assert gaps(slots_of(await standing_once(truth))) == {20 * SECOND}


async def test_one_that_cannot_be_placed_keeps_no_other_of_its_batch(tmp_path: Path) -> None:
    async with server_of(tmp_path, "max_payload: 131072\njetstream {}") as (app, truth):

        @app.task
        async def work(text: str = "") -> None: ...

        async with provisioned(app):
            with pytest.raises(JobTooLarge):
                await app.schedules.put("large", work, every=SECOND, args={"text": "x" * 65_400})
            # By hand, as no check of ours would let it.
            large = make_schedule({"name": "b", "task": "work", "every": SECOND, "args": {"text": "x" * 65_400}})
            for name in ("a", "z"):
                await app.schedules.put(name, work, every=SECOND)
            await app.jetstream.schedules.put(large, None)
            async with planning(app):

                async def both() -> bool:
                    keys = Counter(subject.split(".")[5] for subject in await truth.jobs(lane="later"))
                    return len(keys) == 2 and min(keys.values()) > 20

                await eventually(both, 30)
            assert app.jetstream.connection.connected


async def test_the_time_is_the_servers_whatever_this_machine_says(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = itertools.cycle((3600.0, -3600.0))
    clock = types.SimpleNamespace(time=lambda: time.time() + next(jumps), monotonic=time.monotonic)
    monkeypatch.setattr("jetjobs.jetstream.transport.server_clock.time", clock)
    async with provisioned(app):
        info = await truth.api("STREAM.INFO.KV_jobs-schedules")
        assert abs(await now_of(app) - datetime.fromisoformat(info["ts"])) < 5 * SECOND
        await app.schedules.put("s", work, every=5 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 10), 30)
        assert gaps(slots_of(await standing_once(truth))) == {5 * SECOND}


def test_a_schedule_says_itself_without_its_arguments() -> None:
    one = make_schedule({"name": "s", "task": "t", "every": MINUTE, "args": {"password": "hunter2"}})
    assert isinstance(one, Schedule)
    assert "hunter2" not in repr(one)
