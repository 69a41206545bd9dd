"""Slots of cron expressions, above all where clocks are changed, beside a reference that walks every minute."""

from __future__ import annotations

import copy
import pickle
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from jetjobs.model.cron import Cron, zone_of
from jetjobs.model.cron_grammar import ALIASES
from jetjobs.model.errors import DefinitionError
from jetjobs.model.zones import spans
from tests.support.cron_reference import Minute, Reference, changes, walk

FIRST, LAST = 2024, 2035
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
AROUND = timedelta(hours=8)
BERLIN = ZoneInfo("Europe/Berlin")

ZONES = (
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",  # summer is its standard time
    "America/New_York",
    "America/Santiago",  # at midnight, and back into the day before
    "America/Havana",  # midnight does not exist, and on another day comes twice
    "Australia/Lord_Howe",  # by half an hour
    "Africa/Casablanca",  # by Ramadan
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Jerusalem",
    "Pacific/Chatham",  # 12:45 ahead
)
STEADY = ("Asia/Kathmandu", "UTC")

EXPRESSIONS = (
    "*/7 * * * *",
    "*/5 * * * *",
    "*/20 */1 * * *",
    "17 0-23 * * *",
    "*/15 2 * * *",
    "30 2 * * *",
    "45 1-3 * * *",
    "0,30 0,1,2,3 * * *",
    "0 */2 * * *",
    "0 0 * * *",
    "30 23 * * *",
    "*/10 22-4 * * *",
    "0 0 L * *",
    "5 * * * sun",
    "0 9 * * mon#1",
    "15 2 * * L0",
    "30 2 * 3,10 sun-mon",
    "0 * * * * */20",
    "30 2 * * * 0,59",
)


@lru_cache(maxsize=1024)
def around(zone: ZoneInfo, change: datetime) -> list[Minute]:
    return walk(zone, change - AROUND, change + AROUND)


@lru_cache(maxsize=64)
def moments_of(zone: ZoneInfo) -> list[datetime]:
    """Every change of the clock, and some other days."""
    ordinary = [datetime(2026, 12, 31, 18, tzinfo=UTC), datetime(2028, 2, 29, tzinfo=UTC)]
    return [*changes(zone, FIRST, LAST), *ordinary]


def between(cron: Cron, zone: ZoneInfo, first: datetime, end: datetime) -> list[datetime]:
    return [*takewhile(lambda slot: slot < end, cron.slots(first - SECOND, zone))]


def backwards(cron: Cron, zone: ZoneInfo, first: datetime, end: datetime) -> Iterator[datetime]:
    slot = cron.before(end - SECOND, zone)
    while slot is not None and slot >= first:
        yield slot
        slot = cron.before(slot - SECOND, zone)


@pytest.mark.parametrize("name", [*ZONES, *STEADY])
def test_slots_around_every_clock_change_are_those_of_the_reference(name: str) -> None:
    zone = zone_of(name)
    # Two years are history; whoever gives up changing clocks later must not break this.
    assert len([*changes(zone, FIRST, 2025)]) >= (4 if name in ZONES else 0)
    for text in EXPRESSIONS:
        cron, reference = Cron.parse(text), Reference(text)
        for change in moments_of(zone):
            walked = around(zone, change)
            first, end = walked[0].at, walked[-1].at
            expected = [slot for slot in reference.slots(walked) if slot < end]
            assert between(cron, zone, first, end) == expected, (text, change)
            assert [*backwards(cron, zone, first, end)] == expected[::-1], (text, change)


@pytest.mark.parametrize("name", [*ZONES, *STEADY])
def test_each_time_on_the_clock_has_one_slot_and_no_two_are_the_same(name: str) -> None:
    """Also by Python's own reading of skipped and repeated times, the one before the change."""
    zone = zone_of(name)
    cron = Cron.parse("*/15 0-22 * * *")
    for change in moments_of(zone):
        start = (change - AROUND).astimezone(zone).replace(tzinfo=None, minute=0)
        walls = [start + n * timedelta(minutes=15) for n in range(16 * 4)]
        slots = {wall.replace(tzinfo=zone).astimezone(UTC) for wall in walls if wall.hour != 23}
        inner = sorted(slot for slot in slots if abs(slot - change) < timedelta(hours=6))
        found = between(cron, zone, inner[0], inner[-1] + SECOND)
        assert found == inner
        assert all(one < other for one, other in pairwise(found))


def steps(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(1, high - low).map(lambda step: f"*/{step}")


def lists(low: int, high: int) -> st.SearchStrategy[str]:
    return st.lists(st.integers(low, high), min_size=1, max_size=4).map(lambda some: ",".join(map(str, some)))


def ranges(low: int, high: int) -> st.SearchStrategy[str]:
    pairs = st.tuples(st.integers(low, high), st.integers(low, high)).filter(lambda pair: pair[0] != pair[1])
    return pairs.map(lambda pair: f"{pair[0]}-{pair[1]}")


def stepped(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high - 2).flatmap(
        lambda first: st.integers(first + 1, high).flatmap(
            lambda last: st.integers(1, last - first).map(lambda step: f"{first}-{last}/{step}")
        )
    )


def some(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), steps(low, high), lists(low, high), ranges(low, high), stepped(low, high))


MONTHS = st.one_of(st.just("*"), some(1, 12), st.sampled_from(["jan-mar", "NOV-feb", "mar,Oct", "*/2"]))
MONTH_DAYS = st.one_of(some(1, 28), some(1, 31), st.sampled_from(["L", "15,L", "1,l", "31,L"]))
WEEKDAYS = st.one_of(
    some(0, 6),
    st.sampled_from(["7", "sun", "MON-fri", "fri-mon", "5-7", "0-7", "1-7/2", "sat-sun", "mon#1", "2#5", "7#2"]),
    st.sampled_from(["L0", "L5", "l7", "mon#1,WED#3", "L5,fri#1", "sun#4", "sun#5"]),
)
DATES = st.one_of(
    st.just(("*", "*", "*")),
    st.tuples(MONTH_DAYS, MONTHS, st.just("*")),
    st.tuples(st.just("*"), MONTHS, WEEKDAYS),
)
TWO_DIGITS = st.lists(st.integers(0, 59).map("{:02}".format), min_size=1, max_size=4).map(",".join)
SECONDS = st.one_of(st.none(), st.none(), st.integers(14, 59).map("*/{}".format), TWO_DIGITS)
HOURS = st.one_of(st.sampled_from(["*", "*", "0-23", "*/1", "2", "0-3", "1,2,3", "23", "*/2"]), some(0, 23))


@st.composite
def expressions(draw: st.DrawFn, dates: st.SearchStrategy[tuple[str, str, str]] = DATES) -> str:
    fields = [draw(some(0, 59)), draw(HOURS), *draw(dates)]
    second = draw(SECONDS)
    return " ".join(fields if second is None else [*fields, second])


def possible(text: str) -> Cron | None:
    """None for the 31st of April and the like, which the strategies make too."""
    try:
        return Cron.parse(text)
    except DefinitionError as error:
        assert "never" in str(error), text
        return None


@settings(max_examples=150)
@given(st.data())
def test_generated_expressions_around_clock_changes(data: st.DataObject) -> None:
    zone = zone_of(data.draw(st.sampled_from([*ZONES, *STEADY])))
    change = data.draw(st.sampled_from(moments_of(zone)))
    today = change.astimezone(zone)
    date = st.sampled_from(
        [
            ("*", "*", "*"),
            (f"{today.day}", f"{today.month}", "*"),
            ("*", "*", f"{today.isoweekday()}"),
            ("*", f"{today.month}", f"{today.isoweekday()}#{(today.day + 6) // 7}"),
            ("*", "*", f"L{today.isoweekday()}"),
        ]
    )
    text = data.draw(expressions(st.one_of(date, DATES)))
    cron = possible(text)
    if cron is None:
        return
    walked = around(zone, change)
    first, end = walked[0].at, walked[-1].at
    expected = [slot for slot in Reference(text).slots(walked) if slot < end]
    assert between(cron, zone, first, end) == expected, text
    now = first + data.draw(st.timedeltas(timedelta(0), end - first - SECOND))
    at = bisect_right(expected, now)
    if at < len(expected):
        assert cron.after(now, zone) == expected[at], (text, now)
    if at > 0:
        assert cron.before(now, zone) == expected[at - 1], (text, now)


MOMENTS = st.datetimes(datetime(FIRST, 1, 1), datetime(LAST, 12, 31), timezones=st.just(UTC))


@settings(max_examples=300)
@given(expressions(), MOMENTS, st.sampled_from([*ZONES, *STEADY]))
def test_before_and_after_agree_at_any_moment(text: str, now: datetime, name: str) -> None:
    cron, zone = possible(text), zone_of(name)
    if cron is None:
        return
    following, earlier = cron.after(now, zone), cron.before(now, zone)
    assert following is not None
    assert earlier is not None
    assert earlier <= now < following
    assert following.utcoffset() == earlier.utcoffset() == timedelta(0)
    assert cron.after(earlier, zone) == following
    assert cron.before(following - SECOND, zone) == earlier
    assert cron.before(following, zone) == following
    assert cron.after(following - SECOND, zone) == following
    assert cron.after(now.astimezone(zone), zone) == following  # a moment is a moment in any zone


@settings(max_examples=120)
@given(expressions(st.just(("*", "*", "*"))), MOMENTS, st.sampled_from([*ZONES, *STEADY]))
def test_the_next_slots_at_any_moment_are_those_of_the_reference(text: str, now: datetime, name: str) -> None:
    zone = zone_of(name)
    start = now.replace(second=0, microsecond=0) - 2 * HOUR  # what was shown before now
    walked = walk(zone, start, start + timedelta(hours=29))
    end = walked[-1].at
    expected = [slot for slot in Reference(text).slots(walked) if now < slot < end]
    assert [*takewhile(lambda slot: slot < end, Cron.parse(text).slots(now, zone))] == expected


@settings(max_examples=200)
@given(expressions(), st.datetimes(datetime(1990, 1, 1), datetime(2110, 1, 1)))
def test_without_clock_changes_it_is_what_croniter_says(text: str, now: datetime) -> None:
    cron = possible(text)
    if cron is None:
        return
    if len(text.split()) == 6 and "7" in text.split()[4]:
        return  # croniter does not know 7 as a Sunday there
    theirs = croniter(text, now)
    ours = cron.slots(now.replace(tzinfo=UTC), ZoneInfo("UTC"))
    for slot in islice(ours, 3):
        assert slot == theirs.get_next(datetime).replace(tzinfo=UTC), text


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def some_slots(text: str, after: str, zone: str, count: int) -> list[str]:
    slots = islice(Cron.parse(text).slots(utc(after), zone_of(zone)), count)
    return [slot.astimezone(zone_of(zone)).isoformat()[:22].replace("T", " ") for slot in slots]


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
        # By a day: in Samoa there was no 30th of December 2011, on Kiritimati no 31st of December 1994. There the
        # change lies in one year of UTC, and what was moved by it in the next.
        ("Pacific/Apia", "0 9 30 12 *", "2011-12-28T12:00", "2011-12-31 09:00:00+14", "2012-12-30 09:00:00+14"),
        ("Pacific/Apia", "0 9 * * *", "2011-12-29T12:00", "2011-12-29 09:00:00-10", "2011-12-31 09:00:00+14"),
        ("Pacific/Kiritimati", "0 23 31 12 *", "1994-12-30T12:00", "1995-01-01 23:00:00+14", "1995-12-31 23:00:00+14"),  # noqa: E501
    ],
)  # fmt: skip
def test_known_clock_changes(zone: str, text: str, after: str, first: str, second: str) -> None:
    assert some_slots(text, after, zone, 2) == [first, second]
    assert Cron.parse(text).before(datetime.fromisoformat(f"{second}:00") - SECOND, zone_of(zone)) == (
        datetime.fromisoformat(f"{first}:00")
    )


def test_a_slot_every_five_minutes_goes_on_through_the_repeated_hour() -> None:
    slots = between(Cron.parse("*/5 * * * *"), BERLIN, utc("2026-10-25T00:00"), utc("2026-10-25T03:00"))
    assert slots == [utc("2026-10-25T00:00") + n * timedelta(minutes=5) for n in range(36)]


def test_leap_days_and_last_days() -> None:
    assert some_slots("0 0 29 2 *", "2095-01-01", "UTC", 2) == ["2096-02-29 00:00:00+00", "2104-02-29 00:00:00+00"]
    assert some_slots("0 0 L 2 *", "2027-01-01", "UTC", 2) == ["2027-02-28 00:00:00+00", "2028-02-29 00:00:00+00"]
    assert some_slots("0 0 * 2 thu#5", "2025-01-01", "UTC", 2) == [
        "2052-02-29 00:00:00+00",
        "2080-02-29 00:00:00+00",
    ]
    assert some_slots("0 0 * * L5", "2026-01-01", "UTC", 2) == ["2026-01-30 00:00:00+00", "2026-02-27 00:00:00+00"]


def test_parts_of_a_second_do_not_matter() -> None:
    cron = Cron.parse("0 9 * * *")
    nine = utc("2026-05-01T09:00")
    utc_zone = zone_of("UTC")
    tiny = timedelta(microseconds=1)
    assert cron.after(nine - tiny, utc_zone) == nine
    assert cron.after(nine + tiny, utc_zone) == nine + timedelta(days=1)
    assert cron.before(nine + tiny, utc_zone) == nine
    assert cron.before(nine - tiny, utc_zone) == nine - timedelta(days=1)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/Los_Angeles"])
@pytest.mark.parametrize("offset", [-23, 0, 23])
def test_there_is_an_end_in_both_directions(zone: str, offset: int) -> None:
    cron, of = Cron.parse("0 0 * * *"), zone_of(zone)
    east = timezone(timedelta(hours=offset))
    assert cron.after(datetime.max.replace(tzinfo=east), of) is None
    assert cron.before(datetime.min.replace(tzinfo=east), of) is None
    last = cron.before(datetime.max.replace(tzinfo=east), of)
    first = cron.after(datetime.min.replace(tzinfo=east), of)
    assert last is not None
    assert last.year == 9000
    assert first is not None
    assert first.year == 2
    assert [*cron.slots(last, of)] == []
    assert cron.before(first - SECOND, of) is None


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Cron.parse("0 0 * * *").after(datetime(2026, 1, 1), BERLIN)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Africa/Casablanca", "Pacific/Apia", "Asia/Kathmandu"])
def test_spans_follow_one_another_without_a_hole(zone: str) -> None:
    every = [span for year in range(2005, 2040) for span in spans(zone_of(zone), year)]
    assert all(one.end == other.start for one, other in pairwise(every))
    assert all(one.offset == other.before for one, other in pairwise(every) if other.start == other.change)


def test_expressions_are_values() -> None:
    one, other = Cron.parse(" 0 9\t* *   MON "), Cron.parse("0 9 * * MON")
    assert one == other
    assert hash(one) == hash(other)
    assert one.expression == "0 9 * * MON"
    assert Cron.parse("@Hourly").expression == "@Hourly"
    assert Cron.parse("@hourly") != Cron.parse("0 * * * *")
    with pytest.raises(AttributeError):
        one.expression = "other"  # type: ignore[misc]
    now = utc("2026-05-01T09:00")
    for same in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert same == one
        assert same.after(now, BERLIN) == one.after(now, BERLIN)


@pytest.mark.parametrize("alias", [*ALIASES, "@DAILY"])
def test_aliases_mean_what_they_say(alias: str) -> None:
    now = utc("2026-05-13T09:11")
    written = Cron.parse(ALIASES[alias.lower()])
    assert [*islice(Cron.parse(alias).slots(now, BERLIN), 5)] == [*islice(written.slots(now, BERLIN), 5)]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * 07 30", "0 0 * * sun 30"),
        ("0 0 * * 5-7", "0 0 * * fri,sat,sun"),
        ("0 0 * * sat-sun", "0 0 * * 0,6"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("0 0 * * 1-7/2 05", "0 0 * * 1,3,5,0 5"),
        ("0 0 * nov-feb *", "0 0 * 1,2,11,12 *"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("00 09 01 * *", "0 9 1 * *"),
        ("0 0 * * l7", "0 0 * * L0"),
        ("0 0 * * Sun#2", "0 0 * * 7#2"),
        ("0 0 * * * 10-50/20", "0 0 * * * 10,30,50"),
        ("* * * * * *", "*/1 * * * * */1"),
    ],
)
def test_what_is_written_in_two_ways(text: str, same: str) -> None:
    now = utc("2026-05-13T09:11")
    assert [*islice(Cron.parse(text).slots(now, BERLIN), 40)] == [*islice(Cron.parse(same).slots(now, BERLIN), 40)]
