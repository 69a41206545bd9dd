"""Encode jobs to subject, headers and body, and decode them: the wire contract of docs/reference/wire.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import Job
from jetjobs.model.outcome import ErrorInfo, Parked
from jetjobs.model.views.error_text import cut
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import anonymous_id, is_id, join_id, parse_id
from jetjobs.model.wire.lenient_json import as_int, read_json, read_record

MAX_HISTORY = 10
MAX_HISTORY_TEXT = 200
MAX_HISTORY_BYTES = 12 * 1024
MAX_TRACEBACK_BYTES = 5 * 1024
_KEPT = frozenset(
    {
        h.PRODUCER,
        h.PARENT,
        h.ROOT,
        h.SECRET,
        h.ERRORS,
        h.TRACEBACK,
        h.RETRY_POLICY,
        h.REPLAY,
        h.OF_SCHEDULE,
        h.SCHEDULED_TIME,
        h.OVERLAP,
        h.PARKED,
        h.CALLBACK,
        h.KEEP,
        *h.OF_FLOW,
    }
)
"""Headers of jetjobs that no field of the job represents."""

MAX_MOVABLE = 48 * 1024
"""Bytes of headers of a delivery. The server accepts 64 KB, and a move adds headers."""

TRACEBACK_ROOM = 40 * 1024
"""Bytes of headers up to which a traceback is added: a job with other large headers is moved without one."""

MAX_HEADERS = 24 * 1024
"""Bytes of the caller's own headers. Enqueueing refuses more."""


class WireMessage(Protocol):
    """A message that contains a job: a delivery, or a message read from its stream."""

    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def header_bytes(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def stored_at(self) -> float: ...


def encode_headers(job: Job) -> dict[str, str]:
    """The headers of this hop. A header with its default value is left out."""
    headers = {k: v for k, v in job.headers.items() if k in _KEPT or not k.lower().startswith(h.OWN_PREFIXES)}
    headers[h.MSG_ID] = f"{job.id}.{job.run}.{job.hop}"
    headers[h.RUN] = job.run
    if job.hop:
        headers[h.HOP] = str(job.hop)
    if job.attempt > 1:
        headers[h.ATTEMPT] = str(job.attempt)
    if job.max_attempts:
        headers[h.MAX_ATTEMPTS] = str(job.max_attempts)
    if job.enqueued_at:
        headers[h.ENQUEUED_AT] = f"{job.enqueued_at:.6f}"
    if job.due_at:
        headers[h.DUE_AT] = f"{job.due_at:.6f}"
    if job.deadline:
        headers[h.DEADLINE] = f"{job.deadline:.6f}"
    if job.reply:
        headers[h.REPLY] = job.reply
    if job.payload:
        headers[h.PAYLOAD] = job.payload
    if job.crashes:
        headers[h.CRASHES] = str(job.crashes)
    return headers


def decode(delivery: WireMessage) -> Job:
    """The job in a message. MalformedJob when its subject or headers are invalid."""
    headers = delivery.headers
    if delivery.header_bytes > MAX_MOVABLE:
        raise MalformedJob(
            f"the headers are {delivery.header_bytes:,} bytes; a job can be moved with up to {MAX_MOVABLE:,}"
        )
    try:
        _, queue, lane, task, key, uid = n.JobSubject.parse(delivery.subject)
        if uid:
            job_id = join_id(key, uid)
        else:
            job_id = identify(delivery)
            key = parse_id(job_id).key
    except ValueError as error:
        raise MalformedJob(str(error)) from None
    get = headers.get
    run = get(h.RUN)
    if run is None:
        run = anonymous_id(delivery.stored_at, delivery.sequence)
    elif not is_id(run):
        raise MalformedJob(f"invalid header {h.RUN}: {run[:40]!r}")
    hop, attempt, most = get(h.HOP), get(h.ATTEMPT), get(h.MAX_ATTEMPTS)
    enqueued, due, deadline = get(h.ENQUEUED_AT), get(h.DUE_AT), get(h.DEADLINE)
    crashes = get(h.CRASHES)
    return Job(
        job_id,
        task,
        queue,
        lane if lane != n.RETURNED else _own_lane(headers),
        delivery.data,
        key,
        run,
        0 if hop is None else _whole(h.HOP, hop),
        1 if attempt is None else max(1, _whole(h.ATTEMPT, attempt)),
        0 if most is None else _whole(h.MAX_ATTEMPTS, most),
        delivery.stored_at if enqueued is None else _seconds(h.ENQUEUED_AT, enqueued),
        0.0 if due is None else _seconds(h.DUE_AT, due),
        0.0 if deadline is None else _seconds(h.DEADLINE, deadline),
        get(h.REPLY, ""),
        get(h.PAYLOAD, ""),
        0 if crashes is None else _whole(h.CRASHES, crashes),
        headers,
    )


def decode_waiting(message: WireMessage) -> Job:
    """The job in a message, with its priority as lane. While a job waits, the target of its schedule holds the
    priority."""
    job = decode(message)
    if n.JobSubject.parse(message.subject).lane not in n.WAITING:
        return job
    target = message.headers.get(h.SCHEDULE_TARGET, "")
    try:
        subject = n.JobSubject.parse(target)
        valid = bool(subject.uid) and subject.lane in n.PRIORITIES
    except ValueError:
        valid = False
    if not valid:
        raise MalformedJob(f"its schedule has an invalid target: {target[:100]!r}")
    return job._replace(lane=subject.lane)


def decode_malformed(delivery: WireMessage, queue: str, lane: str) -> Job:
    """What can be read of a delivery that `decode` refused, as a job that can be dead-lettered."""
    task = n.JobSubject.parse_any(delivery.subject).task
    place = anonymous_id(delivery.stored_at, delivery.sequence)
    return Job(
        place,
        task,
        queue,
        lane,
        delivery.data,
        run=place,
        enqueued_at=delivery.stored_at,
        payload=delivery.headers.get(h.PAYLOAD, ""),
        headers=delivery.headers,
    )


def identify(message: WireMessage) -> str:
    """The id of a job without one in its subject: its `Nats-Msg-Id` if that is valid, else its anonymous id."""
    given = message.headers.get(h.MSG_ID, "")
    return given if is_id(given) else anonymous_id(message.stored_at, message.sequence)


def run_of(message: WireMessage) -> str:
    """The run of the job. A job published without jetjobs has none; its anonymous id serves as run."""
    run = message.headers.get(h.RUN, "")
    return run if is_id(run) else anonymous_id(message.stored_at, message.sequence)


def _own_lane(headers: Mapping[str, str]) -> str:
    """The own lane of a job in lane `returned`."""
    lane = headers.get(h.LANE, "")
    return lane if lane in n.PRIORITIES else "normal"


def header_size(headers: Mapping[str, str] | bytes) -> int:
    """Bytes on the wire, as the server counts them for `max_payload`."""
    if isinstance(headers, bytes):
        return len(headers)
    return 12 + sum(len(k.encode()) + len(v.encode()) + 4 for k, v in headers.items())


def with_error(job: Job, error: ErrorInfo, worker: str, now: float) -> Job:
    """The job with one more entry in its history of failures, which is limited in length, and its traceback."""
    entry = {
        "attempt": job.attempt,
        "at": round(now, 3),
        "worker": worker,
        "type": error.type[:MAX_HISTORY_TEXT],
        "text": error.text[:MAX_HISTORY_TEXT],
    }
    history = [*read_history(job.headers), entry][-MAX_HISTORY:]
    line = json.dumps(history, separators=(",", ":"))
    while len(line) > MAX_HISTORY_BYTES and len(history) > 1:
        history = history[1:]
        line = json.dumps(history, separators=(",", ":"))
    headers = {**job.headers, h.ERRORS: line}
    headers.pop(h.TRACEBACK, None)
    trace = _traceback_line(error.traceback)
    if trace and header_size(headers) + len(h.TRACEBACK) + len(trace) <= TRACEBACK_ROOM:
        headers[h.TRACEBACK] = trace
    return job._replace(headers=headers)


def _traceback_line(text: str) -> str:
    """A traceback as one header value. Escapes may make it longer than the text; then less of it is kept."""
    line = json.dumps(text) if text else ""
    if len(line) > MAX_TRACEBACK_BYTES:
        line = json.dumps(cut(text, len(text) * MAX_TRACEBACK_BYTES // len(line) // 2))
    return line if len(line) <= MAX_TRACEBACK_BYTES else ""


def read_traceback(headers: Mapping[str, str]) -> str | None:
    """The traceback of the last failed attempt; None without one."""
    try:
        text = read_json(headers.get(h.TRACEBACK, "null"))
    except ValueError:
        return None
    return text if isinstance(text, str) and text else None


def with_parking(job: Job, parked: Parked) -> Job:
    """The job with the time of its first parking, and with `known` if a running worker knows its task."""
    value = f"{parked.since:.6f}" + (" known" if parked.known else "")
    return job._replace(headers={**job.headers, h.PARKED: value})


def read_parking(headers: Mapping[str, str]) -> tuple[float, bool]:
    """When the job was parked first, 0 if it never was, and whether a running worker knew its task at the end."""
    since, _, known = headers.get(h.PARKED, "").partition(" ")
    return header_number({h.PARKED: since}, h.PARKED, 0.0), known == "known"


def read_history(headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Past failures, oldest first. An unreadable history counts as empty, so that the job is not lost."""
    try:
        history = read_json(headers.get(h.ERRORS, "[]"))
    except ValueError:
        return []
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def max_attempts_in(headers: Mapping[str, str]) -> int:
    """How many attempts the job may have by its own headers; 0 if they leave that to the task."""
    policy = read_record(headers.get(h.RETRY_POLICY, ""))
    return int(header_number(headers, h.MAX_ATTEMPTS, 0)) or as_int(policy.get("max_attempts"))


def read_replays(headers: Mapping[str, str]) -> tuple[int, tuple[dict[str, Any], ...]]:
    """The number of replays and the latest of them, oldest first; none if they are unreadable."""
    try:
        found = read_json(headers.get(h.REPLAY, "{}"))
        entries, count = found["replays"], int(found.get("number", 0))
        return max(0, count), tuple(entry for entry in entries if isinstance(entry, dict))
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return 0, ()


def header_number(headers: Mapping[str, str], name: str, default: float) -> Any:
    """A header as a number, or the default. The headers of a job published without jetjobs may be invalid."""
    try:
        value = float(headers[name])
    except (KeyError, ValueError):
        return default
    if not 0 <= value < 253402300800:
        return default
    return int(value) if value.is_integer() else value


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > (9 if name == h.MAX_ATTEMPTS else 8):
        raise MalformedJob(f"invalid header {name}: {text[:40]!r} is not a whole number")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise MalformedJob(f"invalid header {name}: {text[:40]!r} is not a time") from None
    if not 0.0 <= seconds < 253402300800.0:  # the year 10000: a datetime ends there
        raise MalformedJob(f"invalid header {name}: {text[:40]!r} is not a time")
    return seconds
