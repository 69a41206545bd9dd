"""The checker of edited schedules finds every kind of problem."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jetjobs.model.schedule.schedule import Schedule, make_schedule
from tests.support.calendar import Edit, Fired, check

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
UNTIL = T0 + timedelta(seconds=120)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def schedule(number: int, **values: object) -> Schedule:
    every = timedelta(seconds=10)
    return make_schedule({"name": "s", "task": "t", "every": every, "since": T0, "args": {"n": number}, **values})


def tick(seconds: float, number: int, late_s: float = 0.1) -> Fired:
    return Fired(at(seconds), at(seconds).timestamp() + late_s, number)


EDITS = [Edit(T0, T0, schedule(1)), Edit(at(32), at(33), schedule(2, queue="other")), Edit(at(71), at(72), None)]
TICKS = [*(tick(s, 1) for s in (10, 20, 30)), *(tick(s, 2) for s in (40, 50, 60, 70))]


def found(
    ticks: list[Fired], edits: list[Edit] = EDITS, unled: list[tuple[float, float]] | None = None
) -> list[str]:
    return [problem.split(":")[0] for problem in check(edits, ticks, UNTIL, 1.0, unled or [])]


def test_expected_ticks_have_no_problems() -> None:
    assert found(TICKS) == []
    again = schedule(3, since=at(105))
    assert found([*TICKS, tick(110, 3), tick(120, 3)], [*EDITS, Edit(at(105), at(106), again)]) == []


@pytest.mark.parametrize(
    ("ticks", "problem"),
    [
        (TICKS[:3] + TICKS[4:], "lost"),
        ([*TICKS, TICKS[2]], "doubled"),
        ([*TICKS, tick(100, 2)], "off"),
        ([*TICKS[:-1], tick(70, 1)], "old"),
        ([*TICKS[:-1], tick(70, 2, late_s=5)], "late by 5.0 s"),
    ],
)
def test_each_problem_is_found(ticks: list[Fired], problem: str) -> None:
    assert found(ticks) == [problem]


def test_without_a_leader_placed_ticks_may_fire_for_a_minute() -> None:
    unled = [(at(30).timestamp(), at(110).timestamp())]
    late = [*TICKS[:3], *(tick(s, 1) for s in range(40, 100, 10))]
    assert found(late) != []
    assert found(late, unled=unled) == []
