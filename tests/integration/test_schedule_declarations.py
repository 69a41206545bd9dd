"""Schedules from code and from callers: what is stored, and what is refused."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, current_job
from jetjobs.model.errors import (
    DefinitionError,
    InvalidArguments,
    QueueNotFound,
    ScheduleConflict,
    ScheduleNotFound,
    UnknownTask,
)
from jetjobs.model.schedule.schedule import Schedule, make_schedule, time_token
from jetjobs.worker.scheduling.declared import sync_declared
from tests.conftest import MakeApp
from tests.support.probe import Probe
from tests.support.schedules import HOUR, MINUTE, SECOND
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker

SOON = timedelta(seconds=30)

pytestmark = pytest.mark.timeout(150)


# Bad input


async def test_of_two_concurrent_edits_one_wins_and_the_other_fails(app: JetJobs, work: Any) -> None:
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
        assert "was changed by another process" in str(lost)
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


# Declared in code


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


# Text form


def test_a_schedule_says_itself_without_its_arguments() -> None:
    one = make_schedule({"name": "s", "task": "t", "every": MINUTE, "args": {"password": "hunter2"}})
    assert isinstance(one, Schedule)
    assert "hunter2" not in repr(one)
