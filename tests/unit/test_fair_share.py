"""Lanes share free slots by weight and within limits, and no lane starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.worker.intake.fair_share import WEIGHTS, LaneShare, fitting, share


def a_lane(
    queue: str = "mail", weight: int = 1, pending: int = 0, owed: int = 0, passed: float = 0.0
) -> LaneShare:
    lane = LaneShare(queue, weight)
    lane.pending, lane.owed, lane.passed = pending, owed, passed
    return lane


LANES = st.lists(
    st.builds(
        a_lane,
        queue=st.sampled_from(["a", "b", "c"]),
        weight=st.sampled_from(sorted(WEIGHTS.values())),
        pending=st.integers(0, 50),
        owed=st.integers(0, 20),
        passed=st.floats(0, 1000),
    ),
    min_size=1,
    max_size=9,
)
CAPS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 20))


@given(LANES, st.integers(-5, 60), CAPS)
def test_lanes_with_a_backlog_are_never_asked_for_more_than_is_free(
    lanes: list[LaneShare], free: int, caps: dict[str, int]
) -> None:
    asks = share(lanes, free, caps)
    backlog = [(lane, ask) for lane, ask in zip(lanes, asks, strict=True) if lane.pending > 0]
    owed = sum(lane.owed for lane, _ in backlog)
    assert all(ask >= 0 for ask in asks)
    assert sum(ask for _, ask in backlog) <= max(0, free - owed)


@given(LANES, st.integers(-5, 60), CAPS)
def test_lanes_of_a_queue_with_a_cap_are_never_asked_for_more_than_it(
    lanes: list[LaneShare], free: int, caps: dict[str, int]
) -> None:
    asks = share(lanes, free, caps)
    for queue, cap in caps.items():
        ours = [(lane, ask) for lane, ask in zip(lanes, asks, strict=True) if lane.queue == queue and lane.pending]
        owed = sum(lane.owed for lane, _ in ours)
        assert sum(ask for _, ask in ours) <= max(0, cap - owed)


@given(LANES, st.integers(-5, 60), CAPS)
def test_a_lane_that_seems_empty_keeps_exactly_one_request_open(
    lanes: list[LaneShare], free: int, caps: dict[str, int]
) -> None:
    asks = share(lanes, free, caps)
    for lane, ask in zip(lanes, asks, strict=True):
        if not lane.pending:
            wanted = free > 0 and not lane.owed and caps.get(lane.queue, 1) > 0
            assert ask == (1 if wanted else 0)


@given(LANES, st.integers(1, 60))
def test_no_lane_is_asked_for_more_than_waits_in_it(lanes: list[LaneShare], free: int) -> None:
    for lane, ask in zip(lanes, share(lanes, free, {}), strict=True):
        assert ask <= max(1, lane.pending - lane.owed)


@given(LANES, st.integers(0, 60))
def test_what_is_free_is_used_while_there_is_a_backlog(lanes: list[LaneShare], free: int) -> None:
    waiting = sum(max(0, lane.pending - lane.owed) for lane in lanes)
    room = max(0, free - sum(lane.owed for lane in lanes if lane.pending))
    assert sum(share(lanes, free, {})) >= min(waiting, room)


@pytest.mark.parametrize("free", [0, -1])
def test_without_a_free_slot_nothing_is_asked(free: int) -> None:
    assert share([a_lane(), a_lane(pending=5)], free, {}) == [0, 0]


def test_an_idle_worker_asks_each_lane_for_one() -> None:
    assert share([a_lane(weight=w) for w in (8, 3, 1)], 10, {}) == [1, 1, 1]


def test_a_lane_alone_gets_all() -> None:
    assert share([a_lane(weight=1, pending=100), a_lane(weight=8), a_lane(weight=3)], 10, {}) == [10, 1, 1]


def run_rounds(weights: list[int], free: int, rounds: int) -> list[int]:
    """What each lane is given when every lane always has a backlog and all that is asked is delivered."""
    lanes = [a_lane(weight=weight) for weight in weights]
    given = [0] * len(lanes)
    for _ in range(rounds):
        for lane in lanes:
            lane.pending, lane.owed = 10_000, 0
        for index, ask in enumerate(share(lanes, free, {})):
            given[index] += ask
    return given


@pytest.mark.parametrize("free", [1, 2, 5, 10, 12, 100])
def test_in_the_long_run_lanes_share_by_weight(free: int) -> None:
    weights = [WEIGHTS[lane] for lane in ("high", "normal", "low")]
    assert weights == [8, 3, 1]
    high, normal, low = run_rounds(weights, free, 1200)
    total = high + normal + low
    assert total == free * 1200
    assert high / total == pytest.approx(8 / 12, abs=0.02)
    assert normal / total == pytest.approx(3 / 12, abs=0.02)
    assert low / total == pytest.approx(1 / 12, abs=0.02)


@given(st.lists(st.sampled_from([8, 3, 1]), min_size=2, max_size=6), st.integers(1, 20))
def test_no_lane_with_a_backlog_starves(weights: list[int], free: int) -> None:
    given = run_rounds(weights, free, sum(weights) * 2)
    assert all(given), given


def test_a_lane_that_was_empty_for_long_does_not_catch_up_on_the_past() -> None:
    busy, late = a_lane(weight=1, pending=1000, passed=5000.0), a_lane(weight=1, pending=1000)
    asks = share([busy, late], 100, {})
    assert sum(asks) == 100
    assert asks[0] >= 45


def test_a_lane_of_a_full_queue_does_not_keep_others_from_their_share() -> None:
    full, other = a_lane("full", weight=8, pending=100), a_lane("other", weight=1, pending=100)
    assert share([full, other], 10, {"full": 0}) == [0, 10]
    assert share([a_lane("full", 8, 100), a_lane("other", 1, 100)], 10, {"full": 2}) == [2, 8]


@pytest.mark.parametrize(
    ("mean_bytes", "lanes", "expected"),
    [
        (500, 1, 33_554),
        (0, 1, 16 * 1024 * 1024),  # a body can be empty
        (1024 * 1024, 1, 16),
        (1024 * 1024, 4, 4),
        (64 * 1024 * 1024, 1, 1),
        (1024 * 1024, 100, 1),
    ],
)
def test_large_jobs_are_limited_by_their_bytes_and_one_always_fits(
    mean_bytes: float, lanes: int, expected: int
) -> None:
    assert fitting(mean_bytes, lanes) == expected
