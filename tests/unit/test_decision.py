"""The outcome of a failed attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.decision import (
    MAX_PARK_S,
    MAX_WAIT_S,
    decide,
    park,
    refuse,
)
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
from jetjobs.model.outcome import (
    DeadLettered,
    DeadReason,
    Outcome,
    Parked,
    Reject,
    Retried,
    Retry,
    Snooze,
    Snoozed,
)
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.views.error_text import describe

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


# Unknown tasks

UNKNOWN = UnknownTask("no task named 'greet'", hint="did you mean 'great'?")
GRACE = 600.0


def parked(since: float, known: bool, draw: float = 1.0, now: float = NOW, deadline: float = 0.0) -> Outcome:
    return park(a_job(deadline=deadline), UNKNOWN, since, known, GRACE, now, draw)


@pytest.mark.parametrize(
    ("parked_s", "known", "longest"),
    [
        (0.0, False, 1.0),
        (0.7, False, 1.0),
        (8.0, False, 8.0),
        (90.0, False, 60.0),
        (0.0, True, 0.2),
        (3.0, True, 0.2),
        (8.0, True, 0.4),
        (3600.0, True, 60.0),
    ],
)
def test_a_job_of_an_unknown_task_is_parked_for_longer_and_longer(
    parked_s: float, known: bool, longest: float
) -> None:
    since = NOW - parked_s if parked_s else 0.0
    first = NOW - parked_s
    text = "waits for a worker that knows task 'greet'" if known else "no worker knows task 'greet'"
    for draw in (0.0, 1.0):
        outcome = parked(since, known, draw)
        assert isinstance(outcome, Parked)
        assert outcome.delay_s == pytest.approx(longest * (0.5 + draw / 2))
        assert outcome.since == first
        assert (outcome.error.type, outcome.error.text) == ("jetjobs.errors.UnknownTask", text)


def test_without_a_worker_that_knows_the_task_the_job_is_dead_after_the_grace_period() -> None:
    last = parked(NOW - GRACE + 5.0, False)
    assert isinstance(last, Parked)
    assert last.delay_s == pytest.approx(5.0)  # it is delivered again when the time is up
    dead = parked(NOW - GRACE, False)
    assert isinstance(dead, DeadLettered)
    assert dead.reason is DeadReason.UNKNOWN_TASK
    assert dead.error.text == "no task named 'greet'; did you mean 'great'?"
    assert isinstance(parked(NOW - 100 * GRACE, True), Parked)


def test_a_grace_period_of_zero_dead_letters_at_once_unless_a_worker_knows_the_task() -> None:
    assert isinstance(park(a_job(), UNKNOWN, 0.0, False, 0.0, NOW, 0.5), DeadLettered)
    assert isinstance(park(a_job(), UNKNOWN, 0.0, True, 0.0, NOW, 0.5), Parked)


def test_a_name_that_no_task_can_have_is_dead_at_once() -> None:
    impossible = a_job()._replace(task="\ufffd")
    assert isinstance(park(impossible, UNKNOWN, 0.0, False, GRACE, NOW, 0.5), DeadLettered)


@given(
    since=st.floats(0, 2 * NOW),
    known=st.booleans(),
    grace=st.floats(0, NOW),
    draw=st.floats(0, 1),
    deadline=st.floats(0, 2 * NOW),
)
def test_a_parking_is_bounded_by_a_minute_the_grace_period_and_the_deadline(
    since: float, known: bool, grace: float, draw: float, deadline: float
) -> None:
    outcome = park(a_job(deadline=deadline), UNKNOWN, since, known, grace, NOW, draw)
    if isinstance(outcome, DeadLettered):
        assert not known
        assert min(since or NOW, NOW) + grace <= NOW + 1e-6
        return
    assert 0.0 <= outcome.delay_s <= MAX_PARK_S
    assert 0.0 < outcome.since <= NOW  # a forged time in the future does not extend the grace period
    assert known or NOW + outcome.delay_s <= outcome.since + grace + 1e-6
    assert not deadline or outcome.delay_s <= max(0.0, deadline - NOW)
