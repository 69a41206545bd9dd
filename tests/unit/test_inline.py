"""`run_inline` runs an attempt as a worker would, without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from jetjobs import (
    INJECTED,
    CallNext,
    Context,
    Depends,
    InvalidArguments,
    JetJobs,
    JetJobsError,
    Retry,
    Router,
    Snooze,
    current_job,
)
from jetjobs.errors import DefinitionError, JobTimeout
from jetjobs.model.errors import UnstorableValue
from jetjobs.testing import Inline, run_inline


class Order(BaseModel):
    id: int


class Ledger:
    def __init__(self, name: str) -> None:
        self.name = name
        self.open = True


LEDGERS: list[Ledger] = []


async def open_ledger() -> AsyncIterator[Ledger]:
    LEDGERS.append(ledger := Ledger("made"))
    yield ledger
    ledger.open = False


@pytest.fixture
def app() -> JetJobs:
    LEDGERS.clear()
    return JetJobs("inline")


async def test_the_task_gets_validated_values_and_the_result_is_sent_through_json(app: JetJobs) -> None:
    seen: list[Any] = []

    @app.task
    async def pay(order: Order, amount: float = 2) -> tuple[int, float]:
        seen.append(order)
        return order.id, amount

    assert await run_inline(pay, {"id": "7"}) == (7, 2.0)  # type: ignore[arg-type]
    assert seen == [Order(id=7)]


async def test_invalid_arguments_are_refused_before_the_task_runs(app: JetJobs) -> None:
    @app.task
    async def pay(order: Order) -> None:
        raise AssertionError("entered")

    with pytest.raises(InvalidArguments, match="order"):
        await run_inline(pay, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="ordr"):
        await run_inline(pay, ordr=7)  # type: ignore[call-arg]


async def test_a_result_without_a_json_form_is_refused(app: JetJobs) -> None:
    @app.task
    async def bad() -> Any:
        return object()

    with pytest.raises(UnstorableValue):
        await run_inline(bad)


async def test_the_current_job_is_set_only_inside_the_task(app: JetJobs) -> None:
    @app.task(queue="mail", timeout=timedelta(seconds=40))
    async def look() -> list[str]:
        job = current_job()
        assert timedelta(seconds=30) < job.remaining <= timedelta(seconds=40)
        return [job.id, job.task, job.queue, str(job.attempt), str(job.delivery), job.headers["X-Tenant"]]

    found = await Inline(attempt=3, delivery=2).run(look.options(job_id="my-id", headers={"X-Tenant": "acme"}))
    assert found == ["my-id", "look", "mail", "3", "2", "acme"]
    with pytest.raises(JetJobsError, match="no job is running here"):
        current_job()


async def test_a_plain_function_runs_in_a_thread_and_knows_its_job(app: JetJobs) -> None:
    @app.task
    def look() -> tuple[str, bool]:
        return current_job().task, threading.current_thread() is threading.main_thread()

    assert await run_inline(look) == ("look", False)


async def test_dependencies_are_made_and_closed(app: JetJobs) -> None:
    @app.task
    async def write(ledger: Annotated[Ledger, Depends(open_ledger)] = INJECTED) -> str:
        assert ledger.open
        return ledger.name

    assert await run_inline(write) == "made"
    assert [ledger.open for ledger in LEDGERS] == [False]


async def test_a_given_dependency_replaces_its_factory(app: JetJobs) -> None:
    @app.task
    async def write(ledger: Annotated[Ledger, Depends(open_ledger, scope="app")] = INJECTED) -> str:
        return ledger.name

    assert await run_inline(write, ledger=Ledger("fake")) == "fake"
    assert LEDGERS == []


async def test_middleware_wraps_the_task_in_order(app: JetJobs) -> None:
    seen: list[str] = []

    async def outer(job: Context, call_next: CallNext) -> Any:
        seen.append(f"outer {job.task}")
        return f"<{await call_next()}>"

    async def inner(job: Context, call_next: CallNext) -> Any:
        seen.append("inner")
        return await call_next()

    app.middleware(outer)
    app.middleware(inner)

    @app.task
    async def greet() -> str:
        return "hello"

    assert await run_inline(greet) == "<hello>"
    assert seen == ["outer greet", "inner"]


@pytest.mark.parametrize(
    "raised", [ValueError("no"), Retry(timedelta(hours=1)), Snooze(timedelta(hours=1)), TimeoutError("own")]
)
async def test_exceptions_of_the_task_are_raised_unchanged(app: JetJobs, raised: BaseException) -> None:
    @app.task
    async def fail() -> None:
        raise raised

    with pytest.raises(type(raised)) as caught:
        await run_inline(fail)
    assert caught.value is raised


async def test_the_time_limit_applies(app: JetJobs) -> None:
    @app.task(timeout=timedelta(milliseconds=20))
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(JobTimeout, match=r"'hang' ran longer than 0\.02 s"):
        await run_inline(hang)


async def test_an_isolated_task_runs_in_this_process(app: JetJobs) -> None:
    @app.task(isolation="process")
    def heavy(n: int) -> int:
        return n * 2

    assert await run_inline(heavy, 4) == 8


async def test_a_task_of_a_router_runs_with_the_middleware_of_the_app_that_includes_it(app: JetJobs) -> None:
    router = Router()

    @router.task
    async def greet() -> str:
        return "hello"

    with pytest.raises(DefinitionError, match="'greet' belongs to no app"):
        await run_inline(greet)
    app.include(router)

    async def loud(job: Context, call_next: CallNext) -> Any:
        return (await call_next()).upper()

    app.middleware(loud)
    assert await run_inline(greet) == "HELLO"
    other = JetJobs("other")
    other.include(router)
    with pytest.raises(DefinitionError, match="'greet' belongs to 2 apps"):
        await run_inline(greet)
    assert await Inline(app=app).run(greet) == "HELLO"
    assert await Inline(app=other).run(greet) == "hello"


class Position(BaseModel):
    page: int


async def test_checkpoints_are_kept_in_memory() -> None:
    app = JetJobs("test")

    @app.task
    async def read_on(until: int) -> list[int]:
        job = current_job()
        at = await job.resume(Position) or Position(page=0)
        seen = []
        while at.page < until:
            at.page += 1
            seen.append(at.page)
            await job.checkpoint(at)
            if at.page == 5:
                raise Retry(timedelta(0))
        return seen

    @app.task
    def read_on_in_a_thread(until: int) -> int:
        job = current_job()
        page: int = job.resume_sync(int) or 0
        job.checkpoint_sync(until)
        return page

    assert await run_inline(read_on, 2) == [1, 2]
    inline = Inline(checkpoint=Position(page=3))
    assert inline.checkpoint == {"page": 3}
    with pytest.raises(Retry):
        await inline.run(read_on, 6)
    assert inline.checkpoint == {"page": 5}
    assert await inline.run(read_on, 7) == [6, 7]
    assert inline.checkpoint == {"page": 7}
    plain = Inline(checkpoint=3)
    assert await plain.run(read_on_in_a_thread, 4) == 3
    assert plain.checkpoint == 4
    assert Inline().checkpoint is None


async def test_a_checkpoint_that_cannot_be_stored_is_refused() -> None:
    app = JetJobs("test")

    @app.task
    async def keep() -> None:
        await current_job().checkpoint("x" * 100_000)

    with pytest.raises(UnstorableValue):
        await run_inline(keep)
    with pytest.raises(UnstorableValue):
        Inline(checkpoint=object())
