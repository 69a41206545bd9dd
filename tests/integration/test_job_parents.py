"""A job knows the job that enqueued it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, ClassVar

import pytest

from jetjobs import INJECTED, Depends, JetJobs, JobHandle, JobState, current_job
from jetjobs.model.job import JobStatus
from tests.support.job_states import HOUR, ONCE
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=20)


async def test_a_job_knows_its_parent_in_every_state(app: JetJobs, truth: Truth) -> None:
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
    """An app-scoped object: created in the first job that needs it, and active on its own afterwards."""

    enqueue: ClassVar[Callable[[], Awaitable[JobHandle[None]]]]

    def __init__(self) -> None:
        self.polling = asyncio.create_task(self._poll())

    async def _poll(self) -> str:
        return (await Polled.enqueue()).id


async def test_jobs_enqueued_by_an_app_scoped_object_are_not_children_of_the_job_that_created_it(
    app: JetJobs,
) -> None:
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
async def test_foreign_parent_headers_count_only_if_they_are_valid_ids(
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
            result = await handle.result(SOON)
        assert result[:2] == [parent, root or status.id]
        child = await app.jobs.get(result[2])
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
