"""The doctor's look at schedules: each planted fault is found by the right check, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.admin import Finding
from jetjobs.doctor.runner import run_checks
from jetjobs.model.wire.subjects import Names
from tests.conftest import MakeApp
from tests.integration.test_doctor import bad, report_of, worker_record
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker

Plant = Callable[[JetJobs, Truth], Awaitable[None]]


@pytest.fixture
async def ready(app: JetJobs) -> AsyncIterator[JetJobs]:
    """An app with a schedule, which no worker plans: its next scheduled time is far away."""

    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        await app.schedules.put("yearly", work, cron="0 0 1 1 *", start=datetime(2090, 1, 1, tzinfo=UTC))
        yield app


async def looked_at(app: JetJobs) -> list[Finding]:
    return await app.doctor(only=["schedules"])


async def rewrite(truth: Truth, of: str, /, **changes: Any) -> None:
    """Change a definition with a plain NATS client."""
    message = await truth.js.get_last_msg("KV_jobs-schedules", f"$KV.jobs-schedules.{of}")
    record = {**json.loads(message.data or b"{}"), **changes}
    await truth.js.publish(f"$KV.jobs-schedules.{record['name']}", json.dumps(record).encode())


async def test_nothing_is_found_where_all_is_well(app: JetJobs) -> None:
    @app.task
    async def work() -> None: ...

    work.every(timedelta(seconds=1))
    work.cron("0 0 * * *", name="nightly", tz="Europe/Berlin")
    async with provisioned_worker(app):

        async def stored() -> list[Finding] | None:
            found = await looked_at(app)
            return found if not bad(found) else None

        found = await eventually(stored, 30)
        assert {finding.level for finding in found} == {"ok"}, report_of(found)
        assert {finding.check for finding in found} == {
            "readable", "unknown_task", "missing_queue", "lead", "late", "declared",
        }  # fmt: skip


async def test_nothing_is_found_where_no_slot_has_come_yet(ready: JetJobs) -> None:
    found = await looked_at(ready)
    assert bad(found) == [], report_of(found)
    assert [f.text for f in found if f.check == "late"] == ["no schedule is late by more than a minute"]


async def unreadable(app: JetJobs, truth: Truth) -> None:
    await truth.js.publish("$KV.jobs-schedules.broken", b'{"name": "broken", "cron": "99 * * * *"}')


async def not_of_its_name(app: JetJobs, truth: Truth) -> None:
    message = await truth.js.get_last_msg("KV_jobs-schedules", "$KV.jobs-schedules.yearly")
    await truth.js.publish("$KV.jobs-schedules.other", message.data or b"")


async def task_is_gone(app: JetJobs, truth: Truth) -> None:
    await rewrite(truth, "yearly", name="orphan", task="gone")


async def queue_is_gone(app: JetJobs, truth: Truth) -> None:
    await rewrite(truth, "yearly", name="lost", queue="nowhere")


async def no_worker_plans(app: JetJobs, truth: Truth) -> None:
    since = datetime.now(UTC) - timedelta(seconds=200)
    await rewrite(truth, "yearly", cron="* * * * *", start=None, since=since.isoformat())
    mark = {"revision": 1, "planned_until": since.isoformat()}
    await truth.js.publish("jobs.work.default.mark.schedule.yearly", json.dumps(mark).encode())


async def begins_long_after(app: JetJobs, truth: Truth) -> None:
    await rewrite(truth, "yearly", name="someday", start=None, since="2150-01-01T00:00:00Z")


async def no_worker_can_lead(app: JetJobs, truth: Truth) -> None:
    await truth.js.delete_stream("KV_jobs-locks")


async def declared_only(app: JetJobs, truth: Truth) -> None:
    app.tasks["work"].cron("@daily", name="nightly")


async def declared_by_another(app: JetJobs, truth: Truth) -> None:
    app.tasks["work"].cron("@daily", name="yearly")


FAULTS: list[tuple[Plant, str, str, str]] = [
    (unreadable, "readable", "fail", "schedule broken cannot be read"),
    (not_of_its_name, "readable", "fail", "schedule other cannot be read"),
    (begins_long_after, "readable", "fail", "schedule someday cannot be read"),
    (no_worker_can_lead, "lead", "fail", "bucket jobs-locks does not exist: no worker can lead"),
    (task_is_gone, "unknown_task", "warn", "schedule orphan: neither this app nor a running worker has task gone"),
    (queue_is_gone, "missing_queue", "fail", "schedule lost: queue nowhere does not exist"),
    (no_worker_plans, "late", "fail", "schedule yearly is late by up to"),
    (declared_only, "declared", "warn", "schedule nightly is declared in code but not on the server"),
    (declared_by_another, "declared", "warn", "schedule yearly is declared in code but was created at run time"),
]


@pytest.mark.parametrize(("plant", "check", "level", "text"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
async def test_a_planted_fault_is_found(
    ready: JetJobs, truth: Truth, plant: Plant, check: str, level: str, text: str
) -> None:
    await plant(ready, truth)
    found = await looked_at(ready)
    assert bad(found) == [(check, level)], report_of(found)
    (finding,) = [f for f in found if f.check == check]
    assert text in finding.text
    assert finding.hint


async def test_a_task_that_only_a_live_worker_knows_is_known(
    ready: JetJobs, truth: Truth, make_app: MakeApp
) -> None:
    stranger = make_app("stranger")
    assert bad(await looked_at(stranger)) == [("unknown_task", "warn")]
    found = await run_checks(ready.settings, Names("jobs"), only=["schedules"])  # no app, no worker: who knows
    assert [f.check for f in found if f.level == "skip"] == ["unknown_task"]
    await worker_record(truth, "w1", tasks={"work": ""})
    assert bad(await looked_at(stranger)) == []
    assert bad(await run_checks(ready.settings, Names("jobs"), only=["schedules"])) == []


async def test_a_paused_schedule_is_not_late(ready: JetJobs, truth: Truth) -> None:
    await no_worker_plans(ready, truth)
    await rewrite(truth, "yearly", paused=True)
    found = await looked_at(ready)
    assert bad(found) == [], report_of(found)
    assert "1 schedule, 1 paused" in report_of(found)


async def test_a_bucket_that_is_gone_is_one_finding(ready: JetJobs, truth: Truth) -> None:
    await declared_only(ready, truth)
    await truth.js.delete_stream("KV_jobs-schedules")
    (finding,) = await looked_at(ready)  # nothing is said of what cannot be known
    assert (finding.check, finding.level) == ("readable", "fail")
    assert finding.text == "bucket jobs-schedules does not exist: nothing is planned"
    assert finding.hint == "jetjobs setup apply"
    found = await ready.doctor(only=["topology"])
    assert ("plan", "fail") in bad(found), report_of(found)


async def test_many_faults_are_one_line(ready: JetJobs, truth: Truth) -> None:
    for number in range(12):
        await truth.js.publish(f"$KV.jobs-schedules.b{number:02}", b"no JSON")
    (finding,) = [f for f in await looked_at(ready) if f.level == "fail"]
    assert "schedules b00, b01, b02 and 9 more cannot be read and are not planned" in finding.text
