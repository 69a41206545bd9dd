"""Backoff arithmetic."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.errors import DefinitionError
from jetjobs.model.retry import RetryPolicy, backoff_s, delay_s

ATTEMPTS = st.integers(1, 10**12)
DRAWS = st.floats(0, 1)
BOTH = st.booleans()


@st.composite
def policies(draw: st.DrawFn, jitter: st.SearchStrategy[bool] = BOTH) -> RetryPolicy:
    base = draw(st.timedeltas(timedelta(0), timedelta(days=30)))
    cap = draw(st.timedeltas(base, timedelta(days=365)))
    return RetryPolicy(draw(st.integers(1, 10**9)), base, cap, draw(jitter))


@given(ATTEMPTS, policies(), DRAWS)
def test_a_delay_is_never_negative_and_never_over_the_cap(attempt: int, policy: RetryPolicy, draw: float) -> None:
    assert 0.0 <= delay_s(attempt, policy, draw) <= policy.cap.total_seconds()


@given(ATTEMPTS, policies())
def test_backoff_never_shrinks_before_jitter(attempt: int, policy: RetryPolicy) -> None:
    assert backoff_s(attempt, policy) <= backoff_s(attempt + 1, policy)


@given(st.integers(1, 40), policies())
def test_backoff_doubles_until_the_cap(attempt: int, policy: RetryPolicy) -> None:
    doubled = 2 * backoff_s(attempt, policy)
    assert backoff_s(attempt + 1, policy) == min(doubled, policy.cap.total_seconds())


@given(ATTEMPTS, policies(jitter=st.just(False)), DRAWS)
def test_without_jitter_the_delay_is_the_backoff(attempt: int, policy: RetryPolicy, draw: float) -> None:
    assert delay_s(attempt, policy, draw) == backoff_s(attempt, policy)


@given(ATTEMPTS, policies(jitter=st.just(True)), DRAWS)
def test_with_jitter_the_delay_is_drawn_from_zero_to_the_backoff(
    attempt: int, policy: RetryPolicy, draw: float
) -> None:
    assert delay_s(attempt, policy, 0.0) == 0.0
    assert delay_s(attempt, policy, 1.0) == backoff_s(attempt, policy)
    assert delay_s(attempt, policy, draw) == pytest.approx(backoff_s(attempt, policy) * draw)


@pytest.mark.parametrize("attempt", [65, 66, 1_000_000, 10**100])
def test_a_huge_attempt_number_gives_the_cap_and_no_overflow(attempt: int) -> None:
    assert backoff_s(attempt, RetryPolicy()) == 3600.0


def test_the_longest_durations_do_not_overflow() -> None:
    assert backoff_s(10**6, RetryPolicy(base=timedelta.max, cap=timedelta.max)) == timedelta.max.total_seconds()


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"base": timedelta(seconds=-1)},
        {"base": timedelta(hours=2)},
        {"cap": timedelta(seconds=1)},
    ],
)
def test_a_policy_that_cannot_work_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(DefinitionError):
        RetryPolicy(**options)  # type: ignore[arg-type]


def test_a_policy_is_a_value() -> None:
    assert RetryPolicy() == RetryPolicy()
    with pytest.raises(FrozenInstanceError):
        RetryPolicy().max_attempts = 9  # type: ignore[misc]
