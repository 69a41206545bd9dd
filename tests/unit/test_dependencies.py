"""Dependencies: created once per scope, closed in reverse order."""

# No `from __future__ import annotations`: factories are declared inside tests.

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from jetjobs.define.dependencies import Depends, Scope, check, needs
from jetjobs.model.errors import DefinitionError


async def test_every_kind_of_factory_is_made() -> None:
    async def waiting() -> str:
        await asyncio.sleep(0)
        return "async"

    def generator() -> Iterator[str]:
        yield "generator"

    async def async_generator() -> AsyncIterator[str]:
        yield "async generator"

    async with Scope() as scope:
        made = [await scope.get(Depends(f)) for f in (lambda: "plain", waiting, generator, async_generator, dict)]
    assert made == ["plain", "async", "generator", "async generator", {}]


async def test_generators_are_closed_in_reverse_order() -> None:
    log: list[str] = []

    def first() -> Iterator[str]:
        log.append("open first")
        yield "first"
        log.append("close first")

    async def second(one: Annotated[str, Depends(first)]) -> AsyncIterator[str]:
        log.append(f"open second on {one}")
        yield "second"
        await asyncio.sleep(0)
        log.append("close second")

    def third(two: Annotated[str, Depends(second)]) -> Iterator[str]:
        log.append(f"open third on {two}")
        yield "third"
        log.append("close third")

    async with Scope() as scope:
        assert await scope.get(Depends(third)) == "third"
        log.append("run")
    assert log == [
        "open first",
        "open second on first",
        "open third on second",
        "run",
        "close third",
        "close second",
        "close first",
    ]


async def test_a_generator_hears_of_the_error_and_the_error_goes_on() -> None:
    seen: list[str] = []

    def session() -> Iterator[str]:
        try:
            yield "session"
        except ValueError as error:
            seen.append(f"roll back: {error}")
            raise

    async def job() -> None:
        async with Scope() as scope:
            await scope.get(Depends(session))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await job()
    assert seen == ["roll back: boom"]


async def test_generators_are_closed_when_a_later_one_cannot_be_made() -> None:
    log: list[str] = []

    def cleanup() -> Iterator[str]:
        try:
            yield "x"
        finally:
            log.append("finally")

    def bad(one: Annotated[str, Depends(cleanup)]) -> str:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        async with Scope() as scope:
            await scope.get(Depends(bad))
    assert log == ["finally"]


async def test_one_object_is_shared_within_a_job_and_not_between_jobs() -> None:
    made: list[object] = []

    def thing() -> object:
        made.append(object())
        return made[-1]

    def user(
        one: Annotated[object, Depends(thing)], two: Annotated[object, Depends(thing)]
    ) -> tuple[object, object]:
        return one, two

    async with Scope() as app:
        for jobs in (1, 2):
            async with Scope(app) as job:
                one, two = await job.get(Depends(user))
                assert one is two is await job.get(Depends(thing))
            assert len(made) == jobs


async def test_scope_app_is_shared_between_jobs_and_outlives_them() -> None:
    log: list[str] = []

    async def pool() -> AsyncIterator[object]:
        log.append("open pool")
        yield object()
        log.append("close pool")

    def connection(pool: Annotated[object, Depends(pool, scope="app")]) -> Iterator[object]:
        yield pool
        log.append("close connection")

    async with Scope() as app:
        pools = []
        for _ in range(2):
            async with Scope(app) as job:
                pools.append(await job.get(Depends(connection)))
        assert pools[0] is pools[1]
        assert log == ["open pool", "close connection", "close connection"]
    assert log[-1] == "close pool"


async def test_concurrent_first_use_makes_one() -> None:
    made = 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pool() -> object:
        nonlocal made
        made += 1
        begun.set()
        await go_on.wait()
        return object()

    async with Scope() as app:

        async def job() -> Any:
            async with Scope(app) as scope:
                return await scope.get(Depends(pool, scope="app"))

        jobs = [asyncio.create_task(job()) for _ in range(10)]
        await begun.wait()
        go_on.set()
        pools = await asyncio.gather(*jobs)
    assert made == 1
    assert len({id(one) for one in pools}) == 1


async def test_a_factory_that_failed_is_tried_again_by_the_next_job() -> None:
    tries = 0

    async def pool() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("not yet")
        return "pool"

    async with Scope() as app:
        with pytest.raises(OSError, match="not yet"):
            await app.get(Depends(pool, scope="app"))
        assert await app.get(Depends(pool, scope="app")) == "pool"


async def test_a_job_that_is_cancelled_while_the_pool_is_made_does_not_block_the_others() -> None:
    begun = asyncio.Event()
    first = True

    async def pool() -> str:
        nonlocal first
        if first:
            first = False
            begun.set()
            await asyncio.Event().wait()
        return "pool"

    async with Scope() as app:
        job = asyncio.create_task(app.get(Depends(pool, scope="app")))
        await begun.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert await app.get(Depends(pool, scope="app")) == "pool"


# Checked at declaration


def test_needs_lists_the_dependencies_of_a_factory() -> None:
    def db() -> str:
        return "db"

    def repository(db: Annotated[str, Depends(db)], limit: int = 5, *rest: int, **more: int) -> str:
        return db

    assert needs(Depends(repository)) == {"db": Depends(db)}
    assert needs(Depends(db)) == {}


def needy(url: str) -> str:
    return url


def unreadable(url: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    return "db"


# Otherwise the worker would call it without the argument, and each job would fail.
@pytest.mark.parametrize(("factory", "said"), [(needy, "argument 'url'"), (unreadable, "Nowhere")])
def test_a_factory_with_an_unknown_argument_is_refused(factory: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        check(Depends(factory))


def test_an_app_scoped_factory_may_not_need_a_job_scoped_one_not_even_through_another() -> None:
    def job_thing() -> str:
        return "job"

    def pool(thing: Annotated[str, Depends(job_thing)]) -> str:
        return thing

    def repository(pool: Annotated[str, Depends(pool, scope="app")]) -> str:
        return pool

    check(Depends(pool))
    for wrong in (Depends(pool, scope="app"), Depends(repository)):
        with pytest.raises(DefinitionError, match="has scope app"):
            check(wrong)


def chicken(egg: "Annotated[int, Depends(egg)]") -> int:
    return egg


def egg(chicken: "Annotated[int, Depends(chicken)]") -> int:
    return chicken


def narcissus(self: "Annotated[int, Depends(narcissus)]") -> int:
    return self


@pytest.mark.parametrize("factory", [chicken, egg, narcissus])
def test_factories_that_need_themselves_are_refused(factory: Any) -> None:
    with pytest.raises(DefinitionError, match="depends on itself"):
        check(Depends(factory))


@pytest.mark.parametrize("factory", [5, "text", None])
def test_a_factory_that_cannot_be_called_is_refused(factory: Any) -> None:
    with pytest.raises(DefinitionError, match="not callable"):
        check(Depends(factory))
