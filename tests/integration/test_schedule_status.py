"""The schedule and scheduled time of a job are shown in every state of the job."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from jetjobs import JetJobs, JobState, JobStatus, RetryPolicy
from jetjobs.model.views.job_query import JobQuery
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running


async def status_of(app: JetJobs, job_id: str, state: JobState) -> JobStatus:
    async def reached() -> JobStatus | None:
        status = await app.jobs.get(job_id)
        return status if status.state is state else None

    return await eventually(reached, 30)


async def test_a_tick_shows_its_schedule_and_scheduled_time_in_every_state(app: JetJobs, truth: Truth) -> None:
    go_on = asyncio.Event()

    @app.task
    async def good() -> None:
        await go_on.wait()

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def bad() -> None:
        raise LookupError

    @app.task
    async def plain() -> None: ...

    async with provisioned(app):
        for task in (good, bad):
            await app.schedules.put(f"s-{task.name}", task, every=timedelta(days=1))
        before = datetime.now(UTC) - timedelta(minutes=1)
        handles = {name: await app.schedules.run_now(f"s-{name}") for name in ("good", "bad")}
        other = await plain.enqueue()

        def is_tick(status: JobStatus, name: str) -> bool:
            assert status.schedule == f"s-{name}"
            assert status.scheduled_time is not None
            assert before < status.scheduled_time < datetime.now(UTC) + timedelta(minutes=1)
            return True

        for name, handle in handles.items():
            assert is_tick(await status_of(app, handle.id, JobState.QUEUED), name)
        async with running(app.worker(schedules=False)):
            assert is_tick(await status_of(app, handles["good"].id, JobState.RUNNING), "good")
            go_on.set()
            assert is_tick(await status_of(app, handles["good"].id, JobState.SUCCEEDED), "good")
            assert is_tick(await status_of(app, handles["bad"].id, JobState.DEAD), "bad")
            done = await status_of(app, other.id, JobState.SUCCEEDED)
        assert (done.schedule, done.scheduled_time) == (None, None)
        listed = [item.status async for item in app.jobs.list(JobQuery(state=JobState.DEAD))]
        assert [is_tick(status, "bad") for status in listed] == [True]
        records = await truth.done()
        assert records[handles["good"].id]["schedule"] == "s-good"
        assert "schedule" not in records[other.id]
        shown = (await app.jobs.get(handles["good"].id)).as_dict()
        assert datetime.fromisoformat(shown["scheduled_time"]).utcoffset() == timedelta(0)


async def test_a_scheduled_tick_and_one_published_without_jetjobs(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        await app.schedules.put("soon", work, every=timedelta(seconds=50))
        async with running(app.worker()):
            (subject, *_) = await eventually(lambda: truth.jobs(lane="later"), 30)
        key, uid = subject.split(".")[-2:]
        status = await app.jobs.get(f"{key}-{uid}")
        info = await app.schedules.get("soon")
        assert (status.state, status.schedule) in (
            (JobState.SCHEDULED, "soon"),
            (JobState.QUEUED, "soon"),
            (JobState.SUCCEEDED, "soon"),
        )
        assert status.scheduled_time in (info.next, info.last)
        headers = {"Jetjobs-Schedule": "x", "Jetjobs-Scheduled-Time": "yesterday", "Jetjobs-Run": "r"}
        await truth.js.publish("jobs.work.default.normal.work.-.hand", b"{}", headers=headers)
        status = await app.jobs.get("hand")
        assert (status.schedule, status.scheduled_time) == ("x", None)
