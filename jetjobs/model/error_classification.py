"""Classify errors: transient, permanent, or to be retried after a time that the other side named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import AccessDenied, ChildRaised
from jetjobs.model.public import public

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


@public("jetjobs.errors")
@dataclass(frozen=True, slots=True, init=False)
class Verdict:
    """Whether an error is worth a retry. `after`, if set, replaces the backoff of the policy."""

    transient: bool
    after: timedelta | None

    def __init__(self, transient: bool, after: Duration | None = None) -> None:
        object.__setattr__(self, "transient", transient)
        object.__setattr__(self, "after", None if after is None else to_duration("after", after, of="Verdict: "))


TRANSIENT = Verdict(True)
PERMANENT = Verdict(False)

Classifier = Callable[[Any], Verdict | None]
"""Gets the error; returns None for no opinion."""


def classify(error: BaseException, classifiers: Mapping[type[BaseException], Classifier]) -> Verdict:
    """The verdict of the app for the nearest class of the error, else by permission or HTTP status, else
    transient."""
    if isinstance(error, ChildRaised):
        return Verdict(error.transient, error.after)  # classified in the child, which has the error itself
    for kind in type(error).__mro__:
        classifier = classifiers.get(kind)
        verdict = _opinion(classifier, error) if classifier is not None else None
        if verdict is not None:
            return verdict
    if isinstance(error, AccessDenied):
        return PERMANENT  # a missing permission stays missing, and each retry would run the task once more
    return _opinion(http_verdict, error) or TRANSIENT  # a property of the error may raise


def _opinion(classifier: Classifier, error: BaseException) -> Verdict | None:
    """The verdict of a classifier. None if it raises or returns something else: that must not lose the job."""
    try:
        verdict = classifier(error)
    except Exception:
        return None
    return verdict if isinstance(verdict, Verdict) else None


def http_verdict(error: BaseException, now: datetime | None = None) -> Verdict | None:
    """The verdict on an HTTP error of httpx, requests or aiohttp, recognised by its attributes."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status < 600:
        return None
    if status not in TRANSIENT_STATUS:
        return PERMANENT if status < 500 else TRANSIENT
    headers = getattr(response, "headers", None) or getattr(error, "headers", None) or {}
    # Both dates are by the clock of the same server; that of this machine may differ.
    sent_at = now or _date(_get(headers, "Date") or "") or datetime.now(UTC)
    return Verdict(True, retry_after_s(_get(headers, "Retry-After"), sent_at))


def retry_after_s(text: str | None, now: datetime) -> float | None:
    """The seconds of a Retry-After header, a number or a date; None for anything else.

    >>> retry_after_s("120", datetime(2027, 1, 1, tzinfo=UTC))
    120.0
    """
    if not text:
        return None
    if (number := text.strip()).isdecimal():
        return float(min(int(number), 86400))
    moment = _date(text)
    return None if moment is None else min(max(0.0, (moment - now).total_seconds()), 86400.0)


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _get(headers: Any, name: str) -> str | None:
    try:
        value = headers.get(name) or headers.get(name.lower())
    except (AttributeError, TypeError):
        return None
    return value if isinstance(value, str) else None
