"""What surrounds a task: lifespan, middleware, dependencies and context variables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

from jetjobs import INJECTED, CallNext, Context, Depends, JetJobs
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)

log: list[str] = []


async def for_app() -> AsyncIterator[str]:
    log.append("app dependency made")
    yield "db"
    log.append("app dependency closed")


async def for_job(db: Annotated[str, Depends(for_app, scope="app")]) -> AsyncIterator[str]:
    log.append("job dependency made")
    yield f"session on {db}"
    log.append("job dependency closed")


async def test_lifespan_middleware_and_dependencies_surround_the_attempt_in_order(app: JetJobs) -> None:
    log.clear()

    @app.lifespan
    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        log.append("worker starts")
        yield
        log.append("worker stops")

    @app.middleware
    async def outer(job: Context, call_next: CallNext) -> object:
        log.append(f"outer {job.task}")
        value = await call_next()
        log.append("outer ends")
        return f"<{value}>"

    @app.middleware
    async def inner(job: Context, call_next: CallNext) -> object:
        log.append("inner")
        return await call_next()

    @app.task
    async def work(session: Annotated[str, Depends(for_job)] = INJECTED) -> str:
        log.append("task")
        return session

    async with provisioned(app):
        handles = [await work.enqueue(), await work.enqueue()]
        async with running(app.worker(slots=1)):
            assert [await handle.result(SOON) for handle in handles] == ["<session on db>"] * 2
    one_job = ["outer work", "inner", "task", "outer ends", "job dependency closed"]
    assert log == [
        "worker starts",
        "app dependency made",
        "job dependency made",
        *one_job,
        "job dependency made",
        *one_job,
        "worker stops",
        "app dependency closed",
    ]


async def test_context_variables_of_one_job_are_not_seen_by_the_next(app: JetJobs) -> None:
    from contextvars import ContextVar

    marked: ContextVar[str] = ContextVar("marked", default="clean")

    @app.task
    async def work() -> str:
        before = marked.get()
        marked.set("dirty")
        return before

    async with provisioned(app):
        handles = [await work.enqueue() for _ in range(3)]
        async with running(app.worker(slots=1)):
            assert [await handle.result(SOON) for handle in handles] == ["clean"] * 3


async def test_a_task_may_enqueue_another(app: JetJobs) -> None:
    @app.task
    async def child(n: int) -> int:
        return n + 1

    @app.task
    async def parent(n: int) -> int:
        return await (await child.enqueue(n)).result(SOON)

    async with provisioned(app):
        handle = await parent.enqueue(1)
        async with running(app.worker()):
            assert await handle.result(SOON) == 2
