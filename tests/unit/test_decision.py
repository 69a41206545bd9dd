"""The outcome of a failed attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.decision import MAX_TEXT, MAX_TRACEBACK, MAX_WAIT_S, decide, describe, refuse
from jetjobs.model.error_classification import PERMANENT, TRANSIENT, Verdict
from jetjobs.model.errors import (
    DefinitionError,
    DeliveryError,
    InvalidArguments,
    JobTimeout,
    MalformedJob,
    UnknownTask,
    UnstorableValue,
)
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, Outcome, Reject, Retried, Retry, Snooze, Snoozed
from jetjobs.model.retry import RetryPolicy

NOW = 1_000_000.0
POLICY = RetryPolicy(max_attempts=3, base=timedelta(seconds=10), cap=timedelta(seconds=60), jitter=False)


def a_job(attempt: int = 1, max_attempts: int = 0, deadline: float = 0.0) -> Job:
    return Job(
        "u1", "greet", "mail", "normal", b"{}", attempt=attempt, max_attempts=max_attempts, deadline=deadline
    )


BOOM = ValueError("boom")

CASES: list[tuple[str, Job, BaseException, float | DeadReason]] = [
    ("the first failure waits the base", a_job(1), BOOM, 10.0),
    ("the second twice as long", a_job(2), BOOM, 20.0),
    ("the last attempt is the end", a_job(3), BOOM, DeadReason.EXHAUSTED),
    ("an attempt beyond the last too", a_job(99), BOOM, DeadReason.EXHAUSTED),
    ("a job may allow more than its task", a_job(3, max_attempts=5), BOOM, 40.0),
    ("or less", a_job(1, max_attempts=1), BOOM, DeadReason.EXHAUSTED),
    ("a deadline after the backoff does not matter", a_job(1, deadline=NOW + 10.5), BOOM, 10.0),
    ("one that passes during the backoff is the end", a_job(1, deadline=NOW + 9.0), BOOM, DeadReason.EXPIRED),
    ("one that passes as the backoff ends too", a_job(1, deadline=NOW + 10.0), BOOM, DeadReason.EXPIRED),
    ("one that has passed too", a_job(1, deadline=NOW - 1.0), BOOM, DeadReason.EXPIRED),
    ("exhausted is said before expired", a_job(3, deadline=NOW - 1.0), BOOM, DeadReason.EXHAUSTED),
    ("a timeout is a failure like any other", a_job(1), JobTimeout("slow"), 10.0),
    ("so is sys.exit in a task", a_job(1), SystemExit(1), 10.0),
    ("so are wrong arguments for a job it enqueued", a_job(1), InvalidArguments("x", task="t", problems=[]), 10.0),
    ("a result that cannot be kept is the end", a_job(1), UnstorableValue("x"), DeadReason.PERMANENT),
]


def check(outcome: Outcome, expected: float | DeadReason) -> None:
    """A retry after this many seconds, or a dead letter with this reason."""
    if isinstance(expected, DeadReason):
        assert isinstance(outcome, DeadLettered)
        assert outcome.reason is expected
    else:
        assert isinstance(outcome, Retried)
        assert outcome.delay_s == expected


@pytest.mark.parametrize(
    ("job", "error", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_decisions(job: Job, error: BaseException, expected: float | DeadReason) -> None:
    outcome = decide(job, error, POLICY, TRANSIENT, NOW, 0.5)
    check(outcome, expected)
    assert isinstance(outcome, Retried | DeadLettered)
    assert outcome.error == describe(error)


REFUSALS: list[tuple[DeliveryError, DeadReason]] = [
    (MalformedJob("x"), DeadReason.MALFORMED),
    (UnknownTask("x"), DeadReason.UNKNOWN_TASK),
    (InvalidArguments("x", task="greet", problems=[]), DeadReason.INVALID_ARGUMENTS),
    (DeliveryError("x"), DeadReason.MALFORMED),
]


@pytest.mark.parametrize(("error", "reason"), REFUSALS)
def test_a_delivery_that_cannot_run_is_dead_at_once_and_needs_no_traceback(
    error: DeliveryError, reason: DeadReason
) -> None:
    outcome = refuse(error)
    assert (outcome.reason, outcome.error.text, outcome.error.traceback) == (reason, "x", "")


ERRORS = st.sampled_from([BOOM, JobTimeout("t"), UnstorableValue("r"), SystemExit(2)])


@given(
    attempt=st.integers(1, 10**9 - 1),
    own_limit=st.integers(0, 10**9),
    limit=st.integers(1, 10**9 - 1),
    deadline=st.floats(0, 2 * NOW),
    draw=st.floats(0, 1),
    error=ERRORS,
)
def test_a_retry_is_within_the_limit_and_before_the_deadline(
    attempt: int, own_limit: int, limit: int, deadline: float, draw: float, error: BaseException
) -> None:
    outcome = decide(
        a_job(attempt, own_limit, deadline), error, RetryPolicy(max_attempts=limit), TRANSIENT, NOW, draw
    )
    if isinstance(outcome, Retried):
        assert attempt < (own_limit or limit)
        assert not isinstance(error, UnstorableValue)
        assert 0.0 <= outcome.delay_s <= 3600.0
        assert not deadline or NOW + outcome.delay_s < deadline
    else:
        assert isinstance(error, UnstorableValue) or attempt >= (own_limit or limit) or deadline


def test_the_default_policy_gives_five_attempts() -> None:
    outcomes = [decide(a_job(attempt), BOOM, RetryPolicy(), TRANSIENT, NOW, 0.5).name for attempt in range(1, 6)]
    assert outcomes == ["retried"] * 4 + ["dead_lettered"]


# describe


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def test_an_error_is_described_by_type_text_and_traceback() -> None:
    info = describe(raised(ValueError("boom")))
    assert (info.type, info.text) == ("ValueError", "boom")
    assert info.traceback.startswith("Traceback (most recent call last)")
    assert info.traceback.rstrip().endswith("ValueError: boom")


def test_a_type_outside_of_builtins_is_named_with_its_module() -> None:
    assert describe(Broken()).type == f"{__name__}.Broken"


@pytest.mark.parametrize("error", [Broken("x"), NotText("x")])
def test_an_error_that_cannot_be_printed_is_still_described(error: Exception) -> None:
    info = describe(raised(error))
    assert info.text == "<unprintable>"
    assert "Traceback" in info.traceback


def test_a_very_long_chain_of_causes_is_cut_to_the_nearest() -> None:
    error: BaseException = ValueError("innermost")
    for number in range(3_000):
        outer = ValueError(f"number {number}")
        outer.__cause__ = error
        error = outer
    info = describe(raised(error))
    assert info.text == "number 2999"
    assert "ValueError: number 2998" in info.traceback
    assert len(info.traceback) <= MAX_TRACEBACK


def test_text_and_traceback_are_capped_and_the_end_of_the_traceback_is_kept() -> None:
    info = describe(raised(ValueError("x" * 100_000 + " the end")))
    assert info.text == "x" * MAX_TEXT
    assert len(info.traceback) == MAX_TRACEBACK
    assert info.traceback.rstrip().endswith("the end")


def test_an_exception_group_is_described() -> None:
    info = describe(raised(ExceptionGroup("several", [ValueError("one"), KeyError("two")])))
    assert info.type == "ExceptionGroup"
    assert "ValueError: one" in info.traceback


@given(st.text())
def test_any_text_is_kept_up_to_its_cap(text: str) -> None:
    assert describe(ValueError(text)).text == text[:MAX_TEXT]


# Signals, lists and verdicts

RULES = RetryPolicy(
    max_attempts=3, base=timedelta(seconds=10), jitter=False, retry_on=(OSError,), dead_on=(TimeoutError,)
)


@pytest.mark.parametrize(
    ("error", "policy", "verdict", "expected"),
    [
        (Retry(timedelta(seconds=7)), POLICY, TRANSIENT, 7.0),
        (Retry(), POLICY, TRANSIENT, 10.0),
        (Retry(timedelta(seconds=7)), RULES, PERMANENT, 7.0),
        (Reject("no"), POLICY, TRANSIENT, DeadReason.PERMANENT),
        (BOOM, POLICY, PERMANENT, DeadReason.PERMANENT),
        (BOOM, POLICY, Verdict(True, 42.0), 42.0),
        (BOOM, RULES, TRANSIENT, DeadReason.PERMANENT),
        (ConnectionError("x"), RULES, PERMANENT, 10.0),
        (TimeoutError("x"), RULES, TRANSIENT, DeadReason.PERMANENT),
    ],
)
def test_signals_lists_and_verdicts_in_their_order(
    error: BaseException, policy: RetryPolicy, verdict: Verdict, expected: float | DeadReason
) -> None:
    check(decide(a_job(1), error, policy, verdict, NOW, 0.5), expected)


def test_a_snooze_spends_no_attempt_and_minds_the_deadline() -> None:
    last = a_job(99)
    assert decide(last, Snooze(timedelta(seconds=5)), POLICY, TRANSIENT, NOW, 0.5) == Snoozed(5.0)
    until = datetime.fromtimestamp(NOW + 30, UTC)
    assert decide(last, Snooze(until=until), POLICY, TRANSIENT, NOW, 0.5) == Snoozed(30.0)
    past = datetime.fromtimestamp(NOW - 30, UTC)
    assert decide(last, Snooze(until=past), POLICY, TRANSIENT, NOW, 0.5) == Snoozed(0.0)
    late = decide(a_job(1, deadline=NOW + 3), Snooze(timedelta(seconds=5)), POLICY, TRANSIENT, NOW, 0.5)
    check(late, DeadReason.EXPIRED)


def test_no_attempt_is_made_past_the_age_limit() -> None:
    policy = RetryPolicy(base=timedelta(seconds=10), jitter=False, max_age=timedelta(seconds=60))
    young, old = a_job(1)._replace(enqueued_at=NOW - 50), a_job(1)._replace(enqueued_at=NOW - 51)
    check(decide(young, BOOM, policy, TRANSIENT, NOW, 0.5), 10.0)
    check(decide(old, BOOM, policy, TRANSIENT, NOW, 0.5), DeadReason.EXPIRED)


def test_signals_that_make_no_sense_are_refused_where_they_are_made() -> None:
    for make in (
        lambda: Snooze(),
        lambda: Snooze(timedelta(1), until=datetime.now(UTC)),
        lambda: Snooze(timedelta(-1)),
        lambda: Snooze(until=datetime(2027, 1, 1)),
        lambda: Retry(timedelta(-1)),
    ):
        with pytest.raises(DefinitionError):
            make()


def test_a_wait_is_at_most_ten_years() -> None:
    assert decide(a_job(1), BOOM, POLICY, Verdict(True, timedelta.max), NOW, 0.5).delay_s == MAX_WAIT_S  # type: ignore[union-attr]
    assert decide(a_job(1), Snooze(timedelta.max), POLICY, TRANSIENT, NOW, 0.5) == Snoozed(MAX_WAIT_S)
