"""What a stored message, record or letter says of its job, as a JobStatus. Whatever is odd in it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jetjobs.jetstream.codec import read_history, read_replays
from jetjobs.jetstream.dead_letters import read_cause
from jetjobs.jetstream.reads import StoredMessage
from jetjobs.model import names as n
from jetjobs.model.job import JobState, JobStatus, line_of
from jetjobs.model.reading import at, text_or_none, whole
from jetjobs.model.secrets import mask_result

DONE_STATES = (JobState.SUCCEEDED, JobState.CANCELLED)
"""What a done record may say."""


def live_state(live: StoredMessage, running: Mapping[str, Any]) -> JobState:
    """Of a message in a work stream, and the running record of its id, if any."""
    if live.subject.split(".")[3] == n.LATER:
        return JobState.RETRYING if number(live.headers, n.ATTEMPT, 1) > 1 else JobState.SCHEDULED
    ours = bool(running) and running.get("run") in (live.headers.get(n.RUN), f"s{live.sequence}")
    return JobState.RUNNING if ours else JobState.QUEUED


def live_status(live: StoredMessage, queue: str, task: str, job_id: str, running: Mapping[str, Any]) -> JobStatus:
    """Of a message in a work stream, and the running record of its id, if any."""
    state, lane = live_state(live, running), live.subject.split(".")[3]
    shown = running if state is JobState.RUNNING else {}
    parent, root = line_of(live.headers)
    return JobStatus(
        job_id,
        state,
        queue,
        task,
        number(live.headers, n.ATTEMPT, 1),
        due_at=at(number(live.headers, n.DUE_AT, 0)) or (_fires_at(live.headers) if lane == n.LATER else None),
        enqueued_at=at(number(live.headers, n.ENQUEUED_AT, 0) or live.stored_at),
        started_at=at(shown.get("started_at")),
        worker=shown.get("worker"),
        lane=lane,
        run=live.headers.get(n.RUN, f"s{live.sequence}"),
        crashes=number(live.headers, n.CRASHES, 0),
        history=tuple(read_history(live.headers)),
        replays=tuple(read_replays(live.headers)),
        progress=shown.get("progress"),
        message=shown.get("message"),
        schedule=live.headers.get(n.OF_SCHEDULE),
        slot=slot_in(live.headers.get(n.SLOT)),
        priority=_priority(live.headers, lane),
        parent=parent,
        root=root,
    )


def _priority(headers: Mapping[str, str], lane: str) -> str | None:
    """The lane a job is for, of one that stands in `lane`."""
    if lane == n.LATER:
        target = headers.get(n.SCHEDULE_TARGET, "").split(".")
        lane = target[3] if len(target) > 3 else ""
    elif lane in n.DETOURS:
        lane = headers.get(n.LANE, "")
    return lane if lane in n.PRIORITIES else None


def _fires_at(headers: Mapping[str, str]) -> datetime | None:
    """When the server puts it into its lane. A queued job that is set aside to change its lane has no due time."""
    kind, _, text = headers.get(n.SCHEDULE, "").partition(" ")
    return slot_in(text) if kind == "@at" else None


def done_status(record: Mapping[str, Any], queue: str, task: str, job_id: str) -> JobStatus:
    """Of a done record. State None: it is not one of ours, or of a version to come."""
    said = record.get("state")
    state = JobState(said) if said in DONE_STATES else None
    replay = record.get("replay")
    replays = replay.get("replays") if isinstance(replay, dict) else ()
    replays = replays if isinstance(replays, list) else ()
    return JobStatus(
        job_id,
        state,
        queue,
        task,
        whole(record.get("attempt")),
        enqueued_at=at(record.get("enqueued_at")),
        started_at=at(record.get("started_at")),
        ended_at=at(record.get("ended_at")),
        worker=text_or_none(record.get("worker")),
        reason=text_or_none(record.get("reason")),
        how=text_or_none(record.get("how")),
        run=str(record.get("run", "")),
        replays=tuple(entry for entry in replays if isinstance(entry, dict)),
        result=mask_result(record.get("result"), record.get("secret")),
        schedule=text_or_none(record.get("schedule")),
        slot=slot_in(record.get("slot")),
        cancel=_cancel_in(record) if state is JobState.CANCELLED else None,
        parent=text_or_none(record.get("parent")),
        root=text_or_none(record.get("root")),
    )


def _cancel_in(record: Mapping[str, Any]) -> dict[str, str]:
    return {"by": str(record.get("by") or ""), "reason": str(record.get("reason") or "")}


def dead_status(letter: StoredMessage, queue: str, task: str, job_id: str) -> JobStatus:
    """Of a dead letter."""
    cause = read_cause(letter.headers)
    parent, root = line_of(letter.headers)
    return JobStatus(
        job_id,
        JobState.DEAD,
        queue,
        task,
        number(letter.headers, n.ATTEMPT, 1),
        enqueued_at=at(number(letter.headers, n.ENQUEUED_AT, 0)),
        started_at=at(cause.get("started_at")),
        ended_at=at(cause.get("at")),
        worker=text_or_none(cause.get("worker")),
        reason=text_or_none(cause.get("reason")),
        error=f"{cause.get('type')}: {cause.get('text')}",
        lane=letter.headers.get(n.LANE),
        run=letter.headers.get(n.RUN, ""),
        crashes=number(letter.headers, n.CRASHES, 0),
        history=tuple(read_history(letter.headers)),
        replays=tuple(read_replays(letter.headers)),
        schedule=letter.headers.get(n.OF_SCHEDULE),
        slot=slot_in(letter.headers.get(n.SLOT)),
        priority=_priority(letter.headers, letter.headers.get(n.LANE, "")),
        parent=parent,
        root=root,
    )


def slot_in(text: Any) -> datetime | None:
    """The slot of a tick; None where there is none, or somebody's hand has written it."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def number(headers: Mapping[str, str], name: str, default: float) -> Any:
    """A header as a number, or its default: a hand-made job may say anything, and is still to be shown."""
    try:
        value = float(headers[name])
    except (KeyError, ValueError):
        return default
    if not 0 <= value < 253402300800:
        return default
    return int(value) if value.is_integer() else value
