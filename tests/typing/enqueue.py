"""Enqueue keeps the parameters and the result of the function. Each ignore is an error that must be reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Annotated, Any, assert_type

from jetjobs import INJECTED, Depends, JetJobs, JobHandle, Router, Task
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


async def use() -> None:
    assert_type(await greet.enqueue("Ada", times=2), JobHandle[str])
    assert_type(await (await greet.enqueue("Ada")).result(), str)
    assert_type(await greet.options(delay=timedelta(seconds=1)).enqueue("Ada"), JobHandle[str])
    assert_type(await resize.enqueue("cat.png"), JobHandle[list[int]])
    assert_type(greet.bind("Ada"), JobRequest[str])
    await store.enqueue(1)

    plain: Coroutine[Any, Any, str] = greet("Ada")
    assert_type(await plain, str)
    assert_type(resize("cat.png"), list[int])

    await greet.enqueue(7)  # type: ignore[arg-type]
    await greet.enqueue("Ada", colour="red")  # type: ignore[call-arg]
    await greet.enqueue()  # type: ignore[call-arg]
    await greet.options(priorty="high").enqueue("Ada")  # type: ignore[call-arg]
    app.task(quue="mail")  # type: ignore[call-overload]


def takes_any_task(task: Task[Any, str]) -> None: ...


takes_any_task(greet)
takes_any_task(resize)  # type: ignore[arg-type]
