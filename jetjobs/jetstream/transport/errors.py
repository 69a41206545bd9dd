"""Translate errors of nats-py and of the server to those of jetjobs, and decide which ones to retry."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import nats.js.errors

from jetjobs.model.errors import (
    AccessDenied,
    BrokerError,
    BrokerUnavailable,
    StorageFull,
    TopologyConflict,
    TopologyMissing,
    UnsupportedServer,
)


class NotSent(BrokerUnavailable):
    """Not connected: the request was not sent and cannot have had an effect."""


# Error codes of the server that jetjobs handles.
WRONG_LAST_SEQUENCE = 10071
CAS_IN_FLIGHT = 10164
DUPLICATE_IN_FLIGHT = 10158
BATCH_DUPLICATE = 10201
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037
MESSAGE_DELETE_FAILED = 10057
SEQUENCE_NOT_FOUND = 10043
WRITE_FAILED = 10051
NO_PEERS = frozenset({10005, 10074})
STORAGE = frozenset({10023, 10047, 10028, 10077})
NO_JETSTREAM = frozenset({10039, 10076})
CONFLICT = frozenset({10058, 10065, 10052, 10148, 10012, 10099, 10100})
TRANSIENT = frozenset(
    {
        CAS_IN_FLIGHT,  # a publish on the same subject is still being replicated
        DUPLICATE_IN_FLIGHT,  # our own first copy is still being replicated
        10008,  # the cluster is temporarily unavailable
        10009,  # no leader
        10118,  # stream offline
        10119,  # consumer offline
        10176,  # too many open batches
        10210,  # batch still in flight
    }
)

# Every error class of nats-py by its meaning to a caller. A test fails when nats-py adds one.
UNAVAILABLE: tuple[type[BaseException], ...] = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.NoServersError,
    nats.errors.StaleConnectionError,
    nats.errors.UnexpectedEOF,
    nats.errors.FlushTimeoutError,
    nats.errors.DrainTimeoutError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionDrainingError,
    nats.errors.SlowConsumerError,
    nats.js.errors.NoStreamResponseError,
    nats.js.errors.ServiceUnavailableError,
    asyncio.TimeoutError,
    OSError,
)
DENIED: tuple[type[BaseException], ...] = (
    nats.errors.AuthorizationError,
    nats.errors.InvalidUserCredentialsError,
)


def from_response(response: dict[str, Any], doing: str) -> BrokerError | None:
    """The error in an answer of the JetStream API or to a publish; None if it has none."""
    error = response.get("error")
    if not error:
        return None
    code = int(error.get("err_code") or 0)
    text = f"{doing}: {error.get('description', 'refused')}"
    if code in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
        return TopologyMissing(text, code=code, hint="jetjobs setup apply")
    if code in NO_JETSTREAM:
        return UnsupportedServer(
            text, code=code, hint="start nats-server with -js, or enable JetStream for the account"
        )
    if code in STORAGE:
        return StorageFull(text, code=code, hint="free JetStream storage or raise its limits")
    if code in CONFLICT:
        return TopologyConflict(text, code=code, hint="jetjobs setup plan")
    if code in TRANSIENT or error.get("code") == 503:
        return BrokerUnavailable(text, code=code)
    return BrokerError(f"{text} ({code})", code=code)


def from_exception(error: BaseException, doing: str) -> BrokerError:
    """The error of jetjobs for one that nats-py raised. The caller chains it with `from`."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, DENIED) or is_denial(text):
        return AccessDenied(f"{doing}: {text}", hint="check the credentials and permissions of this user")
    if isinstance(error, nats.errors.ConnectionReconnectingError):
        return NotSent(f"{doing}: {text}")
    if isinstance(error, UNAVAILABLE):
        return BrokerUnavailable(f"{doing}: {text}")
    return BrokerError(f"{doing}: {text}")


def is_denial(text: str) -> bool:
    """Whether the error text of a server reports a missing permission."""
    lowered = text.lower()
    return any(
        phrase in lowered
        for phrase in (
            "authorization violation",
            "permissions violation",
            "authentication",
            "user authentication expired",
        )
    )


def is_transient(error: BrokerError) -> bool:
    return isinstance(error, BrokerUnavailable) or error.code in TRANSIENT
