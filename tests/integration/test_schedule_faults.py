"""Faults of the planner: foreign data in its buckets, and buckets that are deleted while it runs."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.errors import ScheduleNotFound
from jetjobs.model.errors import DefinitionError, JobTooLarge
from jetjobs.model.schedule.schedule import make_schedule, schedule_key, time_token
from jetjobs.worker.leader.duty_runner import DutyRunner
from jetjobs.worker.scheduling.declared import sync_declared
from jetjobs.worker.scheduling.planner import Planner
from tests.conftest import MakeApp
from tests.integration.test_leader import fill, lock
from tests.support.probe import background, eventually, wait_until
from tests.support.schedules import (
    MINUTE,
    SECOND,
    aligned,
    gaps,
    now_of,
    placed,
    planning,
    ready,
    ticks_in,
    ticks_once,
    times_of,
)
from tests.support.server import Truth, server_of
from tests.support.workers import provisioned

NO_NAMES = ("_pin", "z" * 80, "a.b", "Ä")

pytestmark = pytest.mark.timeout(90)


@contextlib.asynccontextmanager
async def leading(app: JetJobs) -> AsyncIterator[Planner]:
    """A planner that stores the declared schedules of the app."""

    async def sync() -> None:
        await sync_declared(app.jetstream, "test", app.declared_schedules)

    planner = Planner(app.jetstream, lambda: 1, sync)
    async with background(planner.run()):
        yield planner


async def planned(truth: Truth, name: str) -> list[str]:
    """The placed ticks of a schedule."""
    return [subject for subject in await truth.jobs(lane="later") if subject.split(".")[5] == schedule_key(name)]


def logged(caplog: pytest.LogCaptureFixture, least: int = logging.WARNING) -> list[str]:
    """The logged events of at least that level."""
    return [str(getattr(record, "event", "")) for record in caplog.records if record.levelno >= least]


# Foreign data


async def test_keys_that_are_not_schedule_names_are_ignored(
    app: JetJobs, work: Any, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    deleted = {"KV-Operation": "DEL"}
    async with provisioned(app):
        async with leading(app):
            await app.schedules.put("first", work, every=SECOND)
            await eventually(lambda: planned(truth, "first"), 30)
            for name in NO_NAMES:
                await truth.js.publish(f"$KV.jobs-schedules.{name}", b"", headers=deleted)
            # It is read after them, so when it is planned they have been read.
            await app.schedules.put("second", work, every=SECOND)
            await eventually(lambda: planned(truth, "second"), 30)
        for name in NO_NAMES:
            with pytest.raises(ScheduleNotFound):
                await app.schedules.delete(name)
    assert logged(caplog) == []


async def test_foreign_messages_among_the_marks_are_removed(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    monkeypatch.setattr("jetjobs.worker.scheduling.reconciler.KEEP_MARK", timedelta(seconds=-10))

    async def tidy() -> bool:
        found = await truth.subjects("jobs-work-default", "jobs.work.default.mark.>")
        return set(found) == {"jobs.work.default.mark._pin", "jobs.work.default.mark.schedule.s"}

    async with provisioned(app):
        await app.schedules.put("s", work, every=SECOND)
        for name in ("z" * 80, "a=b", "nobodys"):
            body = json.dumps({"by": "hand"}).encode()
            await truth.js.publish(f"jobs.work.default.mark.schedule.{name}", body)
        async with leading(app):
            await eventually(lambda: planned(truth, "s"), 30)
            await eventually(tidy, 30)
    assert logged(caplog) == []


# Deleted buckets


async def test_a_bucket_that_is_deleted_and_recreated_at_once_gets_the_declared_schedules(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    work.every(SECOND, name="declared")

    async def back() -> bool:
        return [info.schedule.name for info in await app.schedules.list()] == ["declared"]

    async with provisioned(app):
        await app.schedules.put("put", work, every=SECOND)
        async with leading(app):
            await eventually(lambda: planned(truth, "declared"), 30)
            await truth.api("STREAM.DELETE.KV_jobs-schedules")
            await app.provision()  # the planner has noticed neither
            await eventually(back, 30)

            async def planned_again() -> bool:
                info = await app.schedules.get("declared")
                return info.planned_by == info.revision and bool(await planned(truth, "declared"))

            await eventually(planned_again, 30)
    assert "schedule.bucket_new" in logged(caplog)  # besides failures while the bucket is missing


async def test_nothing_is_planned_from_memory_when_the_bucket_is_gone_and_that_is_logged_once(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jetjobs.schedules")
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.RETRY", timedelta(seconds=0.1))
    work.every(SECOND, name="s")

    async with provisioned(app), leading(app):
        await eventually(lambda: planned(truth, "s"), 30)
        await truth.api("STREAM.DELETE.KV_jobs-schedules")
        await wait_until(lambda: logged(caplog, logging.DEBUG).count("schedule.unknown") >= 4, 30)
        told_while_gone = logged(caplog)
        ticked = logged(caplog, logging.DEBUG)
        assert "schedule.ticked" not in ticked[ticked.index("schedule.unknown") :]
        await app.provision()
        await eventually(lambda: stored(app, "s"), 30)
    assert told_while_gone == logged(caplog) == ["schedule.unknown"]


async def test_an_emptied_bucket_gets_the_declared_schedules_again(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    work.every(SECOND, name="s")
    async with provisioned(app), leading(app) as planner:
        await wait_until(lambda: "s" in planner.lateness(), 30)
        await truth.js.purge_stream("KV_jobs-schedules")
        await eventually(lambda: stored(app, "s"), 30)


async def stored(app: JetJobs, name: str) -> bool:
    return [info.schedule.name for info in await app.schedules.list()] == [name]


# The leader's lock


async def test_a_missing_bucket_of_locks_is_logged_once_and_when_it_is_back(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with provisioned(app), trying(app, monkeypatch, caplog) as candidate:
        await eventually(lambda: leads(candidate))
        await truth.api("STREAM.DELETE.KV_jobs-locks")
        await eventually(lambda: asked(caplog, 4), 30)
        assert logged(caplog) == ["leader.unknown"]
        await app.provision()
        await eventually(lambda: is_told(caplog, "leader.known"))
    assert logged(caplog) == ["leader.unknown", "leader.known"]


async def test_a_lock_that_never_expires_is_logged_with_a_hint(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with provisioned(app):
        await truth.js.publish("$KV.jobs-locks.leader", b'{"holder": "ghost"}')
        async with trying(app, monkeypatch, caplog) as candidate:
            await eventually(lambda: asked(caplog, 8))
            assert logged(caplog) == ["leader.unknown"]
            [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
            assert vars(warning)["hint"] == "nats kv purge jobs-locks leader --force"
            await truth.js.purge_stream("KV_jobs-locks", subject="$KV.jobs-locks.leader")
            await eventually(lambda: leads(candidate))
            await eventually(lambda: is_told(caplog, "leader.known"))


async def test_a_lock_held_by_another_worker_is_not_logged(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with provisioned(app):
        assert await lock(app, "other").try_lock()
        tried = 0
        async with trying(app, monkeypatch, caplog) as candidate:
            ask = candidate._lock.try_lock

            async def counted() -> bool:
                nonlocal tried
                tried += 1
                return await ask()

            monkeypatch.setattr(candidate._lock, "try_lock", counted)
            await wait_until(lambda: tried >= 8)
    assert logged(caplog, logging.DEBUG) == []


@contextlib.asynccontextmanager
async def trying(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[DutyRunner]:
    """A candidate that tries more often than others and gives up sooner."""
    caplog.set_level(logging.DEBUG, "jetjobs.leader")
    monkeypatch.setattr("jetjobs.worker.leader.duty_runner.RENEW_S", 0.1)
    monkeypatch.setattr("jetjobs.jetstream.leader_lock.RENEW_S", 0.3)
    monkeypatch.setattr("jetjobs.worker.leader.duty_runner.WARN_AFTER_S", 0.3)
    candidate = DutyRunner(lock(app), [])
    async with background(candidate.run()):
        yield candidate


async def leads(candidate: DutyRunner) -> bool:
    return candidate._lock.held


async def asked(caplog: pytest.LogCaptureFixture, times: int) -> bool:
    return logged(caplog, logging.DEBUG).count("leader.unknown") >= times


async def is_told(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return event in logged(caplog)


# Queues, marks and definitions


async def test_a_missing_queue_does_not_affect_other_schedules_and_repeats_no_tick(
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
            await app.jetstream.schedules.put(definition.schedule, definition)  # so that the planner reads it
            await app.schedules.put("good", work, every=SECOND)
            await eventually(lambda: placed(truth, 20), 30)
            await eventually(lambda: is_logged(caplog, "schedule.unplaced"), 30)
            assert "gone" in planners[0].lateness()
            await app.provision(["default", "other"])
            await eventually(lambda: aligned(app, "gone"), 30)
        # The leader remembers how far it had planned, although the mark is deleted.
        assert min(times_of(await ticks_in(truth, "other"))) > time_token(deleted)
        warnings = [record for record in caplog.records if getattr(record, "event", "") == "schedule.unplaced"]
        assert len([record for record in warnings if record.levelname == "WARNING"]) == 1


async def is_logged(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return any(getattr(record, "event", "") == event for record in caplog.records)


@pytest.mark.patient
async def test_forged_or_lost_marks_neither_repeat_nor_lose_ticks(app: JetJobs, work: Any, truth: Truth) -> None:
    forged = {
        "garbled": b"garbage",
        "strange": b'{"planned_until": "2026-01-01T00:00:00+00:00", "revision": "zzz"}',
        "naive": b'{"planned_until": "2026-01-01T00:00:00", "revision": 1}',
    }
    names = {*forged, "lost"}

    def by_schedule(subjects: list[str]) -> dict[str, list[str]]:
        keys = {name: make_schedule({"name": name, "task": "t", "every": SECOND}).key for name in names}
        return {name: times_of([s for s in subjects if s.split(".")[5] == key]) for name, key in keys.items()}

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
        for scheduled_times in by_schedule(await ticks_once(truth)).values():
            assert gaps(scheduled_times) == {SECOND}


async def test_an_unreadable_definition_does_not_affect_other_schedules(
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
async def test_a_tick_is_placed_late_when_the_storage_was_full(tmp_path: Path) -> None:
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
                await wait_until(lambda: planners[0].lateness().get("s", 0.0) > 0.5, 50)
                assert await truth.jobs() == []
                await truth.js.purge_stream("ballast")
                found = await eventually(lambda: placed(truth, 1), 30)
            assert found
            assert gaps(times_of(await ticks_once(truth))) == {20 * SECOND}


async def test_a_tick_that_cannot_be_placed_does_not_affect_others_of_its_batch(tmp_path: Path) -> None:
    async with server_of(tmp_path, "max_payload: 131072\njetstream {}") as (app, truth):

        @app.task
        async def work(text: str = "") -> None: ...

        async with provisioned(app):
            with pytest.raises(JobTooLarge):
                await app.schedules.put("large", work, every=SECOND, args={"text": "x" * 65_400})
            # Written directly, because validation would refuse it.
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
