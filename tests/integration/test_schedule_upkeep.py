"""Schedules that have lost their app or were written without jetjobs can be found, named and deleted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.cli.completion import _QUERIES
from jetjobs.errors import ConfigError, DefinitionError, ScheduleConflict, ScheduleNotFound
from jetjobs.worker.scheduling.declared import sync_declared
from tests.conftest import MakeApp
from tests.integration.test_doctor import bad, report_of
from tests.support.probe import eventually
from tests.support.schedules import placed, planning
from tests.support.server import Truth
from tests.support.workers import provisioned

BY_HAND = ("H.12", "_pin", "Ä/ö=", "a.b.c")


async def test_a_schedule_of_a_removed_app_is_deleted_with_force(make_app: MakeApp, truth: Truth) -> None:
    gone, other = make_app("gone"), make_app("other")

    @gone.task
    async def work() -> None: ...

    @other.task
    async def known() -> None: ...

    work.cron("@daily", name="left")
    async with provisioned(gone):
        await sync_declared(gone.jetstream, "gone", gone.declared_schedules)
    async with other:
        (finding,) = [f for f in await other.doctor(only=["schedules"]) if f.check == "unknown_task"]
        assert finding.hint == "start a worker that has it, or jetjobs schedules delete left --force"
        with pytest.raises(ScheduleConflict, match="declared in the code of app 'gone'") as refused:
            await other.schedules.delete("left")
        assert "--force" in (refused.value.hint or "")
        with pytest.raises(ScheduleConflict) as refused:
            await other.schedules.put("left", known, cron="@daily")
        assert "--force" in (refused.value.hint or "")
        await other.schedules.delete("left", force=True)
        assert await other.schedules.list() == []
        with pytest.raises(ScheduleNotFound):
            await other.schedules.delete("left", force=True)
        await other.schedules.put("left", known, cron="@daily")  # the name is available again
        found = await other.doctor(only=["schedules"])
        assert bad(found) == [], report_of(found)


async def test_the_error_for_a_name_of_another_app_has_the_command_that_frees_it(make_app: MakeApp) -> None:
    first, second = make_app("first"), make_app("second")
    for app in (first, second):

        @app.task
        async def work() -> None: ...

        work.cron("@daily", name="both")
    async with provisioned(first):
        await sync_declared(first.jetstream, "first", first.declared_schedules)
    async with second:
        (finding,) = [f for f in await second.doctor(only=["schedules"]) if f.check == "declared"]
    assert "belongs to app first" in finding.text
    assert finding.hint.endswith("jetjobs schedules delete both --force")


async def test_keys_that_are_not_schedule_names_can_be_deleted(app: JetJobs, work: Any, truth: Truth) -> None:
    async with provisioned(app):
        await app.schedules.put("sound", work, cron="@daily")
        for name in BY_HAND:
            await truth.js.publish(f"$KV.jobs-schedules.{name}", b"no JSON")
        (finding,) = [f for f in await app.doctor(only=["schedules"]) if f.check == "readable"]
        assert finding.level == "fail"
        assert finding.hint == "jetjobs schedules delete H.12"  # it cannot be replaced by a put
        assert await _QUERIES["schedules"](app) == ["sound"]
        for name in BY_HAND:
            await app.schedules.delete(name)
        found = await app.doctor(only=["schedules"])
        assert bad(found) == [], report_of(found)
        for name in ("", "*", ">", "a.*", "a..b", ".a", "a.", "a b", "a\nb", "\ud800"):
            with pytest.raises(DefinitionError, match="invalid schedule name"):
                await app.schedules.delete(name)
        with pytest.raises(DefinitionError, match="invalid"):
            await app.schedules.get("H.12")
        assert [info.schedule.name for info in await app.schedules.list()] == ["sound"]


async def test_a_purge_of_scheduled_jobs_deletes_placed_ticks(app: JetJobs, work: Any, truth: Truth) -> None:
    async with provisioned(app):
        # The jitter keeps most of the ticks waiting during the test.
        await app.schedules.put("s", work, every=timedelta(seconds=1), jitter=timedelta(hours=1))
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)
        planned = set(await truth.jobs(lane="later"))
        assert (await app.queues.purge("default", scheduled=True)).scheduled >= 15
        assert await truth.jobs(lane="later") == []
        await app.schedules.put("other", work, every=timedelta(seconds=1), jitter=timedelta(hours=1))
        async with planning(app):
            await eventually(lambda: placed(truth, 20), 30)  # so the planner has read both
        assert planned.isdisjoint(await truth.jobs(lane="later"))


@pytest.mark.parametrize("revision", [-1, "x", 1.5, 1.0, True, b"1"])
async def test_an_invalid_revision_is_a_usage_error(app: JetJobs, work: Any, revision: Any) -> None:
    async with provisioned(app):
        with pytest.raises(ConfigError, match="invalid revision"):
            await app.schedules.put("s", work, cron="@daily", revision=revision)
        assert await app.schedules.list() == []


async def test_without_a_revision_a_put_overwrites_concurrent_changes(app: JetJobs, work: Any) -> None:
    async with provisioned(app):
        stored = await asyncio.gather(
            *(app.schedules.put("s", work, cron="@daily", args={"n": number}) for number in range(3))
        )
        standing = await app.schedules.get("s")
        assert standing.revision == max(info.revision for info in stored)
        assert len({info.revision for info in stored}) == 3


async def test_a_schedule_that_would_never_run_is_refused_and_an_ended_one_is_shown_as_ended(
    app: JetJobs, work: Any
) -> None:
    now = datetime.now(UTC)
    work.every(timedelta(minutes=1), name="old", end=datetime(2020, 1, 1, tzinfo=UTC))
    work.every(timedelta(minutes=1), name="to-come", start=now + timedelta(days=1), end=now + timedelta(days=2))
    async with provisioned(app):
        for end in (now - timedelta(days=1), now + timedelta(seconds=1)):
            with pytest.raises(
                DefinitionError, match="would never run: it has no scheduled time from now until its end"
            ):
                await app.schedules.put("s", work, cron="0 0 29 2 *", end=end)
        with pytest.raises(DefinitionError, match="no scheduled time is between start and end"):
            await app.schedules.put("s", work, cron="0 0 29 2 *", start=now, end=now + timedelta(seconds=1))
        await sync_declared(app.jetstream, "test", app.declared_schedules)
        found = {info.schedule.name: info for info in await app.schedules.list()}
        assert {name: info.state for name, info in found.items()} == {"old": "ended", "to-come": "on"}
        upcoming = found["to-come"].next
        assert upcoming is not None
        assert upcoming >= now + timedelta(days=1)


async def test_a_schedule_that_starts_long_after_it_was_stored_is_not_shown_as_on(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        info = await app.schedules.put("s", work, every=timedelta(minutes=1))
        for name, away in {"far": timedelta(days=9), "near": timedelta(minutes=30)}.items():
            since = datetime.now(UTC) + away
            forged = info.schedule.model_copy(update={"name": name, "since": since})
            await truth.js.publish(f"$KV.jobs-schedules.{name}", forged.model_dump_json().encode())
        with pytest.raises(DefinitionError, match="cannot be read"):
            await app.schedules.get("far")
        near = await app.schedules.get("near")
        assert near.next is not None
        assert near.next > datetime.now(UTC) + timedelta(minutes=29)  # no earlier time is planned
