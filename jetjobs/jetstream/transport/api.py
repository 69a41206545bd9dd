"""The subjects of the JetStream API and of acks, and how the API writes times: spelled here and nowhere else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

NS: Final = 1_000_000_000
"""The API counts durations in nanoseconds."""

PREFIX: Final = "$JS.API."
ACK_PREFIX: Final = "$JS.ACK."
"""The reply subject of every delivered message begins with this. A status message has no such reply."""

ACCOUNT_INFO: Final = f"{PREFIX}INFO"
STREAM_NAMES: Final = f"{PREFIX}STREAM.NAMES"


def stream_info(stream: str) -> str:
    return f"{PREFIX}STREAM.INFO.{stream}"


def stream_create(stream: str) -> str:
    return f"{PREFIX}STREAM.CREATE.{stream}"


def stream_update(stream: str) -> str:
    return f"{PREFIX}STREAM.UPDATE.{stream}"


def stream_delete(stream: str) -> str:
    return f"{PREFIX}STREAM.DELETE.{stream}"


def stream_purge(stream: str) -> str:
    return f"{PREFIX}STREAM.PURGE.{stream}"


def message_get(stream: str) -> str:
    """Read one message through the leader of the stream."""
    return f"{PREFIX}STREAM.MSG.GET.{stream}"


def message_delete(stream: str) -> str:
    return f"{PREFIX}STREAM.MSG.DELETE.{stream}"


def direct_get(stream: str) -> str:
    """Read messages from any replica of the stream."""
    return f"{PREFIX}DIRECT.GET.{stream}"


def consumer_list(stream: str) -> str:
    return f"{PREFIX}CONSUMER.LIST.{stream}"


def consumer_info(stream: str, consumer: str) -> str:
    return f"{PREFIX}CONSUMER.INFO.{stream}.{consumer}"


def consumer_create(stream: str, consumer: str, filter_subject: str) -> str:
    return f"{PREFIX}CONSUMER.CREATE.{stream}.{consumer}.{filter_subject}"


def consumer_pause(stream: str, consumer: str) -> str:
    return f"{PREFIX}CONSUMER.PAUSE.{stream}.{consumer}"


def next_messages(stream: str, consumer: str) -> str:
    """Request messages of a pull consumer."""
    return f"{PREFIX}CONSUMER.MSG.NEXT.{stream}.{consumer}"


# Acks: $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<stored at, ns>.<pending>


def ack(stream: str, consumer: str, sequence: int) -> str:
    """The ack subject of a message that was not delivered to this process."""
    return f"{ACK_PREFIX}{stream}.{consumer}.1.{sequence}.{sequence}.0.0"


def acks_of(subject: str) -> str:
    """All ack subjects of the lane that delivered the message with this one.

    >>> acks_of("$JS.ACK.jobs-work-mail.normal.1.42.77.1700000000123456789.5")
    '$JS.ACK.jobs-work-mail.normal.>'
    """
    tokens = subject.split(".")
    return ".".join(tokens[: 4 if len(tokens) == 9 else 6]) + ".>"


def without_ids(subject: str) -> str:
    """The subject without the tokens that may be ids: of jobs, of keys in a bucket, of objects and of inboxes.

    >>> without_ids("shop.work.mail.retry.send.-.0190f8")
    'shop.work.mail.retry'
    >>> without_ids("$KV.shop-running.0190f8")
    '$KV.shop-running'
    >>> without_ids("$JS.API.CONSUMER.MSG.NEXT.shop-work-mail.normal")
    '$JS.API.CONSUMER.MSG.NEXT.shop-work-mail.normal'
    """
    if subject.startswith((PREFIX, ACK_PREFIX)):
        return subject
    tokens = subject.split(".")
    kept = 2 if tokens[0] in ("$KV", "$O") else 1 if tokens[0].startswith("_INBOX") else 4
    return ".".join(tokens[:kept])


def parse_ack(subject: str) -> tuple[int, int, int, float, int]:
    """Number of deliveries, sequence, consumer sequence, stored time and number of pending messages.

    A plain tuple, because this runs for every delivery. The stored time is precise to the microsecond, as in a
    message that is read from its stream, because ids are made of it.

    >>> parse_ack("$JS.ACK.jobs-work-mail.normal.1.42.77.1700000000123456789.5")
    (1, 42, 77, 1700000000.123456, 5)
    """
    tokens = subject.split(".")
    start = 4 if len(tokens) == 9 else 6  # newer servers may add domain and account in front, and a token behind
    return (
        int(tokens[start]),
        int(tokens[start + 1]),
        int(tokens[start + 2]),
        int(tokens[start + 3]) // 1000 / 1e6,
        int(tokens[start + 4]),
    )


# Times are in RFC 3339.


def parse_time(text: str) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def format_time(seconds: float) -> str:
    """
    >>> format_time(1700000000.5)
    '2023-11-14T22:13:20.500000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern with wildcards.

    >>> matches("shop.work.*.high.>", "shop.work.mail.high.send")
    True
    >>> matches("shop.work.>", "shop.work")
    False
    """
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))
