"""Middleware around an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from jetjobs.define.context import CallNext, Context, Middleware, compose
from jetjobs.model.job import Job

CONTEXT = Context(Job("u1", "greet", "mail", "normal", b"{}"), "w1", fence=1, delivery=1, deadline=0.0)


def layer(name: str, log: list[str]) -> Middleware:
    async def middleware(job: Context, call_next: CallNext) -> Any:
        assert job is CONTEXT
        log.append(f"enter {name}")
        try:
            return f"{name}({await call_next()})"
        finally:
            log.append(f"leave {name}")

    return middleware


async def test_the_first_added_is_the_outermost() -> None:
    log: list[str] = []

    async def innermost() -> str:
        log.append("run")
        return "value"

    call = compose([layer("a", log), layer("b", log), layer("c", log)], CONTEXT, innermost)
    assert log == [], "nothing runs before the call"
    assert await call() == "a(b(c(value)))"
    assert log == ["enter a", "enter b", "enter c", "run", "leave c", "leave b", "leave a"]


async def test_without_middleware_the_call_is_the_innermost() -> None:
    async def innermost() -> str:
        return "value"

    assert compose([], CONTEXT, innermost) is innermost


async def test_an_error_passes_through_every_layer() -> None:
    log: list[str] = []

    async def innermost() -> str:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await compose([layer("a", log), layer("b", log)], CONTEXT, innermost)()
    assert log == ["enter a", "enter b", "leave b", "leave a"]


async def test_a_layer_may_answer_without_going_further() -> None:
    ran: list[str] = []

    async def innermost() -> str:
        ran.append("run")
        return "value"

    async def skip(job: Context, call_next: CallNext) -> Any:
        return "skipped"

    assert await compose([skip], CONTEXT, innermost)() == "skipped"
    assert ran == []


async def test_a_layer_may_call_again() -> None:
    tries: list[int] = []

    async def innermost() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return len(tries)

    async def twice(job: Context, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except ValueError:
            return await call_next()

    assert await compose([twice, layer("a", [])], CONTEXT, innermost)() == "a(2)"
