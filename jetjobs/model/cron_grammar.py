"""Which cron expressions are taken, and why others are refused: every one is to mean what its reader thinks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from jetjobs.model.errors import DefinitionError

MAX_LENGTH = 200
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        names = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.low} to {self.high}{names}"

    @property
    def meaning(self) -> str:
        return f"{'an' if self.name == 'hour' else 'a'} {self.name} is {self.extent}"


MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day of month", 1, 31)
MONTH = Field("month", 1, 12, _MONTHS)
WEEKDAY = Field("day of week", 0, 7, _DAYS)
SECOND = Field("second", 0, 59)
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY, SECOND)

_ITEM = re.compile(r"(?P<low>\*|\w+)(?:-(?P<high>\w+))?(?:/(?P<step>\d{1,3}))?")
_NTH = re.compile(r"(?:(?P<day>\w+)#|l)(?P<which>\d+)")
_LAST = re.compile(rf"l({'|'.join(_DAYS)})|({'|'.join(_DAYS)}|[0-7])l")
_RANDOM = re.compile(r"[hr](?:\(.*\))?(?:/.*)?|.*~.*")
_IN_A_ROW = re.compile(r"\*(?!/)|-\d+(?!/|\d)")
_AS_DAYS_OF_WEEK = re.compile(r"\*|[0-7](-[0-7](/\d)?)?(,[0-7](-[0-7](/\d)?)?)*")
_SECOND_FIRST = (SECOND, MINUTE, HOUR, DAY, MONTH)
_SHAPE = "write five fields: minute, hour, day of month, month, day of week; a sixth, at the end, is the second"


def check(text: str) -> tuple[str, list[str]]:
    """The expression as it is kept, and its fields in lower case, without aliases and with 0 for Sunday."""
    if not isinstance(text, str):
        raise DefinitionError(f"a cron expression must be text, not {type(text).__name__}", hint=_SHAPE)
    if len(text) > MAX_LENGTH:
        raise DefinitionError(f"a cron expression may have {MAX_LENGTH} characters, not {len(text)}", hint=_SHAPE)
    if not text.strip():
        raise DefinitionError("a cron expression must not be empty", hint=_SHAPE)
    if any(not " " <= letter <= "~" and letter != "\t" for letter in text):
        _refuse(
            text,
            "it has a character that is not plain ASCII text",
            "write it in one line, without such characters",
        )
    kept = " ".join(text.split())
    fields = ALIASES.get(kept.lower(), kept).lower().split()
    _check_shape(kept, fields)
    for field, written in zip(FIELDS, fields, strict=False):
        for item in written.split(","):
            _check_item(kept, field, written, item)
    _check_together(kept, fields)
    # With a sixth field croniter does not know 7; as the end of a range it wraps round to 0, which is the same.
    fields[4] = re.sub(r"(?<![#/\d])0?7\b", "0", fields[4])
    return kept, fields


def _refuse(text: str, reason: str, hint: str) -> NoReturn:
    raise DefinitionError(f"cron expression {text!r}: {reason}", hint=hint)


def _written(text: str, item: str) -> str:
    """A part of the expression in quotes, in the case in which it was written."""
    found = re.search(rf"(?<!\w){re.escape(item)}(?!\w)", text, re.IGNORECASE)
    return repr(found[0] if found is not None else item)


def _check_shape(text: str, fields: list[str]) -> None:
    if fields[0] == "@reboot":
        _refuse(
            text, "there is no moment at which everything starts", "enqueue the job in a lifespan of the worker"
        )
    if fields[0] == "@every":
        _refuse(text, "an interval is not a cron expression", "use every() with a timedelta")
    if fields[0] in ALIASES:
        _refuse(text, f"nothing may follow {text.split()[0]}", f"write {fields[0]} alone")
    if fields[0].startswith("@"):
        _refuse(text, f"there is no {text.split()[0]}", f"there are {', '.join(sorted(ALIASES))}")
    if "=" in fields[0]:
        _refuse(text, "a time zone is not part of the expression", "give it as tz=")
    if len(fields) == 7:
        _refuse(
            text, "a year cannot be given", "leave out the seventh field, and give the schedule a start and an end"
        )
    if len(fields) not in (5, 6):
        _refuse(text, f"it has {len(fields)} field{'s' * (len(fields) > 1)}", _SHAPE)


def _check_item(text: str, field: Field, written: str, item: str) -> None:
    _check_foreign(text, field, item)
    if field is DAY and item == "l":
        return
    if field is WEEKDAY and (nth := _NTH.fullmatch(item)):
        _check_nth(text, written, nth)
        return
    found = _ITEM.fullmatch(item)
    if found is None:
        _refuse(text, f"{_written(text, item)} is no {field.name}", field.meaning)
    if found["low"] == "*":
        _check_star(text, field, written, found)
        return
    low = _value(text, field, found["low"])
    if found["high"] is None:
        if found["step"] is not None:
            ranged = f"{low}-{_highest(field)}/{found['step']}, or " if low < _highest(field) else ""
            _refuse(
                text,
                f"{_written(text, item)} is read in different ways: a step needs a range",
                f"write {ranged}{low} alone",
            )
        return
    high = _value(text, field, found["high"])
    _check_range(text, field, item, low, high, found["step"])


def _check_foreign(text: str, field: Field, item: str) -> None:
    """What other programs know, or croniter with another meaning."""
    if _RANDOM.fullmatch(item):
        _refuse(
            text, f"{_written(text, item)} is drawn at random", "write the value, or give the schedule a jitter"
        )
    if "?" in item:
        hint = "write * for it"
        if len(text.split()) == 6:
            hint += "; and here the second is the last field, not the first"
        _refuse(text, "'?' is not known", hint)
    if field is DAY and re.fullmatch(r"\d*l?w\d*", item):
        _refuse(text, "'W', the working day next to a date, is not known", "name the day of month")
    if field is DAY and re.fullmatch(r"l-.*|.*-l(/.*)?|l\d+", item):
        _refuse(
            text, f"{_written(text, item)} is not known, 'L' stands alone", "write L for the last day of the month"
        )
    if field is WEEKDAY and (last := _LAST.fullmatch(item)):
        day = last[1] or last[2]
        number = _DAYS.index(day) if day in _DAYS else day
        _refuse(
            text, f"{_written(text, item)} is not known", f"write L{number} for the last such day of the month"
        )
    if field is WEEKDAY and item == "l":
        _refuse(
            text, "'L' alone is no day of week", "write L5 for the last Friday of the month, or 6 for Saturdays"
        )


def _check_nth(text: str, written: str, nth: re.Match[str]) -> None:
    if nth["day"] is not None:
        _value(text, WEEKDAY, nth["day"])
        if not 1 <= int(nth["which"]) <= 5:
            _refuse(
                text, f"a month has no day {_written(text, nth[0])}", "write #1 to #5, or L5 for the last Friday"
            )
    else:
        _value(text, WEEKDAY, nth["which"])
    if not all(_NTH.fullmatch(other) for other in written.split(",")):
        _refuse(text, "some of its days of week are of every week and some are not", "make two schedules")


def _check_star(text: str, field: Field, written: str, found: re.Match[str]) -> None:
    if found["high"] is not None:
        _refuse(text, f"{_written(text, found[0])} is no range", f"write two of {field.extent}")
    if found["step"] is None:
        if written != "*":
            _refuse(text, f"{_written(text, written)} is the same as *", "write * alone, or only the others")
        return
    _check_step(text, field, found[0], _highest(field) - field.low, int(found["step"]))


def _check_range(text: str, field: Field, item: str, low: int, high: int, step: str | None) -> None:
    alike = low == high
    if field is WEEKDAY:
        low %= 7
        alike = alike or low == high
    if alike:
        _refuse(text, f"{_written(text, item)} is read in different ways", f"write {low} alone, or * for all")
    if step is None:
        return
    if low > high:
        _refuse(text, f"{_written(text, item)} has a step and goes past the end", "name the values, with commas")
    _check_step(text, field, item, min(high - low, _highest(field) - field.low), int(step))


def _check_step(text: str, field: Field, item: str, room: int, step: int) -> None:
    if step == 0:
        _refuse(text, f"{_written(text, item)} has a step of zero", "write a step of at least 1")
    if step > room:
        _refuse(
            text,
            f"{_written(text, item)} would be its first {field.name} only, since steps begin anew each time",
            f"write that {field.name} alone, or use every() for an interval",
        )


def _highest(field: Field) -> int:
    return 6 if field is WEEKDAY else field.high


def _value(text: str, field: Field, word: str) -> int:
    if word in field.names:
        return field.low + field.names.index(word)
    if word[:3] in field.names:
        _refuse(text, f"{_written(text, word)} is no {field.name}", f"write {word[:3]}")
    hint = field.meaning
    if len(text.split()) == 6:
        hint += "; the second is the last field, not the first"
    if not re.fullmatch(r"[0-9]{1,2}", word) or not field.low <= int(word) <= field.high:
        _refuse(text, f"{_written(text, word)} is no {field.name}", hint)
    return int(word)


def _check_together(text: str, fields: list[str]) -> None:
    minute, _, day, _, weekday = fields[:5]
    if day != "*" and weekday != "*":
        _refuse(
            text,
            "with a day of month and a day of week it is not clear whether one is enough or both are meant",
            "make two schedules, or write mon#1 for the first Monday of the month",
        )
    if len(fields) == 6 and minute != "*" and _IN_A_ROW.search(fields[5]):
        # Whoever has the second first in mind writes `0 0 9 * * *` for nine o'clock.
        _refuse(
            text,
            "it runs in many seconds one after the other: the last of six fields is the second",
            "for the minute alone write five fields; for each second write * for the minute and 0-59 at the end",
        )
    if len(fields) == 6 and _may_begin_with_the_second(text, fields):
        _refuse(
            text,
            "it can be read with the second first, as others have it: here the last of six fields is the second",
            f"{_second_first(fields)}if the last field is the second, write {_second_last(fields)!r}",
        )


def _may_begin_with_the_second(text: str, fields: list[str]) -> bool:
    """Whether the six fields are also second, minute, hour, day of month, month and day of week. Not where the
    first three are all *: nobody means every second of whole days. A second with two digits is no day of week."""
    if fields[:3] == ["*", "*", "*"] or not _AS_DAYS_OF_WEEK.fullmatch(fields[5]):
        return False
    try:
        for field, written in zip(_SECOND_FIRST, fields, strict=False):
            for item in written.split(","):
                _check_item(text, field, written, item)
    except DefinitionError:
        return False
    return True


def _second_first(fields: list[str]) -> str:
    """How to write what was meant by somebody who put the second first; nothing where that is refused too."""
    moved = " ".join(fields[1:] if fields[0] in ("0", "00") else [*fields[1:], _two_digits(fields[0])])
    try:
        check(moved)
    except DefinitionError:
        return ""
    return f"if the first field is the second, write {moved!r}; "


def _second_last(fields: list[str]) -> str:
    return " ".join(fields[:5] if fields[5] == "0" else [*fields[:5], _two_digits(fields[5])])


def _two_digits(seconds: str) -> str:
    """Seconds as nobody writes days of week.

    >>> _two_digits("5"), _two_digits("1,5-7/2"), _two_digits("*"), _two_digits("*/5")
    ('05', '01,05-07/2', '0-59', '*/5')
    """
    return "0-59" if seconds == "*" else re.sub(r"(?<![/\d])\d(?!\d)", r"0\g<0>", seconds)
