"""A stored dead letter as a value. Whatever is missing or odd in it is shown as empty, never raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetjobs.jetstream.codec import read_history
from jetjobs.jetstream.dead_letters import read_cause
from jetjobs.jetstream.reads import StoredMessage
from jetjobs.model import names as n
from jetjobs.model.letter import DeadLetter
from jetjobs.model.names import PRIORITIES
from jetjobs.model.reading import at, read_json


def read_letter(message: StoredMessage) -> DeadLetter:
    """The letter in a message of the dead stream."""
    queue, task, job_id = message.subject.split(".")[-3:]
    # What the server was asked for with the publish is no part of the job.
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    cause = read_cause(headers)
    lane = headers.get(n.LANE, "")
    number, replays = _replays(headers)
    return DeadLetter(
        job_id,
        queue,
        task,
        lane if lane in PRIORITIES else "normal",
        str(cause.get("reason", "")),
        str(cause.get("type", "")),
        str(cause.get("text", "")),
        str(cause.get("traceback", "")),
        str(cause.get("worker", "")),
        at(_time(cause.get("at")) or message.stored_at),
        at(_time(headers.get(n.ENQUEUED_AT))),
        whole_number(headers.get(n.ATTEMPT)) or 1,
        message.data,
        tuple(read_history(headers)),
        replays,
        headers.get(n.RUN, ""),
        message.sequence,
        headers.get(n.PAYLOAD, ""),
        headers,
        number,
    )


def whole_number(text: str | None) -> int:
    """A header as a number, or 0."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else 0


def _replays(headers: Mapping[str, str]) -> tuple[int, tuple[dict[str, Any], ...]]:
    """How often it was replayed, and the last of these replays."""
    try:
        found = read_json(headers.get(n.REPLAY, "{}"))
        entries, number = found["replays"], int(found["number"])
    except (ValueError, OverflowError, KeyError, TypeError):
        return 0, ()
    kept = tuple(entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()
    return max(0, number), kept


def _time(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return seconds if 0.0 < seconds < 253402300800.0 else 0.0
