"""What crosses between worker and child keeps its meaning."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, Reject, Retry, RetryPolicy, Settings, Snooze
from jetjobs.define.context import Context
from jetjobs.define.task import Task
from jetjobs.errors import Verdict
from jetjobs.model.decision import decide
from jetjobs.model.error_classification import PERMANENT, TRANSIENT, Classifier, classify
from jetjobs.model.errors import ChildDied, ChildRaised, UnstorableValue
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, Retried, Snoozed
from jetjobs.model.settings import build_settings
from jetjobs.model.views.error_text import describe
from jetjobs.worker.isolation.channel import ProtocolError
from jetjobs.worker.isolation.messages import (
    context_data,
    context_from,
    error_data,
    error_from,
    settings_data,
)

JOB = Job("j1", "t", "default", "normal", b"{}", enqueued_at=1.0, headers={"tenant": "a"})


def test_settings_are_the_same_in_the_child_passwords_and_durations_included() -> None:
    nats = {"url": "nats://h:1", "user": "u", "password": "secret", "connect_timeout": "1m30s"}
    settings = build_settings({"nats": nats, "queues": {"lease": 2.5}})
    assert build_settings(json.loads(json.dumps(settings_data(settings)))) == settings
    assert settings_data(None) is None


def task_with(policy: RetryPolicy) -> Task[[], None]:
    def t() -> None: ...

    return JetJobs("x", settings=Settings()).task(isolation="process", retry=policy)(t)


def cross(
    error: BaseException,
    policy: RetryPolicy | None = None,
    classifiers: Mapping[type[BaseException], Classifier] | None = None,
) -> Exception:
    """Raise it in the child, as it were, and look at it in the worker."""
    try:
        raise error
    except BaseException as raised:
        data = error_data(raised, task_with(policy or RetryPolicy()), classifiers or {})
    return error_from(json.loads(json.dumps(data)))


def outcome(error: Exception, policy: RetryPolicy | None = None) -> Any:
    policy = policy or RetryPolicy(jitter=False)
    return decide(JOB, error, policy, classify(error, {}), 10.0, 0.5)


def test_a_context_crosses_whole() -> None:
    context = Context(JOB, "w", 7, 2, time.monotonic() + 60)
    body = b'{"a": 1}'
    back = context_from(json.loads(json.dumps(context_data(context))), body)
    assert back.job == JOB._replace(body=body)
    assert (back.worker, back.fence, back.delivery, back.headers) == ("w", 7, 2, {"tenant": "a"})
    assert 50 < back.remaining.total_seconds() <= 60


def test_an_error_says_the_same_with_the_traceback_of_the_child() -> None:
    crossed = cross(ValueError("bad"))
    info = describe(crossed)
    assert (info.type, info.text) == ("ValueError", "bad")
    assert "raise error" in info.traceback
    assert str(crossed) == "ValueError: bad"


@pytest.mark.parametrize(
    ("error", "policy", "transient"),
    [
        (ValueError(), RetryPolicy(), True),
        (ValueError(), RetryPolicy(dead_on=(ValueError,)), False),
        (ValueError(), RetryPolicy(retry_on=(OSError,)), False),
        (FileNotFoundError(), RetryPolicy(retry_on=(OSError,)), True),
        (UnstorableValue("no"), RetryPolicy(), False),
        (SystemExit(1), RetryPolicy(), True),
    ],
)
def test_lists_are_asked_where_the_class_is_known(
    error: BaseException, policy: RetryPolicy, transient: bool
) -> None:
    crossed = cross(error, policy)
    assert isinstance(crossed, ChildRaised)
    assert crossed.transient is transient
    # The worker has the same lists, and they must not be asked about the stand-in.
    assert isinstance(outcome(crossed, policy), Retried if transient else DeadLettered)


def test_a_verdict_crosses_with_its_time() -> None:
    crossed = cross(KeyError(), classifiers={LookupError: lambda error: Verdict(True, 90.0)})
    assert outcome(crossed) == Retried(90.0, describe(crossed))
    crossed = cross(KeyError(), classifiers={LookupError: lambda error: PERMANENT})
    assert outcome(crossed).reason is DeadReason.PERMANENT


def test_lists_and_classifiers_of_the_worker_are_asked_about_a_child_that_died() -> None:
    died = ChildDied("killed by SIGSEGV")
    policy = RetryPolicy(dead_on=(ChildDied,))
    assert isinstance(decide(JOB, died, policy, TRANSIENT, 10.0, 0.5), DeadLettered)
    assert classify(died, {ChildDied: lambda error: PERMANENT}) == PERMANENT
    assert isinstance(outcome(died), Retried)


def test_signals_are_themselves_again() -> None:
    retry = cross(Retry(timedelta(minutes=5), "locked"))
    assert isinstance(retry, Retry)
    assert (retry.after, str(retry)) == (timedelta(minutes=5), "locked")
    assert outcome(retry).delay_s == 300.0
    plain = cross(Retry())
    assert isinstance(plain, Retry)
    assert plain.after is None
    zero = cross(Retry(timedelta(0)))
    assert isinstance(zero, Retry)
    assert zero.after == timedelta(0)
    assert outcome(cross(Snooze(timedelta(0)))) == Snoozed(0.0)
    assert outcome(cross(Snooze(timedelta(hours=1)))) == Snoozed(3600.0)
    assert outcome(cross(Snooze(until=datetime.fromtimestamp(110, UTC)))) == Snoozed(100.0)
    reject = cross(Reject("never"))
    assert isinstance(reject, Reject)
    assert outcome(reject).error.text == "never"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "T", "text": "x"},
        {"type": "T", "text": "x", "trace": ""},
        {"type": "T", "text": "x", "trace": "", "signal": "snooze"},
        {"type": "T", "text": "x", "trace": "", "signal": "retry", "after_s": "soon"},
        {"type": "T", "text": "x", "trace": "", "signal": "snooze", "until": 1e300},
    ],
)
def test_an_error_that_cannot_be_read_is_garbled(data: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        error_from(data)
