"""Find job ids by a part of them. Ids are in subjects, which the server lists without reading a message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jetjobs.jetstream.messages.codec import identify
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import AccessDenied, TopologyMissing
from jetjobs.model.wire.subjects import (
    DeadSubject,
    JobSubject,
    Names,
    kv_key_tokens,
    kv_stream,
    kv_subject,
)

SEARCH_LIMIT = 100_000
"""Subjects of a stream that the server lists for one search: the most that one answer contains, which takes half
a second. A stream with more is not searched."""
_SEQUENCE = re.compile(r"-([1-9][0-9]{0,18})$", re.ASCII)


class FoundId(NamedTuple):
    """The id of a job, and where the job is."""

    job_id: str
    queue: str
    task: str


class IdSearch(NamedTuple):
    """The outcome of a search: what fits, and the places that were not searched."""

    found: frozenset[FoundId]
    unsearched: tuple[str, ...]

    @property
    def ids(self) -> list[str]:
        """The ids that fit, each once."""
        return sorted({one.job_id for one in self.found})


class _Place(NamedTuple):
    name: str
    stream: str
    pattern: str
    read: Callable[[str], FoundId]


async def search_ids(
    connection: Connection,
    names: Names,
    queues: Sequence[str],
    fits: Callable[[str], bool],
    *,
    task: str = "*",
    only_dead: bool = False,
) -> IdSearch:
    """The jobs of these queues with an id that fits. The id of a job published without jetjobs is in no subject
    before its first move; `search_anonymous` finds such a job."""
    places = [*_dead_places(names, queues, task)]
    if not only_dead:
        places += [place for queue in queues for place in _queue_places(names, queue, task)]
    listed = await asyncio.gather(*(_search(connection, place, fits) for place in places))
    missed = tuple(place.name for place, found in zip(places, listed, strict=True) if found is None)
    return IdSearch(frozenset().union(*(found or () for found in listed)), missed)


async def search_anonymous(
    connection: Connection, names: Names, queues: Sequence[str], ending: str, task: str = "*"
) -> frozenset[FoundId]:
    """Jobs published without jetjobs whose id has that ending. It ends with the sequence of the message."""
    found = _SEQUENCE.search(ending)
    if found is None:
        return frozenset()
    jobs = await asyncio.gather(*(_at(connection, names, queue, int(found[1])) for queue in queues))
    return frozenset(
        job for job in jobs if job is not None and job.job_id.endswith(ending) and task in ("*", job.task)
    )


def _queue_places(names: Names, queue: str, task: str) -> Iterator[_Place]:
    def live(subject: str) -> FoundId:
        parsed = JobSubject.parse_any(subject)
        return FoundId(parsed.job_id, queue, parsed.task)

    def ended(subject: str) -> FoundId:
        tokens = kv_key_tokens(subject)
        return FoundId(tokens[1], queue, tokens[0])

    bucket = names.done_bucket(queue)
    yield _Place(
        f"live jobs of queue {queue}", names.work_stream(queue), names.job(queue, "*", task, "*", "*"), live
    )
    yield _Place(f"ended jobs of queue {queue}", kv_stream(bucket), kv_subject(bucket, f"{task}.*"), ended)


def _dead_places(names: Names, queues: Sequence[str], task: str) -> Iterator[_Place]:
    def dead(subject: str) -> FoundId:
        parsed = DeadSubject.parse(subject)
        return FoundId(parsed.job_id, parsed.queue, parsed.task)

    one = queues[0] if len(queues) == 1 else "*"
    yield _Place("dead letters", names.dead_stream, names.dead(one, task, "*"), dead)


async def _search(connection: Connection, place: _Place, fits: Callable[[str], bool]) -> set[FoundId] | None:
    """None if the stream has too many subjects, or this user may not list them."""
    request = api.stream_info(place.stream)
    try:
        # Asked first: a list of millions of subjects would block the stream for seconds.
        if (await connection.api(request))["state"].get("num_subjects", 0) > SEARCH_LIMIT:
            return None
        info = await connection.api(request, {"subjects_filter": place.pattern}, timeout_s=10.0)
    except TopologyMissing:
        return set()
    except AccessDenied:
        return None
    found = (place.read(subject) for subject in info["state"].get("subjects") or {})
    return {one for one in found if fits(one.job_id)}


async def _at(connection: Connection, names: Names, queue: str, sequence: int) -> FoundId | None:
    try:
        message = await at_sequence(connection, names.work_stream(queue), sequence)
    except (TopologyMissing, AccessDenied):
        return None
    if message is None:
        return None
    subject = JobSubject.parse_any(message.subject)
    return FoundId(identify(message), queue, subject.task) if not subject.uid else None
