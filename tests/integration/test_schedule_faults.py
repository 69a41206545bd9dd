"""Faults around the planner: what others write into its buckets, and buckets that go away under it."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.errors import ScheduleNotFound
from jetjobs.model.schedule.schedule import schedule_key
from jetjobs.worker.leader.duty_runner import DutyRunner
from jetjobs.worker.scheduling.declared import sync_declared
from jetjobs.worker.scheduling.planner import Planner
from tests.integration.test_leader import lock
from tests.support.probe import background, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned

SECOND = timedelta(seconds=1)
NO_NAMES = ("_pin", "z" * 80, "a.b", "Ä")

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def work(app: JetJobs) -> Any:
    @app.task
    async def work() -> None: ...

    return work


@contextlib.asynccontextmanager
async def leading(app: JetJobs) -> AsyncIterator[Planner]:
    """A planner that stores what the code of the app declares."""

    async def sync() -> None:
        await sync_declared(app.jetstream, "test", app.declared_schedules)

    planner = Planner(app.jetstream, lambda: 1, sync)
    async with background(planner.run()):
        yield planner


async def planned(truth: Truth, name: str) -> list[str]:
    """The ticks of a schedule that wait for their time."""
    return [subject for subject in await truth.jobs(lane="later") if subject.split(".")[5] == schedule_key(name)]


def told(caplog: pytest.LogCaptureFixture, least: int = logging.WARNING) -> list[str]:
    """Events in the log, from a level on."""
    return [str(getattr(record, "event", "")) for record in caplog.records if record.levelno >= least]


# What others write


async def test_traces_under_names_that_no_schedule_may_have_are_passed_over(
    app: JetJobs, work: Any, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    deleted = {"KV-Operation": "DEL"}
    async with provisioned(app):
        async with leading(app):
            await app.schedules.put("first", work, every=SECOND)
            await eventually(lambda: planned(truth, "first"), 30)
            for name in NO_NAMES:
                await truth.js.publish(f"$KV.jobs-schedules.{name}", b"", headers=deleted)
            # It is heard of after them, so when it is planned they have been looked at.
            await app.schedules.put("second", work, every=SECOND)
            await eventually(lambda: planned(truth, "second"), 30)
        for name in NO_NAMES:
            with pytest.raises(ScheduleNotFound):
                await app.schedules.delete(name)
    assert told(caplog) == []


async def test_foreign_messages_among_the_marks_go_away(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    monkeypatch.setattr("jetjobs.worker.scheduling.alignment.KEPT", timedelta(seconds=-10))

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
    assert told(caplog) == []


# Buckets that go away


async def test_a_bucket_that_is_deleted_and_made_again_at_once_has_what_the_code_declares(
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
            await app.provision()  # the planner has heard nothing of either
            await eventually(back, 30)

            async def planned_again() -> bool:
                info = await app.schedules.get("declared")
                return info.planned_by == info.revision and bool(await planned(truth, "declared"))

            await eventually(planned_again, 30)
    assert "schedule.bucket_new" in told(caplog)  # beside what fails while there is no bucket


async def test_nothing_is_planned_from_memory_when_the_bucket_is_gone_and_that_is_told_once(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "jetjobs.schedules")
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.AGAIN", timedelta(seconds=0.1))
    work.every(SECOND, name="s")

    async def tried_again() -> bool:
        return told(caplog, logging.DEBUG).count("schedule.unknown") >= 4

    async with provisioned(app), leading(app):
        await eventually(lambda: planned(truth, "s"), 30)
        await truth.api("STREAM.DELETE.KV_jobs-schedules")
        await eventually(tried_again, 30)
        told_while_gone = told(caplog)
        ticked = told(caplog, logging.DEBUG)
        assert "schedule.ticked" not in ticked[ticked.index("schedule.unknown") :]
        await app.provision()
        await eventually(lambda: stored(app, "s"), 30)
    assert told_while_gone == told(caplog) == ["schedule.unknown"]


async def test_a_bucket_that_somebody_has_emptied_has_again_what_the_code_declares(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.2)
    work.every(SECOND, name="s")
    async with provisioned(app), leading(app) as planner:

        async def known() -> bool:
            return "s" in planner.lateness()

        await eventually(known, 30)
        await truth.js.purge_stream("KV_jobs-schedules")
        await eventually(lambda: stored(app, "s"), 30)


async def stored(app: JetJobs, name: str) -> bool:
    return [info.schedule.name for info in await app.schedules.list()] == [name]


# The leader's lock


async def test_a_bucket_of_locks_that_is_gone_is_told_once_and_when_it_is_back(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with provisioned(app), trying(app, monkeypatch, caplog) as candidate:
        await eventually(lambda: leads(candidate))
        await truth.api("STREAM.DELETE.KV_jobs-locks")
        await eventually(lambda: asked(caplog, 4), 30)
        assert told(caplog) == ["leader.unknown"]
        await app.provision()
        await eventually(lambda: is_told(caplog, "leader.known"))
    assert told(caplog) == ["leader.unknown", "leader.known"]


async def test_a_lock_that_never_ends_is_told_with_the_way_to_end_it(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with provisioned(app):
        await truth.js.publish("$KV.jobs-locks.leader", b'{"holder": "ghost"}')
        async with trying(app, monkeypatch, caplog) as candidate:
            await eventually(lambda: asked(caplog, 8))
            assert told(caplog) == ["leader.unknown"]
            [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
            assert vars(warning)["hint"] == "nats kv purge jobs-locks leader --force"
            await truth.js.purge_stream("KV_jobs-locks", subject="$KV.jobs-locks.leader")
            await eventually(lambda: leads(candidate))
            await eventually(lambda: is_told(caplog, "leader.known"))


async def test_a_lock_that_another_holds_is_no_cause_to_speak(
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

            async def often() -> bool:
                return tried >= 8

            await eventually(often)
    assert told(caplog, logging.DEBUG) == []


@contextlib.asynccontextmanager
async def trying(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[DutyRunner]:
    """A candidate that tries more often than others, and is sooner at its wits' end."""
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
    return told(caplog, logging.DEBUG).count("leader.unknown") >= times


async def is_told(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return event in told(caplog)
