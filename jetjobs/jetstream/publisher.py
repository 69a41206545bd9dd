"""Store a message and know that it is stored: confirm, repeat under one id, guard, batch."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jetjobs.jetstream.codec import encode_headers, header_size
from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import BATCH_DUPLICATE, WRONG_LAST_SEQUENCE, from_response, is_transient
from jetjobs.jetstream.reads import parse_time
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError, BrokerUnavailable, JobTooLarge, TopologyMissing
from jetjobs.model.ids import new_uid
from jetjobs.model.job import Job
from jetjobs.model.names import Names

BATCH_SIZE = 1000
"""The server's own limit for one atomic batch."""
BATCH_BYTES = 8 * 1024 * 1024

_TRY_S = 2.0
_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class PubAck(NamedTuple):
    """The stream's word that the message is stored."""

    sequence: int
    duplicate: bool


class Taken(Exception):
    """A guarded publish found `sequence` on its subject. 0 when the server did not say which."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"taken by sequence {sequence}")
        self.sequence = sequence


class Unconfirmed(BrokerUnavailable):
    """Repeated until the time was up, and never confirmed: stored or not is unknown."""


class Outgoing(NamedTuple):
    """A message ready to be stored."""

    subject: str
    body: bytes
    headers: dict[str, str]

    @property
    def size(self) -> int:
        return len(self.body) + header_size(self.headers)


class Publisher:
    """Stores messages. Every one carries a `Nats-Msg-Id` or a guard, so that repeating it is harmless."""

    def __init__(self, connection: Connection, names: Names, timeout_s: float) -> None:
        self._connection = connection
        self._names = names
        self._timeout_s = timeout_s
        self._clock_offset: float | None = None

    def outgoing(self, job: Job, due_at: float | None = None, guard: str | None = None) -> Outgoing:
        """The wire form of a job: on its lane, or on `later` until `due_at`."""
        headers = encode_headers(job)
        tokens = job.tokens
        subject = ready = self._names.job(job.queue, job.lane, job.task, tokens)
        if due_at is not None:
            subject = self._names.job(job.queue, n.LATER, job.task, tokens)
            headers[n.SCHEDULE] = f"@at {_rfc3339(due_at)}"
            headers[n.SCHEDULE_TARGET] = ready
        if guard is not None:
            headers[n.EXPECTED_LAST_SUBJECT_SEQ] = "0"
            headers[n.EXPECTED_LAST_SUBJECT] = guard
        return Outgoing(subject, job.body, headers)

    def check_size(self, message: Outgoing, limit: int) -> None:
        """JobTooLarge when the server would close the connection over it, or a later move could not hold it."""
        # Most jobs are far below: count the headers only where they could matter.
        if len(message.body) + n_headers_bound(message.headers) > limit and (size := message.size) > limit:
            raise JobTooLarge(
                f"headers and body are {size:,} bytes; the limit is {limit:,}",
                size=size,
                limit=limit,
                hint="store the data elsewhere and pass a reference, or raise max_payload on the server",
            )

    async def store(
        self, stream: str, message: Outgoing, *, timeout_s: float | None = None
    ) -> PubAck:
        """Publish until confirmed. Taken on a failed guard, Unconfirmed when time is up, else BrokerError."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + (timeout_s or self._timeout_s)
        pause = 0.05
        while True:
            try:
                reply = await self._connection.ask(message.subject, message.body, message.headers, _TRY_S)
                return _read_ack(reply, message.subject)
            except BrokerError as error:
                if not is_transient(error):
                    raise
                if error.code == 503:
                    await self._check_bound(stream, message.subject)
                if loop.time() + pause >= give_up or self._connection.closed.is_set():
                    raise Unconfirmed(str(error), code=error.code) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    async def store_batch(self, stream: str, messages: Sequence[Outgoing]) -> None:
        """Store all or none. Unconfirmed when time is up; then none or all are stored."""
        if len(messages) == 1:
            await self.store(stream, messages[0])
            return
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._timeout_s
        pause, sent_before = 0.05, False
        while True:
            try:
                await self._send_batch(messages)
                return
            except BrokerError as error:
                if error.code == BATCH_DUPLICATE and sent_before:
                    return  # the earlier try was stored, only its answer was lost
                if not is_transient(error):
                    raise
                if error.code == 503:
                    await self._check_bound(stream, messages[0].subject)
                if loop.time() + pause >= give_up or self._connection.closed.is_set():
                    raise Unconfirmed(str(error), code=error.code) from error
            sent_before = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    async def _send_batch(self, messages: Sequence[Outgoing]) -> None:
        batch = new_uid()
        first, *rest, last = messages
        # The first answer tells whether the server takes the batch at all, before the rest is sent.
        reply = await self._connection.ask(
            first.subject, first.body, {**first.headers, n.BATCH_ID: batch, n.BATCH_SEQ: "1"}, _TRY_S
        )
        if reply:
            _read_ack(reply, first.subject)
        send = self._connection.nc.send
        for number, message in enumerate(rest, 2):
            headers = message.headers
            headers[n.BATCH_ID] = batch
            headers[n.BATCH_SEQ] = str(number)
            await send(message.subject, message.body, "", headers)
        commit = {
            **last.headers,
            n.BATCH_ID: batch,
            n.BATCH_SEQ: str(len(messages)),
            n.BATCH_COMMIT: "1",
        }
        reply = await self._connection.ask(last.subject, last.body, commit, 10.0)
        _read_ack(reply, last.subject)

    async def _check_bound(self, stream: str, subject: str) -> None:
        """Nobody answered: tell a stream that is not there from one that has no leader just now."""
        try:
            info = await self._connection.api(f"STREAM.INFO.{stream}")
        except TopologyMissing:
            raise
        except BrokerError:
            return  # no leader for the API either, or we may not ask: try again
        if not any(_matches(pattern, subject) for pattern in info["config"].get("subjects", [])):
            raise TopologyMissing(f"stream {stream} does not take {subject}", hint="jetjobs setup apply")

    async def server_now(self, stream: str, local_now: float) -> float:
        """The time by the server's clock, which is the one that fires schedules."""
        if self._clock_offset is None:
            try:
                info = await self._connection.api(f"STREAM.INFO.{stream}")
                self._clock_offset = parse_time(info["ts"]) - local_now
            except TopologyMissing:
                raise
            except BrokerError:
                return local_now  # not allowed to ask: our own clock must do
        return local_now + self._clock_offset


def n_headers_bound(headers: dict[str, str]) -> int:
    """More than the headers can take, without encoding them: UTF-8 needs at most four bytes a character."""
    return 16 + sum(len(k) + 4 * len(v) + 4 for k, v in headers.items())


def _read_ack(data: bytes, subject: str) -> PubAck:
    answer: dict[str, Any] = json.loads(data)
    if "error" not in answer:
        return PubAck(answer.get("seq", 0), answer.get("duplicate", False))
    error = answer["error"]
    if error.get("err_code") == WRONG_LAST_SEQUENCE:
        found = _SEQUENCE.search(error.get("description", ""))
        raise Taken(int(found[1]) if found else 0)
    refusal = from_response(answer, f"publish to {subject}")
    assert refusal is not None
    raise refusal


def _matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
