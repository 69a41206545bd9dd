"""A row of `jetjobs schedules list`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.cli.commands.schedules import HEAD, _row
from jetjobs.model.schedule.schedule import make_schedule

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("away", "shown"),
    [(timedelta(seconds=90), "in 1m30s"), (timedelta(0), "now"), (timedelta(milliseconds=-4), "now"), (None, "-")],
)
def test_the_next_scheduled_time_is_never_in_the_past(away: timedelta | None, shown: str) -> None:
    schedule = make_schedule({"name": "s", "task": "t", "every": timedelta(minutes=1)})
    upcoming = NOW + away if away is not None else None
    row = _row(ScheduleInfo(schedule, 1, NOW - timedelta(minutes=1), upcoming), NOW)
    cells = dict(zip(HEAD, row, strict=True))
    assert (cells["NEXT"], cells["LAST"], cells["RULE"]) == (shown, "1 min ago", "every 1m")
