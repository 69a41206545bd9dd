"""Every parameter that takes a duration accepts the same forms, and names itself when a value is invalid."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from jetjobs import JetJobs, JobHandle, Retry, RetryPolicy, Router, Snooze
from jetjobs.admin import Jobs, Queues, Workers
from jetjobs.errors import DefinitionError, Verdict
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.durations import to_duration
from jetjobs.model.settings import build_settings
from jetjobs.testing import Clock, drain


class Place(NamedTuple):
    """A parameter that takes a duration: what its error begins with, and a call with a value for it."""

    prefix: str
    name: str
    call: Callable[[Any], Any]
    read: Callable[[Any], Any] | None = None
    """Reads the duration back from what the call returned."""


def task(**options: Any) -> Any:
    @JetJobs("test").task(name="t", **options)
    async def function() -> None: ...

    return function


def scheduled(interval: Any, **options: Any) -> Any:
    app = JetJobs("test")

    async def function() -> None: ...

    app.task(name="s")(function).every(interval, **options)
    return app.declared_schedules["s"]


def decorated(interval: Any) -> Any:
    router = Router()

    @router.every(interval)
    @router.task(name="s")
    async def function() -> None: ...

    return router.declared_schedules["s"]


NOWHERE = cast(JetStreamClient, inspect.Parameter.empty)  # invalid values are refused before anything is sent


def closed(kind: Any) -> Any:
    """An object whose checks come before its connection."""
    made = object.__new__(kind)
    made._jetstream = made._connection = made._names = made._app = NOWHERE
    return made


def a_handle() -> JobHandle[None]:
    handle: JobHandle[None] = JobHandle("j", "q", "t", run="", stores_result=True, duplicate=False)
    return handle.attach(cast(Any, SimpleNamespace(jobs=closed(Jobs))), bytes)


PLACES = {
    "task timeout": Place("task 't': ", "timeout", lambda v: task(timeout=v), lambda t: t.timeout),
    "task result_ttl": Place("task 't': ", "result_ttl", lambda v: task(result_ttl=v), lambda t: t.result_ttl),
    "options delay": Place("", "delay", lambda v: task().options(delay=v)),
    "enqueue_in": Place("", "delay", lambda v: task().enqueue_in(v)),
    "app.enqueue delay": Place("", "delay", lambda v: JetJobs("test").enqueue("t", delay=v)),
    "task.every": Place("schedule 's': ", "every", scheduled, lambda s: s.every),
    "router.every": Place("schedule 's': ", "every", decorated, lambda s: s.every),
    "jitter": Place("schedule 's': ", "jitter", lambda v: scheduled("5m", jitter=v), lambda s: s.jitter),
    "Retry": Place("Retry: ", "after", Retry, lambda s: s.after),
    "Snooze": Place("Snooze: ", "after", Snooze, lambda s: s.after),
    "Verdict": Place("Verdict: ", "after", lambda v: Verdict(True, v), lambda s: s.after),
    "RetryPolicy base": Place("RetryPolicy: ", "base", lambda v: RetryPolicy(base=v), lambda p: p.base),
    "RetryPolicy cap": Place("RetryPolicy: ", "cap", lambda v: RetryPolicy(cap=v), lambda p: p.cap),
    "RetryPolicy max_age": Place(
        "RetryPolicy: ", "max_age", lambda v: RetryPolicy(max_age=v), lambda p: p.max_age
    ),
    "result": Place("", "timeout", lambda v: a_handle().result(v)),
    "shown_result": Place("", "timeout", lambda v: a_handle().shown_result(v)),
    "handle.reschedule": Place("", "delay", lambda v: a_handle().reschedule(delay=v)),
    "handle.cancel": Place("", "timeout", lambda v: a_handle().cancel(timeout=v)),
    "jobs.reschedule": Place("", "delay", lambda v: closed(Jobs).reschedule("id", delay=v)),
    "jobs.cancel": Place("", "timeout", lambda v: closed(Jobs).cancel("id", timeout=v)),
    "queues.list": Place("", "rates_over", lambda v: closed(Queues).list(rates_over=v)),
    "queues.get": Place("", "rates_over", lambda v: closed(Queues).get("q", rates_over=v)),
    "queues.pause": Place("pause: ", "for_", lambda v: closed(Queues).pause("q", for_=v)),
    "workers.quiet": Place("", "timeout", lambda v: closed(Workers).quiet("w", timeout=v)),
    "workers.stop": Place("", "timeout", lambda v: closed(Workers).stop("w", timeout=v)),
    "workers.request_all": Place("", "timeout", lambda v: closed(Workers).request_all("ping", timeout=v)),
    "Clock.advance": Place("Clock.advance: ", "by", lambda v: closed(Clock).advance(v)),
    "drain": Place("drain: ", "timeout", lambda v: drain(JetJobs("test"), timeout=v)),
}

INVALID: list[tuple[object, str]] = [
    (-5, "a duration cannot be negative"),
    (-0.5, "a duration cannot be negative"),
    (timedelta(seconds=-1), "a duration cannot be negative"),
    (math.nan, 'use a timedelta, a number of seconds, or text such as "5m"'),
    (math.inf, "too long"),
    (10**400, "too long"),
    (True, 'use a timedelta, a number of seconds, or text such as "5m"'),
    (False, 'use a timedelta, a number of seconds, or text such as "5m"'),
    ([5], 'use a timedelta, a number of seconds, or text such as "5m"'),
    ("soon", "use text such as 10s, 5m, 1h30m, 1d or 250ms"),
    ("", "use text such as 10s, 5m, 1h30m, 1d or 250ms"),
    ("-5s", "use text such as 10s, 5m, 1h30m, 1d or 250ms"),
]


async def outcome_of(call: Callable[[Any], Any], value: Any) -> Any:
    made = call(value)
    return await made if inspect.iscoroutine(made) else made


@pytest.mark.parametrize(("value", "problem"), INVALID, ids=[repr(value)[:12] for value, _ in INVALID])
@pytest.mark.parametrize("where", PLACES)
async def test_an_invalid_duration_is_refused_with_the_name_of_the_parameter(
    where: str, value: object, problem: str
) -> None:
    prefix, name, call, _ = PLACES[where]
    with pytest.raises(DefinitionError) as caught:
        await outcome_of(call, value)
    assert str(caught.value) == f"{prefix}invalid {name} {value!r:.80}: {problem}"


@pytest.mark.parametrize("value", [timedelta(minutes=5), 300, 300.0, "5m", "300", "4m60s"], ids=repr)
@pytest.mark.parametrize("where", [name for name, place in PLACES.items() if place.read is not None])
def test_every_form_of_a_duration_is_kept_as_a_timedelta(where: str, value: Any) -> None:
    place = PLACES[where]
    assert place.read is not None
    assert place.read(place.call(value)) == timedelta(minutes=5)


@pytest.mark.parametrize("call", [lambda v: task(timeout=v), lambda v: RetryPolicy(max_age=v)])
def test_a_limit_of_zero_is_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(DefinitionError, match=r"invalid (timeout|max_age) 0: use more than zero"):
        call(0)


def test_a_value_that_cannot_be_printed_is_refused_too() -> None:
    with pytest.raises(DefinitionError, match="invalid delay of type int: too long"):
        to_duration("delay", 10**5000)


def test_settings_take_the_same_forms() -> None:
    for value in (45, 45.0, "45s", timedelta(seconds=45)):
        assert build_settings({"worker": {"stop_timeout": value}}).worker.stop_timeout == timedelta(seconds=45)


def test_a_function_as_backoff_returns_any_form() -> None:
    from jetjobs.model.retry import backoff_s

    for value in (7, "7s", timedelta(seconds=7)):
        assert backoff_s(2, RetryPolicy(backoff=lambda attempt, value=value: value)) == 7.0  # type: ignore[misc]
    # What it cannot use must not lose the job: the base is used.
    assert backoff_s(2, RetryPolicy(base=3, backoff=lambda attempt: "soon")) == 3.0
