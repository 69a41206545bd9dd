"""Cron expressions: compared with a reference that checks every minute, and invalid ones."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetjobs.model.errors import DefinitionError
from jetjobs.model.schedule.cron import Cron, zone_of
from tests.support.cron_reference import Minute, Reference, changes, walk

FIRST, LAST = 2024, 2035
SECOND = timedelta(seconds=1)
AROUND = timedelta(hours=8)
BERLIN = ZoneInfo("Europe/Berlin")

ZONES = (
    "Europe/Berlin",
    "Europe/Dublin",  # summer is its standard time
    "America/Santiago",  # at midnight, and back into the day before
    "America/Havana",  # midnight does not exist, and on another day comes twice
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Casablanca",  # by Ramadan
    "Pacific/Chatham",  # 12:45 ahead
    "UTC",
)


@lru_cache(maxsize=1024)
def around(zone: ZoneInfo, change: datetime) -> list[Minute]:
    return walk(zone, change - AROUND, change + AROUND)


@lru_cache(maxsize=64)
def moments_of(zone: ZoneInfo) -> list[datetime]:
    """Every change of the clock, and some other days."""
    ordinary = [datetime(2026, 12, 31, 18, tzinfo=UTC), datetime(2028, 2, 29, tzinfo=UTC)]
    return [*changes(zone, FIRST, LAST), *ordinary]


def upwards(cron: Cron, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    scheduled_time = cron.after(after, zone)
    while scheduled_time is not None:
        yield scheduled_time
        scheduled_time = cron.after(scheduled_time, zone)


def downwards(cron: Cron, zone: ZoneInfo, end: datetime) -> Iterator[datetime]:
    scheduled_time = cron.before(end - SECOND, zone)
    while scheduled_time is not None:
        yield scheduled_time
        scheduled_time = cron.before(scheduled_time - SECOND, zone)


def steps(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(1, high - low).map(lambda step: f"*/{step}")


def lists(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(st.integers(low, high), min_size=1, max_size=4).map(lambda some: ",".join(map(str, some)))


def ranges(low: int, high: int) -> st.SearchStrategy[str]:
    pairs = st.tuples(st.integers(low, high), st.integers(low, high)).filter(lambda pair: pair[0] != pair[1])
    return pairs.map(lambda pair: f"{pair[0]}-{pair[1]}")


def some(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), steps(low, high), lists(low, high), ranges(low, high))


MONTHS = st.one_of(st.just("*"), some(1, 12), st.sampled_from(["jan-mar", "NOV-feb", "mar,Oct", "3-11/4"]))
MONTH_DAYS = st.one_of(some(1, 28), some(1, 31), st.sampled_from(["L", "15,L", "1,l", "31,L"]))
WEEKDAYS = st.one_of(
    some(0, 6),
    st.sampled_from(["7", "sun", "MON-fri", "fri-mon", "5-7", "0-7", "1-7/2", "sat-sun", "mon#1", "2#5", "7#2"]),
    st.sampled_from(["L0", "L5", "l7", "mon#1,WED#3", "L5,fri#1", "sun#4", "sun#5"]),
)
HOURS = st.one_of(st.sampled_from(["*", "*", "0-23", "*/1", "2", "0-3", "1,2,3", "23", "*/2"]), some(0, 23))
DATES = st.one_of(
    st.just(("*", "*", "*")),
    st.tuples(MONTH_DAYS, MONTHS, st.just("*")),
    st.tuples(st.just("*"), MONTHS, WEEKDAYS),
)


def dates_of(day: datetime) -> st.SearchStrategy[tuple[str, str, str]]:
    weekday = day.isoweekday()
    return st.sampled_from(
        [
            ("*", "*", "*"),
            (f"{day.day}", f"{day.month}", "*"),
            ("*", "*", f"{weekday}"),
            ("*", f"{day.month}", f"{weekday}#{(day.day + 6) // 7}"),
            ("*", "*", f"L{weekday}"),
        ]
    )


def parsed(fields: list[str]) -> Cron | None:
    """None for dates such as the 31st of April, which the strategies also create."""
    try:
        return Cron.parse(" ".join(fields))
    except DefinitionError as error:
        assert "never" in str(error), fields
        return None


@settings(max_examples=250)
@given(st.data())
def test_scheduled_times_around_clock_changes_are_those_of_the_reference(data: st.DataObject) -> None:
    zone = zone_of(data.draw(st.sampled_from(ZONES)))
    change = data.draw(st.sampled_from(moments_of(zone)))
    date = data.draw(st.one_of(dates_of(change.astimezone(zone)), DATES))
    cron = parsed([data.draw(some(0, 59)), data.draw(HOURS), *date])
    if cron is None:
        return
    walked = around(zone, change)
    first, end = walked[0].at, walked[-1].at
    expected = [
        scheduled_time
        for scheduled_time in Reference(cron.expression).scheduled_times(walked)
        if scheduled_time < end
    ]
    now = first + data.draw(st.timedeltas(timedelta(0), end - first - SECOND))
    later = [scheduled_time for scheduled_time in expected if scheduled_time > now]
    assert [*takewhile(lambda scheduled_time: scheduled_time < end, upwards(cron, zone, now))] == later, (
        cron,
        now,
    )
    earlier = [scheduled_time for scheduled_time in expected if scheduled_time <= now]
    assert [
        *takewhile(lambda scheduled_time: scheduled_time >= first, downwards(cron, zone, now + SECOND))
    ] == earlier[::-1], cron


MOMENTS = st.datetimes(datetime(FIRST, 1, 1), datetime(LAST, 12, 31), timezones=st.just(UTC))


@settings(max_examples=200)
@given(st.tuples(some(0, 59), HOURS), DATES, MOMENTS, st.sampled_from(ZONES))
def test_before_and_after_agree_at_any_moment(
    time: tuple[str, str], date: tuple[str, str, str], now: datetime, name: str
) -> None:
    cron, zone = parsed([*time, *date]), zone_of(name)
    if cron is None:
        return
    following, earlier = cron.after(now, zone), cron.before(now, zone)
    assert following is not None
    assert earlier is not None
    assert earlier <= now < following
    assert following.utcoffset() == earlier.utcoffset() == timedelta(0)
    assert cron.after(earlier, zone) == following == cron.before(following, zone)
    assert cron.before(following - SECOND, zone) == earlier
    assert cron.after(now.astimezone(BERLIN), zone) == following  # the zone of the argument does not matter


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def some_slots(text: str, after: str, zone: str, count: int) -> list[str]:
    slots = islice(upwards(Cron.parse(text), zone_of(zone), utc(after)), count)
    return [
        scheduled_time.astimezone(zone_of(zone)).isoformat()[:22].replace("T", " ") for scheduled_time in slots
    ]


@pytest.mark.parametrize(
    ("zone", "text", "after", "first", "second"),
    [
        # Forward in Berlin: 02:00 to 03:00 does not exist on the 29th of March 2026.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00", "2026-03-29 03:30:00+02", "2026-03-30 02:30:00+02"),
        ("Europe/Berlin", "30 2,3 * * *", "2026-03-28T12:00", "2026-03-29 03:30:00+02", "2026-03-30 02:30:00+02"),
        ("Europe/Berlin", "30 2 29 3 *", "2026-03-01T12:00", "2026-03-29 03:30:00+02", "2027-03-29 02:30:00+02"),
        # Back, from 03:00 to 02:00, on the 25th of October.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", "2026-10-25 02:30:00+02", "2026-10-26 02:30:00+01"),
        ("Europe/Berlin", "0 */2 * * *", "2026-10-24T23:00", "2026-10-25 02:00:00+02", "2026-10-25 04:00:00+01"),
        ("Europe/Berlin", "0 * * * *", "2026-10-24T23:00", "2026-10-25 02:00:00+02", "2026-10-25 02:00:00+01"),
        # Midnight does not exist, or comes twice.
        ("America/Havana", "0 0 * * *", "2026-03-07T12:00", "2026-03-08 01:00:00-04", "2026-03-09 00:00:00-04"),
        ("America/Havana", "0 0 * * *", "2026-10-31T12:00", "2026-11-01 00:00:00-04", "2026-11-02 00:00:00-05"),
        # By half an hour: a quarter past two is run at a quarter to three.
        ("Australia/Lord_Howe", "15 * * * *", "2026-10-03T15:00", "2026-10-04 02:45:00+11", "2026-10-04 03:15:00+11"),  # noqa: E501
        # By a day: Samoa skipped the 30th of December 2011, Kiritimati the 31st of December 1994.
        ("Pacific/Apia", "0 9 30 12 *", "2011-12-28T12:00", "2011-12-31 09:00:00+14", "2012-12-30 09:00:00+14"),
        ("Pacific/Apia", "0 9 * * *", "2011-12-29T12:00", "2011-12-29 09:00:00-10", "2011-12-31 09:00:00+14"),
        ("Pacific/Kiritimati", "0 23 31 12 *", "1994-12-30T12:00", "1995-01-01 23:00:00+14", "1995-12-31 23:00:00+14"),  # noqa: E501
        # Leap days and last days.
        ("UTC", "0 0 29 2 *", "2095-01-01T00:00", "2096-02-29 00:00:00+00", "2104-02-29 00:00:00+00"),
        ("UTC", "0 0 L 2 *", "2027-01-01T00:00", "2027-02-28 00:00:00+00", "2028-02-29 00:00:00+00"),
        ("UTC", "0 0 * 2 thu#5", "2025-01-01T00:00", "2052-02-29 00:00:00+00", "2080-02-29 00:00:00+00"),
        ("UTC", "0 0 * * L5", "2026-01-01T00:00", "2026-01-30 00:00:00+00", "2026-02-27 00:00:00+00"),
    ],
)  # fmt: skip
def test_known_dates(zone: str, text: str, after: str, first: str, second: str) -> None:
    assert some_slots(text, after, zone, 2) == [first, second]
    assert Cron.parse(text).before(datetime.fromisoformat(f"{second}:00") - SECOND, zone_of(zone)) == (
        datetime.fromisoformat(f"{first}:00")
    )


def test_every_five_minutes_goes_on_through_the_repeated_hour() -> None:
    slots = upwards(Cron.parse("*/5 * * * *"), BERLIN, utc("2026-10-25T00:00") - SECOND)
    assert [*islice(slots, 36)] == [utc("2026-10-25T00:00") + n * timedelta(minutes=5) for n in range(36)]


def test_parts_of_a_second_do_not_matter() -> None:
    cron, nine, day = Cron.parse("0 9 * * *"), utc("2026-05-01T09:00"), timedelta(days=1)
    tiny, zone = timedelta(microseconds=1), zone_of("UTC")
    assert [cron.after(nine - tiny, zone), cron.after(nine + tiny, zone)] == [nine, nine + day]
    assert [cron.before(nine + tiny, zone), cron.before(nine - tiny, zone)] == [nine, nine - day]


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC)])
def test_a_moment_without_a_zone_or_far_away_is_refused(moment: datetime) -> None:
    for ask in (Cron.parse("0 0 * * *").after, Cron.parse("0 0 * * *").before):
        with pytest.raises(ValueError, match="time zone and a year"):
            ask(moment, BERLIN)


def test_expressions_are_values() -> None:
    one, other = Cron.parse(" 0 9\t* *   MON "), Cron.parse("0 9 * * MON")
    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    assert one.expression == "0 9 * * MON"
    assert Cron.parse("@Hourly").expression == "@Hourly"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@DAILY", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@Hourly", "0 * * * *"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * sat-sun", "0 0 * * 0,6"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 0 * nov-feb *", "0 0 * 1,2,11,12 *"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("00 09 01 * *", "0 9 1 * *"),
        ("0 0 * * l7", "0 0 * * L0"),
        ("0 0 * * Sun#2", "0 0 * * 7#2"),
    ],
)
def test_what_is_written_in_two_ways(text: str, same: str) -> None:
    now = utc("2026-05-13T09:11")
    one, other = (islice(upwards(Cron.parse(each), BERLIN, now), 40) for each in (text, same))
    assert [*one] == [*other]


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("", "0 fields", "five fields"),
        ("* " * 101, "200 characters", "five fields"),
        ("0 9 * * \u2217", "ASCII", "five fields"),
        ("٠ 9 * * *", "ASCII", "five fields"),  # croniter reads it as zero
        ("* * * *", "4 fields", "minute, hour"),
        ("* * * * * *", "6 fields", "every()"),
        ("0 0 9 * * 1", "6 fields", "every()"),
        ("0 0 1 1 * 0 2030", "7 fields", "a start and an end"),
        ("@reboot", "1 field", "lifespan"),
        ("@every 5m", "2 fields", "every()"),
        ("@fortnightly", "1 field", "@weekly"),
        ("@hourly x", "2 fields", "alone"),
        ("CRON_TZ=UTC 0 9 * * *", "6 fields", "tz="),
        # Random values would differ between processes.
        ("R * * * *", "minute 'r'", "jitter"),
        ("h(0-29)/10 * * * *", "minute 'h(0-29)/10'", "jitter"),
        ("0 0 r(1-5) * *", "day of month", "jitter"),
        ("0~30 * * * *", "minute '0~30'", "jitter"),
        # Dates that never occur.
        ("0 0 30 2 *", "never", "L"),
        ("0 0 31 4,6,9,11 *", "never", "L"),
        # Programs differ in how they interpret these.
        ("5/15 * * * *", "minute '5/15'", "5-59/15"),
        ("0 0 * * mon/2", "day of week 'mon/2'", "needs a range"),
        ("0 9-9 * * *", "one value or all", "write 9,"),
        ("0 0 * * mon-mon", "one value or all", "write mon,"),
        ("0 0 * * 7-0", "one value or all", "write 7,"),
        ("0 22-6/3 * * *", "wraps around", "commas"),
        ("0 0 * nov-feb/2 *", "wraps around", "commas"),
        ("*/60 * * * *", "first minute", "every()"),
        ("*/1000 * * * *", "minute '*/1000'", "0 to 59"),
        ("0 */24 * * *", "first hour", "every()"),
        ("0 0 */31 * *", "first day of month", "every()"),
        ("0 0 * * */7", "first day of week", "every()"),
        ("10-20/15 * * * *", "first minute", "one minute"),
        ("*/0 * * * *", "first minute", "one minute"),
        ("*,5 * * * *", "same as *", "* alone"),
        ("0 9 1-7 * mon", "whether one or both must match", "mon#1"),
        # Values.
        ("60 * * * *", "minute '60'", "0 to 59"),
        ("0 24 * * *", "hour '24'", "0 to 23"),
        ("0 0 0 * *", "day of month '0'", "1 to 31"),
        ("0 0 * 13 *", "month '13'", "jan to dec"),
        ("0 0 * * 8", "day of week '8'", "sun to sat"),
        ("0 0 * mon *", "month 'mon'", "jan to dec"),
        ("0 0 * * monday", "day of week 'monday'", "three letters"),
        ("-5 * * * *", "minute '-5'", "0 to 59"),
        ("1,,2 * * * *", "minute ''", "0 to 59"),
        ("000001 * * * *", "minute '000001'", "0 to 59"),
        # Special days as other programs write them.
        ("0 0 ? * mon", "day of month '?'", "write *"),
        ("0 0 15W * *", "day of month '15w'", "name the day"),
        ("0 0 L-3 * *", "day of month 'l-3'", "L as day of month"),
        ("0 0 25-L * *", "day of month '25-l'", "L as day of month"),
        ("0 0 * * L", "day of week 'l'", "L5"),
        ("0 0 * * friL", "day of week 'fril'", "L5"),
        ("0 0 * * mon#6", "day of week 'mon#6'", "0 to 6"),
        ("0 0 * * mon-fri#1", "day of week 'mon-fri#1'", "0 to 6"),
        ("0 0 * * mon#1,fri", "invalid", "mixing"),
    ],
)
def test_a_refusal_says_why_and_what_to_write(text: str, reason: str, hint: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Cron.parse(text)
    assert reason in str(refused.value)
    assert hint in (refused.value.hint or "")
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", [None, 5, b"* * * * *", ["*"], True])
def test_values_that_are_not_text_are_refused(text: Any) -> None:
    with pytest.raises(DefinitionError, match="must be text"):
        Cron.parse(text)


def test_the_page_of_schedules_says_the_truth_about_what_is_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "schedules.md").read_text()
    section = page.partition("### What is refused")[2].partition("###")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) >= 8
    for refused, _, instead in rows:
        for text in re.findall("`([^`]+)`", refused):
            with pytest.raises(DefinitionError):
                Cron.parse(text)
        for text in re.findall("`([^`]+)`", instead):
            if " " in text:
                Cron.parse(text)


WORDS = st.one_of(
    st.sampled_from(
        ["*", "*", "*/5", "0", "7", "07", "1-7", "0-7/2", "5-0", "mon", "JAN-dec", "L", "L5", "l07", "2#3"]
    ),
    st.text("0123456789*/-,#", min_size=1, max_size=5),
    st.text("0123456789*/-,#?~@()lLwWhHrRmonjafebsut", min_size=1, max_size=7),
)


@settings(max_examples=1000)
@given(st.one_of(st.lists(WORDS, min_size=5, max_size=5).map(" ".join), st.text(max_size=30)))
@example("@MIDNIGHT")
@example(" @Weekly\t")
def test_anything_is_either_refused_or_means_what_the_reference_reads(text: str) -> None:
    try:
        cron = Cron.parse(text)
    except DefinitionError as error:
        assert error.hint
        return
    reference = Reference(text)
    now = utc("2026-07-13T09:11:05")
    for scheduled_time in islice(upwards(cron, zone_of("UTC"), now), 4):
        assert reference.matches(scheduled_time.replace(tzinfo=None))
        assert scheduled_time > now


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "EST5EDT"]
)
def test_zones_of_the_list_are_taken(name: str) -> None:
    assert zone_of(name).key == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin?"),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("America/New York", "did you mean America/New_York?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("Asia/Berlin", "did you mean Europe/Berlin?"),
        ("America", "such as Europe/Berlin"),
        ("Mars/Olympus", "such as Europe/Berlin"),
        ("", "such as Europe/Berlin"),
        ("localtime", "such as Europe/Berlin"),
        ("Factory", "such as Europe/Berlin"),
        ("right/Europe/Berlin", "did you mean Europe/Berlin?"),
        ("posix/UTC", "did you mean UTC?"),
        ("/etc/localtime", ""),
        ("../../etc/passwd", "such as Europe/Berlin"),
        ("Europe//Berlin", ""),
        ("Europe/Berlin\n", ""),
        ("Europe/Berlin\x00", ""),
        ("tzdata.zi", ""),
        ("A" * 5000, ""),
        (None, "such as Europe/Berlin"),
    ],
)
def test_other_zones_are_refused(name: Any, hint: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        zone_of(name)
    assert hint in (refused.value.hint or "")
    assert len(str(refused.value)) < 200


@given(st.text(max_size=20))
def test_any_text_is_a_zone_or_refused(name: str) -> None:
    try:
        assert zone_of(name).key == name
    except DefinitionError as error:
        assert error.hint


def test_zones_are_there_on_a_machine_without_any(tmp_path: Path) -> None:
    """As in a slim container, where the data come from the tzdata package."""
    script = (
        "import zoneinfo\n"
        f"zoneinfo.reset_tzpath([{str(tmp_path)!r}])\n"
        "from jetjobs.model.schedule.cron import zone_of\n"
        "print(zone_of('Europe/Berlin'), zone_of('UTC'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.stderr) == ("Europe/Berlin UTC", "")
