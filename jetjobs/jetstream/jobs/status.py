"""Convert messages, done records and dead letters to a JobStatus, and list the streams that contain a state.

Invalid fields are left out. Nothing is pulled or acked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from jetjobs.jetstream.jobs.dead_letters import read_cause
from jetjobs.jetstream.messages.codec import (
    decode,
    header_number,
    read_history,
    read_parking,
    read_replays,
    read_traceback,
    run_of,
)
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import JobState, JobStatus, lineage_of
from jetjobs.model.masking import mask, mask_result, read_paths, shown_arguments
from jetjobs.model.outcome import parked_text
from jetjobs.model.views.job_query import LIVE, JobQuery
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import NO_KEY, parse_id
from jetjobs.model.wire.lenient_json import as_int, as_time, read_iso_time, read_json, read_record, text_or_none
from jetjobs.model.wire.subjects import DeadSubject, JobSubject, Names, kv_key_tokens, kv_stream, kv_subject

DONE_STATES = (JobState.SUCCEEDED, JobState.CANCELLED)
"""The states of done records."""
WAITING_STATES = {n.LATER: JobState.SCHEDULED, n.RETRY: JobState.RETRYING, n.GATE: JobState.WAITING}
"""States of waiting jobs by lane."""


def live_state(live: StoredMessage, running: Mapping[str, Any]) -> JobState:
    """The state of a message in a work stream. `running` is the running record of its id, if any."""
    if (waiting := WAITING_STATES.get(JobSubject.parse_any(live.subject).lane)) is not None:
        return waiting
    ours = bool(running) and running.get("run") == run_of(live)
    return JobState.RUNNING if ours else JobState.QUEUED


def live_status(live: StoredMessage, queue: str, task: str, job_id: str, running: Mapping[str, Any]) -> JobStatus:
    """The status of a message in a work stream. `running` is the running record of its id, if any."""
    state, lane = live_state(live, running), JobSubject.parse_any(live.subject).lane
    shown = running if state is JobState.RUNNING else {}
    parent, root = lineage_of(live.headers)
    return JobStatus(
        job_id,
        state,
        queue,
        task,
        header_number(live.headers, h.ATTEMPT, 1),
        due_at=as_time(header_number(live.headers, h.DUE_AT, 0) or due_time(live.headers)),
        enqueued_at=as_time(header_number(live.headers, h.ENQUEUED_AT, 0) or live.stored_at),
        started_at=as_time(shown.get("started_at")),
        worker=shown.get("worker"),
        reason=_parked(live.headers, task) if lane == n.RETRY else None,
        lane=lane,
        run=run_of(live),
        crashes=header_number(live.headers, h.CRASHES, 0),
        history=tuple(read_history(live.headers)),
        replays=read_replays(live.headers)[1],
        progress=shown.get("progress"),
        message=shown.get("message"),
        schedule=live.headers.get(h.OF_SCHEDULE),
        scheduled_time=read_iso_time(live.headers.get(h.SCHEDULED_TIME)),
        priority=_priority(live.headers, lane),
        parent=parent,
        root=root,
        traceback=read_traceback(live.headers),
        key=_key(job_id),
    )


def _parked(headers: Mapping[str, str], task: str) -> str | None:
    """Why a job in lane `retry` is parked; None if it is not."""
    since, known = read_parking(headers)
    return f"parked: {parked_text(task, known)}" if since else None


def _priority(headers: Mapping[str, str], lane: str) -> str | None:
    """The priority of a job that is in `lane`."""
    if lane in n.WAITING:
        lane = JobSubject.parse_any(headers.get(h.SCHEDULE_TARGET, "")).lane
    elif lane == n.RETURNED:
        lane = headers.get(h.LANE, "")
    return lane if lane in n.PRIORITIES else None


def with_sent(status: JobStatus, message: StoredMessage) -> JobStatus:
    """The status with what the caller has sent: headers, arguments and callback. Lists leave them out."""
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith(h.OWN_PREFIXES)}
    arguments, callback = shown_arguments(message.data, message.headers), message.headers.get(h.CALLBACK)
    return replace(status, headers=headers, arguments=arguments, callback=callback)


def _key(job_id: str) -> str | None:
    key = parse_id(job_id).key
    return None if key == NO_KEY else key


def due_time(headers: Mapping[str, str]) -> float | None:
    """When the server moves the job to its lane; None for a message without such a time."""
    kind, _, text = headers.get(h.SCHEDULE, "").partition(" ")
    moment = read_iso_time(text) if kind == "@at" else None
    return moment.timestamp() if moment is not None else None


def done_status(record: Mapping[str, Any], queue: str, task: str, job_id: str) -> JobStatus:
    """The status of a done record. Its state is None if another program or a newer version wrote the record."""
    recorded = record.get("state")
    state = JobState(recorded) if recorded in DONE_STATES else None
    replay = record.get("replay")
    replays = replay.get("replays") if isinstance(replay, dict) else ()
    replays = replays if isinstance(replays, list) else ()
    return JobStatus(
        job_id,
        state,
        queue,
        task,
        as_int(record.get("attempt")),
        enqueued_at=as_time(record.get("enqueued_at")),
        started_at=as_time(record.get("started_at")),
        ended_at=as_time(record.get("ended_at")),
        worker=text_or_none(record.get("worker")),
        reason=text_or_none(record.get("reason")),
        how=text_or_none(record.get("how")),
        run=str(record.get("run", "")),
        replays=tuple(entry for entry in replays if isinstance(entry, dict)),
        result=mask_result(record.get("result"), record.get("secret")),
        schedule=text_or_none(record.get("schedule")),
        scheduled_time=read_iso_time(record.get("scheduled_time")),
        cancel=_cancel_in(record) if state is JobState.CANCELLED else None,
        parent=text_or_none(record.get("parent")),
        root=text_or_none(record.get("root")),
        key=_key(job_id),
    )


def _cancel_in(record: Mapping[str, Any]) -> dict[str, str]:
    return {"by": str(record.get("by") or ""), "reason": str(record.get("reason") or "")}


def dead_status(letter: StoredMessage, queue: str, task: str, job_id: str) -> JobStatus:
    """The status of a dead letter."""
    cause = read_cause(letter.headers)
    parent, root = lineage_of(letter.headers)
    return JobStatus(
        job_id,
        JobState.DEAD,
        queue,
        task,
        header_number(letter.headers, h.ATTEMPT, 1),
        enqueued_at=as_time(header_number(letter.headers, h.ENQUEUED_AT, 0)),
        started_at=as_time(cause.get("started_at")),
        ended_at=as_time(cause.get("at")),
        worker=text_or_none(cause.get("worker")),
        reason=text_or_none(cause.get("reason")),
        error=f"{cause.get('type')}: {cause.get('text')}",
        lane=letter.headers.get(h.LANE),
        run=letter.headers.get(h.RUN, ""),
        crashes=header_number(letter.headers, h.CRASHES, 0),
        history=tuple(read_history(letter.headers)),
        replays=read_replays(letter.headers)[1],
        schedule=letter.headers.get(h.OF_SCHEDULE),
        scheduled_time=read_iso_time(letter.headers.get(h.SCHEDULED_TIME)),
        priority=_priority(letter.headers, letter.headers.get(h.LANE, "")),
        parent=parent,
        root=root,
        traceback=text_or_none(cause.get("traceback")) or None,
        key=_key(job_id),
    )


Read = Callable[[StoredMessage], JobStatus | None]


class ListingSource(NamedTuple):
    """Messages of one kind in one stream. `read` returns None for a message of another state."""

    key: str
    stream: str
    subject: str
    read: Read
    until: int | None = None
    """Messages after this sequence are of another state."""


def listing_sources(
    names: Names,
    queues: Iterable[str],
    query: JobQuery,
    running: Mapping[str, Any],
    delivered: Mapping[tuple[str, str], int],
) -> Iterator[ListingSource]:
    """All sources that may contain jobs of the query, in the order of the list.

    `running` has the running records by id. `delivered` has the last delivered sequence of each lane; it is only
    given for a query of running jobs.
    """
    wanted = frozenset((query.state,) if query.state is not None else LIVE)
    mine = [queue for queue in sorted(queues) if query.queue in (None, queue)]
    task = query.task or "*"
    for queue in mine:
        if wanted & {JobState.QUEUED, JobState.RUNNING}:
            for lane in n.PULLED:
                read = _live_reader(queue, wanted, running)
                for source in _lane(names, queue, lane, query.task, read):
                    yield source._replace(until=delivered.get((queue, lane)))
        for lane, state in WAITING_STATES.items():
            if state in wanted:
                read = _live_reader(queue, wanted, running)
                yield from _lane(names, queue, lane, query.task, read)
        if wanted & {JobState.SUCCEEDED, JobState.CANCELLED}:
            bucket = names.done_bucket(queue)
            subject = kv_subject(bucket, f"{task}.*")
            yield ListingSource(f"{queue}/done", kv_stream(bucket), subject, _done_reader(queue, wanted))
    if JobState.DEAD in wanted:
        subject = names.dead(query.queue or "*", task, "*")
        yield ListingSource("dead", names.dead_stream, subject, _read_letter)


def _lane(names: Names, queue: str, lane: str, task: str | None, read: Read) -> Iterator[ListingSource]:
    stream = names.work_stream(queue)
    if task is None:
        yield ListingSource(f"{queue}/{lane}", stream, names.lane_filter(queue, lane), read)
        return
    own = names.job(queue, lane, task, "*", "*")
    yield ListingSource(f"{queue}/{lane}", stream, own, read)
    # Published without jetjobs: no id in the subject.
    yield ListingSource(f"{queue}/{lane}/bare", stream, own.removesuffix(".*.*"), read)


def _live_reader(queue: str, wanted: frozenset[JobState], running: Mapping[str, Any]) -> Read:
    def read(message: StoredMessage) -> JobStatus | None:
        try:
            job = decode(message)
            job_id, task = job.id, job.task
        except MalformedJob:
            job_id, task = f"#{message.sequence}", JobSubject.parse_any(message.subject).task
        status = live_status(message, queue, task, job_id, running.get(job_id, {}))
        return replace(status, traceback=None) if status.state in wanted else None

    return read


def _done_reader(queue: str, wanted: frozenset[JobState]) -> Read:
    def read(message: StoredMessage) -> JobStatus | None:
        record = read_record(message.data)
        if "state" not in record:
            return None
        task, job_id = kv_key_tokens(message.subject)
        status = done_status(record, queue, task, job_id)
        return status if status.state in wanted else None

    return read


def _read_letter(message: StoredMessage) -> JobStatus | None:
    _, queue, task, job_id = DeadSubject.parse(message.subject)
    return replace(dead_status(message, queue, task, job_id), traceback=None)


def read_arguments(message: StoredMessage) -> dict[str, Any] | None:
    """The arguments in the body of a message, secrets masked; None if they are in an object or unreadable."""
    try:
        value = read_json(message.data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    secret = message.headers.get(h.SECRET)
    return cast("dict[str, Any]", mask(value, read_paths(secret))) if secret else value
