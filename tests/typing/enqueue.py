"""Enqueue keeps the parameters and the result of the function. Each ignore is an error that must be reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, assert_type

from jetjobs import INJECTED, Context, Depends, JetJobs, JobHandle, Router, Task
from jetjobs.define.task import JobRequest

app = JetJobs("typed")
router = Router(queue="mail")


class Database: ...


async def connect() -> AsyncIterator[Database]:
    yield Database()


@app.task
async def greet(name: str, times: int = 1) -> str:
    return name * times


@app.task(queue="mail", timeout=timedelta(seconds=5))
def resize(path: str) -> list[int]:
    return [len(path)]


@router.task(store_result=False)
async def store(n: int, db: Annotated[Database, Depends(connect)] = INJECTED) -> None: ...


@app.cron("0 9 * * 1-5", tz="Europe/Berlin")
@app.every("5m", jitter=10)
@app.task(retry=3, timeout=30, result_ttl="1h", priority="high")
async def report(day: str = "today", db: Database = Depends(connect), ctx: Context = INJECTED) -> int:
    return ctx.attempt


@router.every(60)  # type: ignore[type-var]
def forgotten() -> None: ...


async def use() -> None:
    assert_type(await greet.enqueue("Ada", times=2), JobHandle[str])
    assert_type(await (await greet.enqueue("Ada")).result(), str)
    assert_type(await greet.options(delay=timedelta(seconds=1)).enqueue("Ada"), JobHandle[str])
    assert_type(await resize.enqueue("cat.png"), JobHandle[list[int]])
    assert_type(greet.bind("Ada"), JobRequest[str])
    await store.enqueue(1)
    assert_type(await report.enqueue(), JobHandle[int])
    assert_type(await greet.enqueue_in(5, "Ada", times=2), JobHandle[str])
    assert_type(await greet.enqueue_at(datetime.now(UTC), "Ada"), JobHandle[str])
    assert_type(await (await greet.enqueue("Ada")), str)
    assert_type(await app.enqueue("send_email", {"to": "ada"}, queue="mail", delay="5m"), JobHandle[Any])
    for delay in (timedelta(seconds=5), 5, 0.5, "5m"):
        await greet.options(delay=delay, priority="low").enqueue("Ada")

    plain: Coroutine[Any, Any, str] = greet("Ada")
    assert_type(await plain, str)
    assert_type(resize("cat.png"), list[int])

    assert_type(greet.enqueue_sync("Ada", times=2), JobHandle[str])
    assert_type(greet.enqueue_sync("Ada").result_sync("10s"), str)
    assert_type(resize.options(key="k").enqueue_sync("cat.png").result_sync(10), list[int])
    assert_type(app.sync.enqueue(greet.bind("Ada")), JobHandle[str])
    greet.enqueue_sync(7)  # type: ignore[arg-type]
    greet.enqueue_sync("Ada", colour="red")  # type: ignore[call-arg]
    greet.enqueue_sync("Ada").result_sync([1])  # type: ignore[arg-type]

    await greet.enqueue(7)  # type: ignore[arg-type]
    await greet.enqueue("Ada", colour="red")  # type: ignore[call-arg]
    await greet.enqueue()  # type: ignore[call-arg]
    await greet.options(priorty="high").enqueue("Ada")  # type: ignore[call-arg]
    await greet.options(priority="urgent").enqueue("Ada")  # type: ignore[arg-type]
    await greet.enqueue_in(5, 7)  # type: ignore[arg-type]
    await greet.enqueue_in("Ada", colour="red")  # type: ignore[call-arg]
    await greet.enqueue_at("tomorrow", "Ada")  # type: ignore[arg-type]
    await app.enqueue("send_email", to="ada")  # type: ignore[call-arg]
    app.task(quue="mail")  # type: ignore[call-overload]


def takes_any_task(task: Task[Any, str]) -> None: ...


takes_any_task(greet)
takes_any_task(resize)  # type: ignore[arg-type]
