"""`app.dead`: list, show, replay, delete, export and import dead letters."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from jetjobs.define.registry import Router
from jetjobs.enqueueing import claim_check
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.codec import read_history
from jetjobs.jetstream.dead_letters import read_cause
from jetjobs.jetstream.objects import labels_of
from jetjobs.jetstream.publisher import Outgoing, Taken, Unconfirmed
from jetjobs.jetstream.reads import StoredMessage, at_sequence, last_on
from jetjobs.jetstream.results import read_record
from jetjobs.model import names as n
from jetjobs.model.errors import (
    BrokerError,
    DefinitionError,
    DeliveryError,
    EnqueueError,
    JetJobsError,
    MalformedJob,
    TopologyMissing,
)
from jetjobs.model.ids import NO_KEY, JobId, is_id, new_run, parse_id
from jetjobs.model.job import Job, at
from jetjobs.model.letter import DeadLetter, LetterFilter
from jetjobs.model.names import PRIORITIES, check_token

MAX_REPLAYS_KEPT = 5


class Replayed(StrEnum):
    """What became of one replay."""

    REPLAYED = "replayed"
    ALREADY = "already replayed"
    """An earlier replay of this very letter had got through; only the letter was left."""
    ALIVE = "alive"
    """A live job holds its id or key; nothing was changed."""
    REFUSED = "refused"
    """It could not run now either; nothing was changed."""


class ReplayAnswer(NamedTuple):
    """The outcome of one replay, with the reason where nothing was done."""

    letter: DeadLetter
    outcome: Replayed
    why: str = ""


class DeadLetterBox:
    """The dead letters of one namespace."""

    def __init__(self, jetstream: JetStreamClient, registry: Router) -> None:
        self._jetstream = jetstream
        self._registry = registry

    async def list(self, wanted: LetterFilter = LetterFilter(), start: int = 1) -> AsyncIterator[DeadLetter]:  # noqa: B008 - frozen
        """Letters that match, in the order of their death, from sequence `start` on."""
        async for message in self._jetstream.dead.scan(wanted.queue or "*", wanted.task or "*", start):
            letter = read_letter(message)
            if wanted.matches(letter):
                yield letter

    async def get(self, job_id: str) -> DeadLetter | None:
        """The letter of a job, or None."""
        message = await self._jetstream.dead.find(job_id) if is_id(job_id) else None
        return read_letter(message) if message is not None else None

    async def delete(self, letter: DeadLetter) -> bool:
        """Remove a letter for good, and what is kept for it. False when it was gone already."""
        gone = await self._jetstream.dead.remove(_place(letter))
        if gone:
            await self._discard_objects(letter)
        return gone

    async def _discard_objects(self, letter: DeadLetter) -> None:
        """What was kept for a letter that is gone, but not what its job or a newer letter needs still."""
        for name in _objects(letter.headers):
            await self._jetstream.places.discard(letter.queue, letter.task, letter.id, name)

    async def replay(
        self,
        letter: DeadLetter,
        *,
        by: str = "",
        reason: str = "",
        to_queue: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> ReplayAnswer:
        """Enqueue the job again under its id and key, from its first attempt. Repeating it cannot run it twice.

        The run of the new life is derived from the letter, so a replay that was interrupted between its two
        steps is recognised: by the live job, or by the record of the one that has ended.
        """
        if (
            await at_sequence(self._jetstream.connection, self._jetstream.names.dead_stream, letter.sequence)
            is None
        ):
            return ReplayAnswer(letter, Replayed.ALREADY, "")
        try:
            job = await self._revive(letter, by, reason, to_queue, arguments)
            outcome = Replayed.ALREADY if await self._has_ended(job) else await self._enqueue(job)
        except (DeliveryError, DefinitionError, EnqueueError, TopologyMissing) as error:
            return ReplayAnswer(letter, Replayed.REFUSED, str(error))
        if outcome is Replayed.ALIVE:
            return ReplayAnswer(letter, outcome, "a live job holds its id or key")
        await self._jetstream.dead.remove(_place(letter))
        await self._discard_objects(letter)
        return ReplayAnswer(letter, outcome)

    async def _enqueue(self, job: Job) -> Replayed:
        """Store the job unless one lives under its id or key."""
        publisher, limit = self._jetstream.publisher, self._jetstream.connection.inline_limit
        guard = self._guard(job)
        message = publisher.outgoing(job, None, guard)
        if publisher.fits(message, limit):
            return await self._publish(job, message, guard)
        # Under a name of this try alone: an earlier one may have got through with other arguments.
        job = claim_check(job, new_run())
        message = publisher.outgoing(job._replace(body=b""), None, guard)
        publisher.check_size(message, limit)
        await self._jetstream.payloads.put(job.payload, job.body, labels_of(job))
        try:
            outcome = await self._publish(job, message, guard)
        except Unconfirmed:
            raise  # the job may be there and need it
        except JetJobsError:
            with contextlib.suppress(BrokerError):
                await self._jetstream.payloads.delete(job.payload)
            raise
        if outcome is not Replayed.REPLAYED:
            await self._jetstream.places.discard(job.queue, job.task, job.id, job.payload)
        return outcome

    def _guard(self, job: Job) -> str:
        names = self._jetstream.names
        if job.key != NO_KEY:
            return names.key_anywhere(job.queue, job.task, job.key)
        return names.job_anywhere(job.queue, job.task, JobId(job.key, job.uid))

    async def _publish(self, job: Job, message: Outgoing, guard: str) -> Replayed:
        connection, names, publisher = self._jetstream.connection, self._jetstream.names, self._jetstream.publisher
        stream = names.work_stream(job.queue)
        while True:
            try:
                await publisher.store(stream, message)
                return Replayed.REPLAYED
            except Taken as taken:
                there = await (
                    at_sequence(connection, stream, taken.sequence)
                    if taken.sequence
                    else last_on(connection, stream, guard)
                )
                if there is not None:
                    return Replayed.ALREADY if there.headers.get(n.RUN) == job.run else Replayed.ALIVE
                # What held it has ended or moved meanwhile: try again.

    async def _has_ended(self, job: Job) -> bool:
        """Whether the life this replay would begin is over already: then only the letter was left behind."""
        done = await self._jetstream.results.get(job.queue, job.task, job.id)
        return done is not None and read_record(done.data).get("run") == job.run

    async def _revive(
        self, letter: DeadLetter, by: str, reason: str, to_queue: str | None, arguments: Mapping[str, Any] | None
    ) -> Job:
        """The job as it will be enqueued, checked against the task as it is now."""
        if n.PAYLOAD_HEADERS in letter.headers:
            raise MalformedJob("its headers are too large for a job; enqueue it anew with fewer")
        task = self._registry.find(letter.task)
        queue = check_token("queue", to_queue or letter.queue)
        body, payload = letter.body, letter.payload
        if arguments is not None:
            body, payload = task.signature.encode(task.signature.bind((), arguments)), ""
        elif payload:
            body = await self._jetstream.payloads.get(payload)
        task.signature.decode(body)
        if payload and queue == letter.queue:
            body = b""  # the object goes over to the new life; on another queue the job gets one of its own
        else:
            payload = ""
        entry = {
            "by": by,
            "at": round(time.time(), 3),
            "why": reason,
            "died_of": f"{letter.reason}: {letter.error_type}: {letter.text}"[:200],
            "attempts": letter.attempts,
        }
        replays = [*letter.replays, entry][-MAX_REPLAYS_KEPT:]
        number = _replay_number(letter) + 1
        provenance = json.dumps({"number": number, "replays": replays}, separators=(",", ":"))
        kept = {k: v for k, v in letter.headers.items() if k in (n.PRODUCER, n.RETRY) or not _own(k)} | task.marks
        return Job(
            letter.id,
            letter.task,
            queue,
            letter.lane,
            body,
            parse_id(letter.id).key,
            run="r" + hashlib.sha256(f"{letter.run}:{letter.sequence}".encode()).hexdigest()[:12],
            max_attempts=_number(letter.headers.get(n.MAX_ATTEMPTS)),
            enqueued_at=letter.enqueued_at.timestamp() if letter.enqueued_at else 0.0,
            payload=payload,
            headers={**kept, n.REPLAY: provenance},
        )

    # Files

    async def to_json(self, letter: DeadLetter) -> dict[str, Any]:
        """A letter as one JSON object, whole: for `export`."""
        subject = self._jetstream.names.dead(letter.queue, letter.task, letter.id)
        stored = {
            name: base64.b64encode(await self._jetstream.payloads.get(name)).decode()
            for name in _objects(letter.headers)
        }
        body = base64.b64encode(letter.body).decode()
        return {"subject": subject, "headers": letter.headers, "body": body, "objects": stored, **letter.summary()}

    async def from_json(self, value: Mapping[str, Any]) -> bool:
        """Put an exported letter back. False when one of that id is there; ValueError when it is no letter."""
        try:
            subject, headers = value["subject"], dict(value["headers"])
            body = base64.b64decode(value["body"], validate=True)
            stored = {
                str(k): base64.b64decode(v, validate=True) for k, v in dict(value.get("objects", {})).items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no exported dead letter: {error}") from None
        tokens = str(subject).split(".")
        names = self._jetstream.names
        if len(tokens) != 5 or not subject.startswith(f"{names.namespace}.dead."):
            raise ValueError(f"{subject!r} is no subject of a dead letter in this namespace")
        queue, task, job_id = tokens[2:]
        if await self._jetstream.dead.get(queue, task, job_id) is not None:
            return False
        labels = {"queue": queue, "task": task, "id": job_id, "run": str(headers.get(n.RUN, ""))}
        for name in _objects(headers):
            if name in stored:
                await self._jetstream.payloads.put(name, stored[name], labels)
        return await self._jetstream.dead.restore(subject, body, headers)


def read_letter(message: StoredMessage) -> DeadLetter:
    """A stored letter as a value. Whatever is missing or odd in it is shown as empty, never raised."""
    queue, task, job_id = message.subject.split(".")[-3:]
    cause = read_cause(message.headers)
    source = message.headers.get(n.SOURCE, "").split(".")
    lane = source[3] if len(source) > 4 and source[3] in PRIORITIES else "normal"
    return DeadLetter(
        job_id,
        queue,
        task,
        lane,
        str(cause.get("reason", "")),
        str(cause.get("type", "")),
        str(cause.get("text", "")),
        str(cause.get("traceback", "")),
        str(cause.get("worker", "")),
        at(_time(cause.get("at")) or message.stored_at),
        at(_time(message.headers.get(n.ENQUEUED_AT))),
        _number(message.headers.get(n.ATTEMPT)) or 1,
        message.data,
        tuple(read_history(message.headers)),
        tuple(_replays(message.headers)),
        message.headers.get(n.RUN, ""),
        message.sequence,
        message.headers.get(n.PAYLOAD, ""),
        message.headers,
    )


def _objects(headers: Mapping[str, str]) -> list[str]:
    """Names of what a letter has in the object store."""
    return [headers[name] for name in (n.PAYLOAD, n.PAYLOAD_HEADERS) if headers.get(name)]


def _replays(headers: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        found = json.loads(headers.get(n.REPLAY, "{}"))["replays"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _replay_number(letter: DeadLetter) -> int:
    try:
        return int(json.loads(letter.headers.get(n.REPLAY, "{}"))["number"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return 0


def _place(letter: DeadLetter) -> StoredMessage:
    return StoredMessage("", letter.sequence, {}, b"", 0.0)


def _own(name: str) -> bool:
    return name.lower().startswith(n.OWN_PREFIXES)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else 0


def _time(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return 0.0
    return seconds if 0.0 < seconds < 253402300800.0 else 0.0
