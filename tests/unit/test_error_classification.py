"""Errors: transient or permanent, by classifier and by HTTP status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.errors import AccessDenied
from jetjobs.model.error_classification import PERMANENT, TRANSIENT, Verdict, classify, http_verdict, retry_after_s

NOW = datetime(2027, 1, 1, tzinfo=UTC)


class Response:
    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class LikeHttpx(Exception):
    """Has the attributes of httpx.HTTPStatusError and requests.HTTPError."""

    def __init__(self, response: Any) -> None:
        self.response = response


class LikeAiohttp(Exception):
    """Has the attributes of aiohttp.ClientResponseError."""

    def __init__(self, status: int, headers: Any = None) -> None:
        self.status = status
        self.headers = headers


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (LikeHttpx(Response(404)), PERMANENT),
        (LikeHttpx(Response(422)), PERMANENT),
        (LikeHttpx(Response(503)), TRANSIENT),
        (LikeHttpx(Response(507)), TRANSIENT),
        (LikeHttpx(Response(429, Retry_After="17")), Verdict(True, 17.0)),
        (LikeHttpx(Response(503, Retry_After="Fri, 01 Jan 2027 00:01:00 GMT")), Verdict(True, 60.0)),
        (LikeHttpx(Response(429, Retry_After="soon")), TRANSIENT),
        (LikeAiohttp(429, {"Retry-After": "3"}), Verdict(True, 3.0)),
        (LikeAiohttp(400), PERMANENT),
        (LikeHttpx(Response(200)), None),
        (LikeHttpx(None), None),
        (LikeAiohttp(True), None),
        (ValueError("x"), None),
    ],
)
def test_http_errors_are_known_by_their_shape(error: BaseException, verdict: Verdict | None) -> None:
    assert http_verdict(error, NOW) == verdict


@given(st.text())
def test_any_retry_after_is_a_bounded_wait_or_none(text: str) -> None:
    wait = retry_after_s(text, NOW)
    assert wait is None or 0.0 <= wait <= 86400.0


def test_the_nearest_class_of_the_apps_own_classifiers_decides() -> None:
    classifiers: dict[type[BaseException], Any] = {
        Exception: lambda error: PERMANENT,
        LookupError: lambda error: None,
        OSError: lambda error: Verdict(True, 9.0),
    }
    assert classify(ConnectionError(), classifiers) == Verdict(True, 9.0)
    assert classify(KeyError(), classifiers) == PERMANENT  # no opinion: the base class decides
    assert classify(SystemExit(), classifiers) == TRANSIENT
    assert classify(LikeAiohttp(404), {}) == PERMANENT


def test_a_missing_permission_is_permanent_unless_the_app_says_otherwise() -> None:
    assert classify(AccessDenied("publish to x"), {}) == PERMANENT
    assert classify(AccessDenied("publish to x"), {Exception: lambda error: TRANSIENT}) == TRANSIENT


def test_an_error_whose_properties_raise_is_transient() -> None:
    class Unanswered(Exception):
        @property
        def response(self) -> None:
            raise RuntimeError("no response was received")

    assert classify(Unanswered(), {}) == TRANSIENT


def test_a_classifier_that_fails_or_answers_nonsense_has_no_opinion() -> None:
    def broken(error: BaseException) -> Verdict:
        raise ZeroDivisionError

    assert classify(ValueError(), {ValueError: broken}) == TRANSIENT
    nonsense: Any = lambda error: "later"  # noqa: E731
    assert classify(ValueError(), {ValueError: nonsense, Exception: lambda error: PERMANENT}) == PERMANENT


def test_a_date_to_retry_after_counts_from_the_date_of_the_response() -> None:
    dates = {"Date": "Fri, 01 Jan 2027 10:00:00 GMT", "Retry_After": "Fri, 01 Jan 2027 10:00:30 GMT"}
    assert http_verdict(LikeHttpx(Response(503, **dates))) == Verdict(True, 30.0)
    dates["Date"] = "nonsense"
    assert http_verdict(LikeHttpx(Response(503, **dates)), NOW) == Verdict(True, 36030.0)
