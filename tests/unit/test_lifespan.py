"""Which functions are lifespans, and why others are refused."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, cast

import pytest

from jetjobs import JetJobs
from jetjobs.errors import DefinitionError, LifespanFailed
from jetjobs.worker.lifespan import make_lifespan

FORM = "write `@app.lifespan` above `async def life(app):` with one `yield`: what precedes it runs at the start"


@pytest.fixture
def app() -> JetJobs:
    return JetJobs("test")


def forms(steps: list[Any]) -> list[Any]:
    async def generator() -> AsyncIterator[None]:
        steps.append("in")
        yield
        steps.append("out")

    async def with_app(app: JetJobs) -> AsyncIterator[None]:
        steps.append(app)
        yield
        steps.append("out")

    class Manager(AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            steps.append("in")

        async def __aexit__(self, *_: object) -> None:
            steps.append("out")

    class Owner:
        async def method(self, app: JetJobs) -> AsyncIterator[None]:
            steps.append(app)
            yield
            steps.append("out")

    managed = asynccontextmanager
    return [generator, with_app, managed(generator), managed(with_app), Manager, Owner().method]


@pytest.mark.parametrize("number", range(6))
async def test_accepted_forms_are_entered_and_left_with_the_app_if_they_take_it(app: JetJobs, number: int) -> None:
    steps: list[Any] = []
    function = forms(steps)[number]
    assert app.lifespan(function) is function
    async with app._lifespans[0]():
        assert steps in (["in"], [app])
    assert steps[1:] == ["out"]


async def coroutine() -> None: ...


def generator() -> Iterator[None]:
    yield


def plain() -> None: ...


async def two(app: JetJobs, other: int) -> AsyncIterator[None]:
    yield


async def named(*, other: int) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (coroutine, "lifespan 'coroutine' does not yield"),
        (generator, "lifespan 'generator' is a plain generator: it must be an `async def`"),
        (contextmanager(generator), "lifespan 'generator' is a plain generator: it must be an `async def`"),
        (plain, "lifespan 'plain' is not an async generator function"),
        (asynccontextmanager(cast(Any, plain)), "lifespan 'plain' is not an async generator function"),
        (int, "lifespan 'int' is not an async generator function"),
        (3, "lifespan '3' is not an async generator function"),
        (two, "lifespan 'two' takes app, other; it gets at most the app"),
        (named, "lifespan 'named' takes other; it gets at most the app"),
    ],
)
def test_anything_else_is_refused_at_declaration(app: JetJobs, wrong: Any, text: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        app.lifespan(wrong)
    assert str(raised.value) == text
    assert raised.value.hint == FORM
    assert not app._lifespans


async def test_an_error_names_the_lifespan_and_when_it_was_raised(app: JetJobs) -> None:
    @app.lifespan
    async def first() -> AsyncIterator[None]:
        raise ValueError("no\ndatabase")
        yield

    @app.lifespan
    async def last() -> AsyncIterator[None]:
        yield
        raise OSError("gone")

    @app.lifespan
    async def empty() -> AsyncIterator[None]:
        if app.name == "other":
            yield

    where = "test_an_error_names_the_lifespan_and_when_it_was_raised.<locals>."
    for lifespan, text, cause in zip(
        app._lifespans,
        (
            f"lifespan '{where}first' failed while the worker was starting: ValueError: no database",
            f"lifespan '{where}last' failed while the worker was stopping: OSError: gone",
            f"lifespan '{where}empty' did not yield",
        ),
        (ValueError, OSError, RuntimeError),
        strict=True,
    ):
        with pytest.raises(LifespanFailed) as raised:
            async with lifespan():
                pass
        assert str(raised.value) == text
        assert type(raised.value.__cause__) is cause


async def test_an_error_of_the_worker_passes_through(app: JetJobs) -> None:
    @app.lifespan
    async def life() -> AsyncIterator[None]:
        yield

    with pytest.raises(KeyError, match="own"):
        async with app._lifespans[0]():
            raise KeyError("own")


async def test_a_lifespan_that_does_not_yield_once_is_named_with_what_is_wrong(app: JetJobs) -> None:
    async def never() -> AsyncIterator[None]:
        if app.name == "other":
            yield

    async def twice() -> AsyncIterator[None]:
        yield
        yield

    for function, text in ((never, "never' did not yield"), (twice, "twice' yielded more than once")):
        with pytest.raises(LifespanFailed, match=text) as caught:
            async with make_lifespan(function, app)():
                pass
        assert caught.value.hint == "it must yield exactly once"


async def test_an_exit_in_a_lifespan_is_reported(app: JetJobs) -> None:
    async def leave() -> AsyncIterator[None]:
        sys.exit(3)
        yield

    with pytest.raises(LifespanFailed, match="leave' failed while the worker was starting: SystemExit: 3"):
        async with make_lifespan(leave, app)():
            pass
