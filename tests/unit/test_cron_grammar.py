"""Which cron expressions are refused, each with its reason and what to write instead."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetjobs.model.cron import Cron, zone_of
from jetjobs.model.errors import DefinitionError
from tests.support.cron_reference import Reference


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("", "empty", "five fields"),
        (" \t ", "empty", "five fields"),
        ("* " * 101, "200 characters", "five fields"),
        ("* * * *", "4 fields", "minute, hour"),
        ("*", "1 field", "minute, hour"),
        ("hello world", "2 fields", "minute, hour"),
        ("* * * * * * *", "a year cannot be given", "a start and an end"),
        ("0 0 1 1 * 0 2030", "a year cannot be given", "a start and an end"),
        ("* * * * * * * *", "8 fields", "minute, hour"),
        # What is not plain text in one line.
        ("0 9 * * *\n", "not plain ASCII", "one line"),
        ("0 9 * * *\x00", "not plain ASCII", "one line"),
        ("0 9 * * \u2217", "not plain ASCII", "one line"),
        ("٠ 9 * * *", "not plain ASCII", "one line"),
        ("0\u00a09 * * *", "not plain ASCII", "one line"),
        # What is not a matter of the calendar.
        ("@reboot", "no moment", "lifespan"),
        ("@every 5m", "interval", "every()"),
        ("@fortnightly", "no @fortnightly", "@weekly"),
        # Quoted as they were written.
        ("@Often", "no @Often", "@weekly"),
        ("0 0 L-1 * *", "'L-1' is not known", "write L "),
        ("0 0 * jul L", "'L' alone", "L5"),
        ("0 0 * * MONDAY", "'MONDAY' is no day of week", "write mon"),
        ("0 0 * * Fri-FRI", "'Fri-FRI' is read in different ways", "5 alone"),
        ("0 24 * * *", "'24' is no hour", "an hour is 0 to 23"),
        ("60 0 * * *", "'60' is no minute", "a minute is 0 to 59"),
        ("CRON_TZ=UTC 0 9 * * *", "time zone", "tz="),
        # Random values: another slot in each process.
        ("R * * * *", "random", "jitter"),
        ("H * * * *", "random", "jitter"),
        ("h(0-29)/10 * * * *", "random", "jitter"),
        ("0 0 r(1-5) * *", "random", "jitter"),
        ("0~30 * * * *", "random", "jitter"),
        # Dates that never are.
        ("0 0 30 2 *", "never", "L"),
        ("0 0 31 4,6,9,11 *", "never", "L"),
        ("0 0 30-31 feb *", "never", "L"),
        # Steps that are read in different ways.
        ("59/1 * * * *", "different ways", "write 59 alone"),
        ("5/15 * * * *", "different ways", "5-59/15"),
        ("0 2/4 * * *", "different ways", "2-23/4"),
        ("* * * * 6/1", "different ways", "6 alone"),
        ("0 0 * * mon/2", "different ways", "1-6/2"),
        ("0 0 * jan/3 *", "different ways", "1-12/3"),
        ("0 9-9 * * *", "different ways", "9 alone"),
        ("0 0 * * mon-mon", "different ways", "1 alone"),
        ("0 0 * * 7-7", "different ways", "alone"),
        ("0 0 * * 7-0", "different ways", "alone"),
        ("0 22-6/3 * * *", "past the end", "commas"),
        ("0 0 * nov-feb/2 *", "past the end", "commas"),
        ("*/90 * * * *", "first minute only", "every()"),
        ("*/60 * * * *", "first minute only", "every()"),
        ("0 */24 * * *", "first hour only", "every()"),
        ("0 0 */31 * *", "first day of month only", "every()"),
        ("0 0 * */12 *", "first month only", "every()"),
        ("0 0 * * */7", "first day of week only", "every()"),
        ("10-20/15 * * * *", "first minute only", "alone"),
        ("*/0 * * * *", "step of zero", "at least 1"),
        ("1-5/0 * * * *", "step of zero", "at least 1"),
        ("*,5 * * * *", "same as *", "* alone"),
        ("*,*/2 * * * *", "same as *", "* alone"),
        ("*-5 * * * *", "no range", "0 to 59"),
        # Both days.
        ("0 0 13 * fri", "one is enough or both", "mon#1"),
        ("0 9 1-7 * mon", "one is enough or both", "mon#1"),
        ("0 9 */2 * mon", "one is enough or both", "two schedules"),
        ("0 9 L * mon#1", "one is enough or both", "two schedules"),
        # Values.
        ("60 * * * *", "'60' is no minute", "0 to 59"),
        ("0 24 * * *", "'24' is no hour", "0 to 23"),
        ("0 0 0 * *", "'0' is no day of month", "1 to 31"),
        ("0 0 0 * * 0", "'0' is no day of month", "the last field"),
        ("0 0 32 * *", "'32' is no day of month", "1 to 31"),
        ("0 0 * 0 *", "'0' is no month", "jan to dec"),
        ("0 0 * 13 *", "'13' is no month", "1 to 12"),
        ("0 0 * * 8", "'8' is no day of week", "sun to sat"),
        ("0 0 * * * 60", "'60' is no second", "0 to 59"),
        ("0 30 9 * * *", "'30' is no hour", "the second is the last field"),
        ("0 0 * mon *", "'mon' is no month", "jan to dec"),
        ("0 0 * * jan", "'jan' is no day of week", "sun to sat"),
        ("0 0 * * monday", "'monday' is no day of week", "write mon"),
        ("0 0 * january *", "'january' is no month", "write jan"),
        ("0 0 * * 1-monday", "'monday' is no day of week", "write mon"),
        ("-5 * * * *", "'-5' is no minute", "0 to 59"),
        ("1.5 * * * *", "'1.5' is no minute", "0 to 59"),
        ("1,,2 * * * *", "'' is no minute", "0 to 59"),
        ("1, 2 * * * *", "'' is no minute", "0 to 59"),
        ("000001 * * * *", "is no minute", "0 to 59"),
        ("*/1000 * * * *", "is no minute", "0 to 59"),
        ("** * * * *", "is no minute", "0 to 59"),
        ("1-2-3 * * * *", "is no minute", "0 to 59"),
        ("L * * * *", "'L' is no minute", "0 to 59"),
        ("0 0 mon#1 * *", "is no day of month", "1 to 31"),
        # Special days as others write them.
        ("0 0 ? * mon", "'?'", "write *"),
        ("0 0 12 ? * mon", "'?'", "the second is the last field"),
        ("0 0 15W * *", "'W'", "day of month"),
        ("0 0 LW * *", "'W'", "day of month"),
        ("0 0 L-3 * *", "'L' stands alone", "L"),
        ("0 0 25-L * *", "'L' stands alone", "L"),
        ("0 0 L2 * *", "'L' stands alone", "L"),
        ("0 0 * * L", "'L' alone", "L5"),
        ("0 0 * * 5L", "'5L'", "write L5"),
        ("0 0 * * friL", "'friL'", "write L5"),
        ("0 0 * * Lfri", "'Lfri'", "write L5"),
        ("0 0 * * L8", "'8' is no day of week", "0 to 7"),
        ("0 0 * * mon#6", "no day 'mon#6'", "#1 to #5"),
        ("0 0 * * mon#0", "no day 'mon#0'", "#1 to #5"),
        ("0 0 * * mon#L", "is no day of week", "0 to 7"),
        ("0 0 * * mon-fri#1", "is no day of week", "0 to 7"),
        ("0 0 * * *#1", "is no day of week", "0 to 7"),
        ("0 0 * * mon#1,fri", "of every week", "two schedules"),
        ("0 0 * * L5,1-3", "of every week", "two schedules"),
        # Seconds first, as others have them.
        ("0 0 9 * * *", "many seconds", "five fields"),
        ("*/5 * * * * *", "many seconds", "five fields"),
        ("0 0 9 * * 1-5", "many seconds", "five fields"),
        ("0 9 * * * 3,10-20", "many seconds", "five fields"),
        (
            "0 0 9 * * 1",
            "the second first",
            "the second, write '0 9 * * 1'; if the last field is the second, write '0 0 9 * * 01'",
        ),
        ("0 15 10 * * 6", "the second first", "write '15 10 * * 6'; if"),
        ("0 */5 * * * 1", "the second first", "write '*/5 * * * 1'; if"),
        ("30 0 9 * * 1,3", "the second first", "write '0 9 * * 1,3 30'; if"),
        ("5 0 9 * * 1-5/2", "the second first", "write '0 9 * * 1-5/2 05'; if"),
        # Both days: what others mean by it is refused as well, and not proposed.
        ("0 0 12 1 * 0", "the second first", "if the last field is the second, write '0 0 12 1 *'"),
        ("* 0 9 * * *", "the second first", "write '* 0 9 * * 0-59'"),
        ("0 9 * * 1-5 0", "the second first", "write '0 9 * * 1-5'"),
        ("@hourly x", "nothing may follow @hourly", "write @hourly alone"),
        ("@Daily 0 9 * * *", "nothing may follow @Daily", "write @daily alone"),
    ],
)
def test_a_refusal_says_why_and_what_to_write(text: str, reason: str, hint: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Cron.parse(text)
    assert reason in str(refused.value)
    assert refused.value.hint is not None
    assert hint in refused.value.hint
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", [None, 5, b"* * * * *", ["*"], timedelta(1), True])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(DefinitionError, match="must be text"):
        Cron.parse(text)


@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 31 * *", "0 0 30,31 2,3 *", "0 0 L 2 *", "0 0 * 2 mon#5"])
def test_rare_dates_are_taken(text: str) -> None:
    assert Cron.parse(text).after(datetime(2026, 1, 1, tzinfo=UTC), zone_of("UTC")) is not None


@pytest.mark.parametrize(
    "text",
    [
        "*/5 * * * * 0,30",
        "0 9 * * 1-5 30",
        "* * * * * */5",
        "*/5 9 * * * */5",
        "* * * * * 0",
        "* * * * * 1-5",
        "* * * * mon 5",
        "0 9 * * * 05",
        "0 9 * * * 00",
        "0 9 * * * 8",
        "* 9 * * * 0-59",
        "0 9 25 * * 5",
        "0 9 L * * 5",
        "0 9 * jan * 5",
        "0 9 * * mon-fri 0",
        "0 9 * * 0 5",
        "0 9 * * mon#1 0",
    ],
)
def test_six_fields_that_can_be_read_in_one_way_are_taken(text: str) -> None:
    assert Cron.parse(text).expression == text


HINTED = re.compile(r"write '([^']+)'")


@settings(max_examples=600)
@given(
    st.tuples(
        st.sampled_from(["*", "0", "5", "30", "*/5", "1-3"]),
        st.sampled_from(["*", "0", "9", "15", "*/5", "1-5"]),
        st.sampled_from(["*", "9", "12", "25", "L", "1-7", "*/2"]),
        st.sampled_from(["*", "1", "12", "jan", "*/2"]),
        st.sampled_from(["*", "1", "0", "1-5", "mon-fri", "mon#1"]),
        st.sampled_from(["*", "0", "1", "7", "8", "30", "1-5", "1,3", "0,30", "05", "*/5", "1-5/2"]),
    ).map(" ".join)
)
def test_whatever_is_proposed_is_taken(text: str) -> None:
    try:
        Cron.parse(text)
    except DefinitionError as error:
        if "the second first" in str(error):
            proposed = HINTED.findall(error.hint or "")
            assert proposed
            for other in proposed:
                Cron.parse(other)
            # The last of them means what the text said, as it is read here.
            reference, last = Reference(text), Cron.parse(proposed[-1])
            for slot in islice(last.slots(datetime(2026, 7, 13, tzinfo=UTC), zone_of("UTC")), 4):
                assert reference.matches(slot.replace(tzinfo=None))
                assert slot.second in reference.seconds


def test_the_page_of_schedules_says_the_truth_about_what_is_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    section = page.partition("### What is refused")[2].partition("###")[0]
    section, _, taken = section.partition("| Taken | Since |")
    some = [text for row in taken.splitlines() for text in re.findall("`([^`]+ [^`]+)`", row.partition(" | ")[0])]
    assert len(some) >= 8
    for text in some:
        Cron.parse(text)
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


@settings(max_examples=1200)
@given(st.one_of(st.lists(WORDS, min_size=4, max_size=7).map(" ".join), st.text(max_size=30)))
def test_anything_is_either_refused_or_means_what_the_reference_reads(text: str) -> None:
    try:
        cron = Cron.parse(text)
    except DefinitionError as error:
        assert error.hint
        return
    if text.strip().startswith("@"):
        return
    reference = Reference(text)
    now = datetime(2026, 7, 13, 9, 11, 5)
    for slot in islice(cron.slots(now.replace(tzinfo=UTC), zone_of("UTC")), 4):
        assert reference.matches(slot.replace(tzinfo=None))
        assert slot.second in reference.seconds
        assert slot.replace(tzinfo=None) > now
