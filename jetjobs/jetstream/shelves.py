"""Where jobs of a state stand, shelf after shelf, and how to read one off each. Nothing is held or acked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from jetjobs.jetstream.codec import decode
from jetjobs.jetstream.reads import StoredMessage
from jetjobs.jetstream.results import read_record
from jetjobs.jetstream.statuses import dead_status, done_status, live_state, live_status
from jetjobs.model import names as n
from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.listing import LIVE, JobQuery
from jetjobs.model.names import Names, kv_stream, kv_subject
from jetjobs.model.reading import read_json
from jetjobs.model.secrets import mask, read_paths

Read = Callable[[StoredMessage], JobStatus | None]


class Shelf(NamedTuple):
    """Messages of one kind, in one stream. `read` gives None for what is not of the state asked for."""

    key: str
    stream: str
    subject: str
    read: Read
    until: int | None = None
    """Nothing of the state asked for stands beyond this sequence."""


def shelves(
    names: Names,
    created: Mapping[str, str],
    query: JobQuery,
    running: Mapping[str, Any],
    delivered: Mapping[tuple[str, str], int],
) -> Iterator[Shelf]:
    """All places that may hold jobs of the query, in the order in which they are listed.

    `created` has the creation time of each queue's stream, `running` the records of jobs shown as running by id.
    `delivered`, where only running jobs are asked for, is how far each lane of a queue has been delivered.
    """
    wanted = frozenset((query.state,) if query.state is not None else LIVE)
    mine = [queue for queue in sorted(created) if query.queue in (None, queue)]
    task = query.task or "*"
    for queue in mine:
        if wanted & {JobState.QUEUED, JobState.RUNNING}:
            for lane in n.PULLED:
                read = _live_reader(queue, created[queue], wanted, running)
                for shelf in _lane(names, queue, lane, query.task, read):
                    yield shelf._replace(until=delivered.get((queue, lane)))
        if wanted & {JobState.SCHEDULED, JobState.RETRYING}:
            yield from _lane(
                names, queue, n.LATER, query.task, _live_reader(queue, created[queue], wanted, running)
            )
        if wanted & {JobState.SUCCEEDED, JobState.CANCELLED}:
            bucket = names.done_bucket(queue)
            subject = kv_subject(bucket, f"{task}.*")
            yield Shelf(f"{queue}/done", kv_stream(bucket), subject, _done_reader(queue, wanted))
    if JobState.DEAD in wanted:
        subject = names.dead(query.queue or "*", task, "*")
        yield Shelf("dead", names.dead_stream, subject, _read_letter)


def _lane(names: Names, queue: str, lane: str, task: str | None, read: Read) -> Iterator[Shelf]:
    stream = names.work_stream(queue)
    if task is None:
        yield Shelf(f"{queue}/{lane}", stream, names.lane_filter(queue, lane), read)
        return
    own = names.job(queue, lane, task, "*", "*")
    yield Shelf(f"{queue}/{lane}", stream, own, read)
    # Made by hand, without an id in the subject.
    yield Shelf(f"{queue}/{lane}/bare", stream, own.removesuffix(".*.*"), read)


def _live_reader(queue: str, created: str, wanted: frozenset[JobState], running: Mapping[str, Any]) -> Read:
    unwanted = {JobState.SCHEDULED, JobState.RETRYING} - wanted

    def read(message: StoredMessage) -> JobStatus | None:
        if live_state(message, {}) in unwanted:
            return None  # of ten thousand that are scheduled perhaps none is wanted: not worth more than a look
        try:
            job = decode(message, created)
            job_id, task = job.id, job.task
        except MalformedJob:
            job_id, task = f"#{message.sequence}", message.subject.split(".")[4]
        status = live_status(message, queue, task, job_id, running.get(job_id, {}))
        return status if status.state in wanted else None

    return read


def _done_reader(queue: str, wanted: frozenset[JobState]) -> Read:
    def read(message: StoredMessage) -> JobStatus | None:
        record = read_record(message.data)
        if "state" not in record:
            return None
        task, job_id = message.subject.split(".")[-2:]
        status = done_status(record, queue, task, job_id)
        return status if status.state in wanted else None

    return read


def _read_letter(message: StoredMessage) -> JobStatus | None:
    queue, task, job_id = message.subject.split(".")[-3:]
    return dead_status(message, queue, task, job_id)


def read_arguments(message: StoredMessage) -> dict[str, Any] | None:
    """The arguments in a message's body, secrets masked; None where they are elsewhere or cannot be read."""
    try:
        value = read_json(message.data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    secret = message.headers.get(n.SECRET)
    return cast("dict[str, Any]", mask(value, read_paths(secret))) if secret else value
