"""Every error of nats-py and of the server is translated to one of jetjobs."""

from __future__ import annotations

import inspect
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from jetjobs.jetstream.transport import errors
from jetjobs.jetstream.transport.errors import NotSent, from_exception, from_response, is_denial, is_transient
from jetjobs.model.errors import (
    AccessDenied,
    BrokerError,
    BrokerUnavailable,
    StorageFull,
    TopologyConflict,
    TopologyMissing,
    UnsupportedServer,
)

# The meaning of each class. A class that a new version of nats-py adds must be added here and in errors.py.
UNAVAILABLE = {
    "TimeoutError", "NoRespondersError", "StaleConnectionError", "OutboundBufferLimitError", "UnexpectedEOF",
    "FlushTimeoutError", "ConnectionClosedError", "SlowConsumerError", "NoServersError", "DrainTimeoutError",
    "ConnectionDrainingError", "ConnectionReconnectingError", "js.ServiceUnavailableError",
    "js.NoStreamResponseError", "js.FetchTimeoutError",
}  # fmt: skip
DENIED = {"AuthorizationError", "InvalidUserCredentialsError"}
REFUSED = {
    "Error", "SecureConnRequiredError", "SecureConnWantedError", "SecureConnFailedError",
    "BadSubscriptionError", "BadSubjectError", "BadHeaderError", "BadTimeoutError", "JsonParseError",
    "MaxPayloadError", "InvalidCallbackTypeError", "ProtocolError", "ServerNotInPoolError",
    "NotJSMessageError", "MsgAlreadyAckdError", "js.Error", "js.APIError", "js.ServerError",
    "js.NotFoundError", "js.BadRequestError", "js.ConsumerInvalidResetError", "js.TooManyStalledMsgsError",
    "js.ConsumerSequenceMismatchError", "js.BucketNotFoundError", "js.BadBucketError", "js.KeyValueError",
    "js.KeyDeletedError", "js.KeyNotFoundError", "js.KeyWrongLastSequenceError", "js.NoKeysError",
    "js.KeyHistoryTooLargeError", "js.InvalidKeyError", "js.InvalidBucketNameError",
    "js.InvalidObjectNameError", "js.BadObjectMetaError", "js.LinkIsABucketError", "js.DigestMismatchError",
    "js.ObjectNotFoundError", "js.ObjectDeletedError", "js.ObjectAlreadyExists",
    "js.KeyValueLimitMarkerTTLNotSupportedError",
}  # fmt: skip


def classes() -> dict[str, type[BaseException]]:
    return {
        f"{prefix}{name}": value
        for prefix, module in (("", nats.errors), ("js.", nats.js.errors))
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == module.__name__
    }


CLASSES = classes()


def make(kind: type[BaseException]) -> BaseException:
    """An instance, with any arguments that its constructor needs."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    named = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return kind(**dict.fromkeys(named, 1))


def test_every_error_of_nats_py_is_mapped_explicitly() -> None:
    known = UNAVAILABLE | DENIED | REFUSED
    assert sorted(CLASSES.keys() - known) == [], "new in nats-py: decide what they mean, here and in errors.py"
    assert sorted(known - CLASSES.keys()) == [], "no longer in nats-py"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_of_nats_py_is_translated(name: str) -> None:
    ours = from_exception(make(CLASSES[name]), "connect")
    expected = BrokerUnavailable if name in UNAVAILABLE else AccessDenied if name in DENIED else BrokerError
    assert type(ours) is (NotSent if name == "ConnectionReconnectingError" else expected)
    assert str(ours).startswith("connect: ")
    assert len(str(ours)) > len("connect: ")
    assert is_transient(ours) is (name in UNAVAILABLE)


@pytest.mark.parametrize("error", [OSError("refused"), ConnectionRefusedError(), TimeoutError()])
def test_errors_of_the_network_are_unavailability(error: Exception) -> None:
    assert type(from_exception(error, "connect")) is BrokerUnavailable
    assert type(from_exception(EOFError("x"), "connect")) is BrokerError


def test_an_error_without_text_is_described_by_its_name() -> None:
    assert str(from_exception(ConnectionRefusedError(), "connect")) == "connect: ConnectionRefusedError"


@pytest.mark.parametrize(
    ("text", "denial"),
    [
        ("nats: 'Authorization Violation'", True),
        ("nats: permissions violation for publish to 'a'", True),
        ("User Authentication Expired", True),
        ("nats: no responders available for request", False),
        ("", False),
    ],
)
def test_a_denial_is_recognised_by_its_text(text: str, denial: bool) -> None:
    assert is_denial(text) is denial
    assert isinstance(from_exception(nats.errors.Error(text), "x"), AccessDenied) is denial


# Codes in answers


def answer(err_code: int, code: int = 400) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": "because"}}


@pytest.mark.parametrize(
    ("err_code", "expected"),
    [
        (10059, TopologyMissing),
        (10014, TopologyMissing),
        (10039, UnsupportedServer),
        (10076, UnsupportedServer),
        (10023, StorageFull),
        (10047, StorageFull),
        (10077, StorageFull),
        (10058, TopologyConflict),
        (10065, TopologyConflict),
        (10148, TopologyConflict),
        (10164, BrokerUnavailable),
        (10158, BrokerUnavailable),
        (10008, BrokerUnavailable),
        (10009, BrokerUnavailable),
        (10118, BrokerUnavailable),
        (10071, BrokerError),
        (10037, BrokerError),
        (10201, BrokerError),
        (99999, BrokerError),
    ],
)
def test_an_error_code_of_the_server_is_translated_and_kept(err_code: int, expected: type[BrokerError]) -> None:
    error = from_response(answer(err_code), "publish to a")
    assert type(error) is expected
    assert error.code == err_code
    assert "publish to a: because" in str(error)
    assert is_transient(error) is (expected is BrokerUnavailable)


def test_no_code_has_two_meanings() -> None:
    groups = [
        {errors.STREAM_NOT_FOUND, errors.CONSUMER_NOT_FOUND},
        errors.NO_JETSTREAM,
        errors.STORAGE,
        errors.CONFLICT,
        errors.TRANSIENT,
        {errors.WRONG_LAST_SEQUENCE, errors.MESSAGE_NOT_FOUND, errors.BATCH_DUPLICATE},
    ]
    codes = [code for group in groups for code in group]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("response", [{}, {"error": None}, {"error": {}}, {"stream": "a", "seq": 1}])
def test_an_answer_without_an_error_is_none(response: dict[str, Any]) -> None:
    assert from_response(response, "x") is None


def test_an_unavailable_service_is_transient_with_any_code() -> None:
    error = from_response(answer(12345, code=503), "x")
    assert isinstance(error, BrokerUnavailable)


def test_an_error_without_code_or_text_is_an_error() -> None:
    error = from_response({"error": {"code": 500}}, "x")
    assert type(error) is BrokerError
    assert error.code == 0
