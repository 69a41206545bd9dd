"""Definitions of schedules: validated at declaration, read from the server."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AwareDatetime

from jetjobs import Depends, JetJobs
from jetjobs.define.router import Router
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.schedule.schedule import EPOCH, Interval, Schedule, make_schedule, read_schedule, time_token

MINUTE = timedelta(minutes=1)
FEBRUARY, MARCH = datetime(2027, 2, 1, tzinfo=UTC), datetime(2027, 3, 1, tzinfo=UTC)
FORGED = [
    b'{"name":"s","task":"t","every":"PT1M",' + rest + b"}"
    for rest in (
        b'"secret":"a\\nb"',
        b'"since":"abc"',
        b'"since":"9999-01-01T00:00:00Z"',
        b'"priority":"later"',
        b'"queue":"x 0\\r\\n\\r\\nPUB y"',
    )
]


def app_with_task() -> tuple[JetJobs, Any]:
    app = JetJobs("test")

    @app.task(queue="mail", priority="low")
    async def report(region: str, scheduled_time: datetime, copies: int = 1) -> None: ...

    return app, report


def test_a_schedule_takes_what_its_task_says() -> None:
    app, report = app_with_task()
    assert report.cron("0 9 * * 1-5", tz="Europe/Berlin", args={"region": "eu"}) is report
    declared = app.declared_schedules["report"]
    assert (declared.task, declared.queue, declared.priority) == ("report", "mail", "low")
    assert (declared.args, declared.takes_scheduled_time) == ({"region": "eu"}, True)


def test_a_slot_of_ones_own_is_left_alone() -> None:
    app, report = app_with_task()
    report.every(MINUTE, args={"region": "eu", "scheduled_time": datetime(2026, 1, 1, tzinfo=UTC)})
    assert not app.declared_schedules["report"].takes_scheduled_time
    assert app.declared_schedules["report"].args["scheduled_time"].startswith("2026-01-01")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "61 * * * *"}, "61"),
        ({"every": True}, "schedule 's': invalid every True"),
        ({"every": MINUTE, "jitter": True}, "schedule 's': invalid jitter True"),
        (
            {"cron": "0 0 1 1 *", "start": FEBRUARY, "end": MARCH},
            "no scheduled time is between start and end",
        ),
        ({"cron": "0 0 30 2 *"}, "schedule 's'"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "Mars/Olympus"),
        ({"cron": "* * * * *", "every": MINUTE}, "either cron or every"),
        ({}, "either cron or every"),
        ({"every": timedelta(milliseconds=500)}, "at least one second"),
        ({"every": timedelta(0)}, "at least one second"),
        ({"every": -MINUTE}, "a duration cannot be negative"),
        ({"every": timedelta(seconds=1.5)}, "whole seconds"),
        ({"every": timedelta(days=10_000)}, "ten years"),
        ({"every": MINUTE, "start": datetime(2026, 1, 1)}, "no time zone"),
        ({"every": MINUTE, "start": MARCH, "end": FEBRUARY}, "end is before start"),
        ({"every": MINUTE, "jitter": timedelta(hours=2)}, "jitter"),
        ({"every": MINUTE, "misfire": "sometimes"}, "misfire"),
        ({"every": MINUTE, "overlap": "never"}, "overlap"),
        ({"every": MINUTE, "name": "_pin"}, "_pin"),
        ({"every": MINUTE, "name": "a.b"}, "a.b"),
        ({"every": MINUTE, "queue": "a b"}, "a b"),
        ({"every": MINUTE, "priority": "later"}, "priority"),
        ({"every": MINUTE, "tz": "Europe/Berlin"}, "tz needs cron"),
        ({"every": MINUTE, "args": {"x": "y" * 70_000}}, "arguments exceed"),
        ({"every": MINUTE, "args": {"x": "ä" * 35_000}}, "arguments exceed"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        make_schedule({"name": "s", "task": "t", **options})
    assert said in str(refused.value)


def test_the_limit_of_arguments_counts_their_bytes() -> None:
    text = "ä" * 30_000  # 60,000 bytes, and three times as many when escaped
    assert make_schedule({"name": "s", "task": "t", "every": MINUTE, "args": {"x": text}}).args == {"x": text}


def test_the_zone_that_holds_anyway_may_be_given_with_an_interval() -> None:
    assert make_schedule({"name": "s", "task": "t", "every": MINUTE, "tz": "UTC"}).tz == "UTC"


def test_arguments_that_do_not_fit_are_refused_at_declaration() -> None:
    _, report = app_with_task()
    with pytest.raises(InvalidArguments, match="region"):
        report.every(MINUTE)
    with pytest.raises(InvalidArguments, match="copies"):
        report.every(MINUTE, args={"region": "eu", "copies": "many"})
    with pytest.raises(DefinitionError, match="unknown schedule option 'timezone'"):
        report.every(MINUTE, args={"region": "eu"}, timezone="UTC")
    with pytest.raises(DefinitionError, match="args"):
        report.every(MINUTE, args=["eu"])


def test_a_name_is_declared_once_over_all_routers() -> None:
    app, report = app_with_task()
    report.every(MINUTE, args={"region": "eu"})
    with pytest.raises(DefinitionError, match="declared twice"):
        report.cron("@daily", args={"region": "us"})
    report.cron("@daily", args={"region": "us"}, name="report-us")

    router = Router()

    @router.task
    async def ping() -> None: ...

    ping.every(MINUTE, name="report-us")
    with pytest.raises(DefinitionError, match="declared twice"):
        app.include(router)
    assert "ping" not in app.tasks

    other = Router()

    @other.task
    async def pong() -> None: ...

    pong.every(MINUTE)
    app.include(other)
    pong.every(MINUTE, name="pong-again")
    assert {"pong", "pong-again"} <= app.declared_schedules.keys()


@given(st.integers(1, 10**6), st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1)))
def test_intervals_count_from_1970(every: int, at: datetime) -> None:
    rule = Interval(timedelta(seconds=every))
    moment = at.replace(tzinfo=UTC)
    later, earlier = rule.after(moment), rule.before(moment)
    assert later is not None
    assert earlier is not None
    assert earlier <= moment < later
    assert later - earlier == timedelta(seconds=every)
    assert (later - EPOCH) % timedelta(seconds=every) == timedelta(0)


def test_what_is_stored_is_read_as_it_was() -> None:
    one = make_schedule(
        {
            "name": "s",
            "task": "t",
            "args": {"n": 1, "text": "ä"},
            "every": "90s",
            "start": datetime(2026, 1, 1, tzinfo=UTC),
            "jitter": timedelta(seconds=5),
            "since": datetime(2026, 1, 2, tzinfo=UTC),
        }
    )
    assert one.every == timedelta(seconds=90)
    assert read_schedule(one.model_dump_json().encode()) == one


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"name":"s","task":"t"}', b"[" * 100_000, *FORGED])
def test_an_invalid_definition_is_read_as_none(data: bytes) -> None:
    assert read_schedule(data) is None


def test_a_definition_of_a_newer_version_is_read() -> None:
    one = read_schedule(
        b'{"name": "s", "task": "t", "every": "PT1M", "since": "2026-01-01T00:00:00Z", "colour": "blue"}'
    )
    assert isinstance(one, Schedule)
    assert one.every == MINUTE
    assert (
        read_schedule(b'{"name": "s", "task": "t", "every": "PT1M"}') is None
    )  # without since: not written by jetjobs


def test_since_when_a_definition_counts() -> None:
    then, now = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)

    def stored(**values: Any) -> Schedule:
        return make_schedule({"name": "s", "task": "t", "every": MINUTE, "since": then, **values})

    on, paused = stored(), stored(paused=True)
    assert on.over(None, now).since == now  # created
    assert stored(args={"n": 1}, queue="other", jitter=MINUTE).over(on, now).since == then  # edited
    assert paused.over(on, now).since == paused.over(paused, now).since == then
    assert on.over(paused, now).since == now  # resumed
    for rule in ({"every": 2 * MINUTE}, {"end": now}, {"every": None, "cron": "@daily"}):
        assert stored(**rule).over(on, now).since == now  # another rule


@given(st.datetimes(datetime(1971, 1, 1), datetime(2260, 1, 1)), st.integers(1, 10**9))
def test_tokens_of_slots_sort_by_time(scheduled_time: datetime, seconds: int) -> None:
    later = scheduled_time + timedelta(seconds=seconds)
    assert time_token(scheduled_time.replace(tzinfo=UTC)) < time_token(later.replace(tzinfo=UTC))


def test_a_schedule_is_the_same_but_for_what_the_server_keeps() -> None:
    one = make_schedule({"name": "s", "task": "t", "every": MINUTE})
    assert one.same_as(one.model_copy(update={"paused": True, "since": datetime.now(UTC)}))
    assert not one.same_as(one.model_copy(update={"priority": "high"}))


@given(st.integers(0, 3_000_000), st.integers(1, 5))
def test_a_start_within_a_second_is_kept_and_slots_go_on(micros: int, every: int) -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    one = make_schedule({"name": "s", "task": "t", "every": timedelta(seconds=every), "start": start})
    first = one.after(start - MINUTE)
    assert first is not None
    assert first >= start
    second = one.after(first)
    assert second is not None
    assert second - first == timedelta(seconds=every)
    assert one.before(first) == first
    assert one.before(first - timedelta(microseconds=1)) is None


@pytest.mark.parametrize(
    ("hint", "takes"),
    [
        (datetime, True),
        (datetime | None, True),
        (Annotated[datetime, "x"], True),
        (Annotated[datetime | None, "x"], True),
        (AwareDatetime, True),
        (datetime | str, True),
        (Any, False),
        (str, False),
        (date, False),
    ],
)
def test_a_slot_is_filled_in_where_a_time_fits(hint: Any, takes: bool) -> None:
    async def work(scheduled_time: Any = None) -> None: ...

    work.__annotations__["scheduled_time"] = hint
    app = JetJobs("test")
    app.task(work).every(MINUTE)
    assert app.declared_schedules["work"].takes_scheduled_time is takes


def test_an_end_that_has_passed_is_fine_in_code_and_so_is_one_slot() -> None:
    app, report = app_with_task()
    new_year = datetime(2020, 1, 1, tzinfo=UTC)
    report.cron("0 0 1 1 *", args={"region": "eu"}, end=new_year)
    assert app.declared_schedules["report"].after(new_year) is None
    only = make_schedule({"name": "s", "task": "t", "cron": "0 0 1 1 *", "start": new_year, "end": new_year})
    assert only.after(EPOCH) == new_year


@pytest.mark.parametrize("is_async", [True, False])
def test_cron_as_a_decorator_says_how_it_is_written(is_async: bool) -> None:
    app = JetJobs("test")

    async def awaited() -> None: ...

    def called() -> None: ...

    async def other() -> None: ...

    report: Any = app.task(name="report")(awaited if is_async else called)
    # What `@report.cron("@daily")` above a function does.
    with pytest.raises(
        DefinitionError, match="called with function 'other': cron and every of a task are not decorators"
    ) as at:
        report.cron("@daily")(other)
    assert at.value.hint == "to schedule other, write @app.cron(...) or @app.every(...) above its @app.task"
    with pytest.raises(DefinitionError, match="not decorators"):
        report.every(MINUTE, name="often")(app.task(other))


def connect() -> str:
    return "real"


def test_a_task_may_be_called_with_a_function_where_one_may_stand() -> None:
    app = JetJobs("test")

    @app.task
    def report(source: Annotated[Any, Depends(connect)], times: int = 1) -> Any:
        return source() * times

    report.cron("@daily")
    assert report(lambda: "fake") == "fake"
    assert report(lambda: "fake", times=2) == "fakefake"
