"""Backoff arithmetic."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any, Literal

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
    return RetryPolicy(draw(st.integers(1, 10**9 - 1)), base, cap, draw(jitter))


@given(ATTEMPTS, policies(), DRAWS)
def test_a_delay_is_never_negative_and_never_over_the_cap(attempt: int, policy: RetryPolicy, draw: float) -> None:
    assert 0.0 <= delay_s(attempt, policy, draw) <= policy.cap.total_seconds()


@given(st.integers(1, 40), policies())
def test_backoff_doubles_until_the_cap(attempt: int, policy: RetryPolicy) -> None:
    doubled = 2 * backoff_s(attempt, policy)
    assert backoff_s(attempt + 1, policy) == min(doubled, policy.cap.total_seconds())


@given(ATTEMPTS, policies(jitter=st.just(False)), DRAWS)
def test_without_jitter_the_delay_is_the_backoff(attempt: int, policy: RetryPolicy, draw: float) -> None:
    assert delay_s(attempt, policy, draw) == backoff_s(attempt, policy)


@given(ATTEMPTS, policies(jitter=st.just(True)), DRAWS)
def test_with_jitter_the_delay_is_drawn_from_half_of_the_backoff_to_all_of_it(
    attempt: int, policy: RetryPolicy, draw: float
) -> None:
    whole = backoff_s(attempt, policy)
    assert delay_s(attempt, policy, 0.0) == whole / 2
    assert delay_s(attempt, policy, 1.0) == whole
    assert delay_s(attempt, policy, draw) == pytest.approx(whole / 2 + whole / 2 * draw)


def test_three_attempts_of_the_default_policy_take_at_least_three_seconds() -> None:
    assert sum(delay_s(attempt, RetryPolicy(), 0.0) for attempt in (1, 2)) == 3.0


@pytest.mark.parametrize("attempt", [65, 66, 1_000_000, 10**100])
def test_a_huge_attempt_number_gives_the_cap_and_no_overflow(attempt: int) -> None:
    assert backoff_s(attempt, RetryPolicy()) == 3600.0


def test_the_longest_durations_do_not_overflow() -> None:
    assert backoff_s(10**6, RetryPolicy(base=timedelta.max, cap=timedelta.max)) == timedelta.max.total_seconds()


def test_a_policy_is_a_value() -> None:
    assert RetryPolicy() == RetryPolicy()
    with pytest.raises(FrozenInstanceError):
        RetryPolicy().max_attempts = 9  # type: ignore[misc]


KINDS = st.sampled_from(["exponential", "linear", "fixed"])


@given(ATTEMPTS, policies(), KINDS)
def test_every_kind_of_backoff_stays_within_the_cap_and_never_shrinks(
    attempt: int, policy: RetryPolicy, kind: Literal["exponential", "linear", "fixed"]
) -> None:
    policy = replace(policy, backoff=kind)
    assert 0.0 <= backoff_s(attempt, policy) <= backoff_s(attempt + 1, policy) <= policy.cap.total_seconds()


def test_linear_and_fixed_backoff_are_what_their_names_say() -> None:
    base = timedelta(seconds=3)
    assert [backoff_s(n, RetryPolicy(base=base, backoff="linear")) for n in (1, 2, 5)] == [3.0, 6.0, 15.0]
    assert [backoff_s(n, RetryPolicy(base=base, backoff="fixed")) for n in (1, 2, 5)] == [3.0, 3.0, 3.0]


def test_a_function_decides_within_the_cap_and_a_broken_one_does_not_lose_the_job() -> None:
    def squares(attempt: int) -> timedelta:
        return timedelta(seconds=attempt**2)

    def broken(attempt: int) -> timedelta:
        raise ZeroDivisionError

    assert [backoff_s(n, RetryPolicy(backoff=squares)) for n in (1, 3, 1000)] == [1.0, 9.0, 3600.0]
    assert backoff_s(4, RetryPolicy(backoff=broken)) == 2.0
    assert backoff_s(4, RetryPolicy(backoff=lambda attempt: timedelta(-1))) == 2.0


@given(policies(), KINDS, st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=365)))
def test_a_policy_comes_back_from_a_jobs_header(
    policy: RetryPolicy, kind: Literal["exponential", "linear", "fixed"], max_age: timedelta | None
) -> None:
    policy = replace(policy, backoff=kind, max_age=max_age)
    assert RetryPolicy().with_header(policy.to_header()) == policy


@pytest.mark.parametrize("text", ["", "[]", "7", "{", '{"max_attempts":0}', '{"base_s":"x"}', '{"backoff":"odd"}'])
def test_an_invalid_policy_header_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any will do: the caller falls back to the task's policy
        RetryPolicy().with_header(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"max_attempts": "3"},
        {"base": "soon"},
        {"base": timedelta(seconds=-1)},
        {"base": timedelta(hours=2)},
        {"cap": timedelta(seconds=1)},
        {"max_age": timedelta(0)},
        {"backoff": "odd"},
        {"retry_on": OSError},
        {"dead_on": (5,)},
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        RetryPolicy(**wrong)


def test_a_jobs_own_policy_holds_no_code() -> None:
    for policy in (RetryPolicy(retry_on=(OSError,)), RetryPolicy(backoff=lambda attempt: timedelta(1))):
        with pytest.raises(DefinitionError):
            policy.to_header()
