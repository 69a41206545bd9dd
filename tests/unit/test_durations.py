"""Durations: parsed and formatted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.durations import parse_duration, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("5", 5),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("0.5h", 1800),
        ("  7s ", 7),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "s", "5 s", "-5s", "5x", "1h30", "1e3", "nan", "inf", "5s,", "1h 30m", "+5"]
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9999999999d", "9" * 400 + "s", "99999999999999999999", "9" * 400])
def test_a_duration_beyond_all_bounds_is_refused_as_one(text: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration(text)


@given(st.text())
def test_any_text_is_read_or_refused_by_value_error(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta(0)
    except ValueError as error:
        assert "duration" in str(error)


@given(st.integers(0, 999), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_parts_add_up(days: int, hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    text = f"{days}d{hours}h{minutes}m{seconds}s{milliseconds}ms"
    expected = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    assert abs(parse_duration(text) - expected) <= timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (1, "1.0 s"),
        (59.9, "59.9 s"),
        (60, "1m00s"),
        (3599.9, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d0h"),
        (30 * 86400, "30d0h"),
    ],
)
def test_a_duration_is_shown_short(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@given(st.floats(0, 1e9))
def test_what_is_shown_is_never_long(seconds: float) -> None:
    assert 0 < len(show_duration(seconds)) <= 10
