"""Store a message and know that it is stored: confirm, repeat under one id, guard, batch."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jetjobs.jetstream.messages.codec import encode_headers, header_size
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import HEADER_ROOM, Connection
from jetjobs.jetstream.transport.errors import BATCH_DUPLICATE, WRONG_LAST_SEQUENCE, from_response, is_transient
from jetjobs.jetstream.transport.nats_client import frame, header_lines
from jetjobs.model.errors import BrokerError, BrokerUnavailable, JobTooLarge, TopologyMissing
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import new_run, new_uid
from jetjobs.model.wire.subjects import Names, matches

BATCH_SIZE = 1000
"""The server's own limit for one atomic batch."""
BATCH_BYTES = 8 * 1024 * 1024

_TRY_S = 2.0
_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class WrongLastSequence(Exception):
    """A guarded publish found `sequence` on its subject. 0 when the server did not say which."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"taken by sequence {sequence}")
        self.sequence = sequence


def _always() -> bool:
    return True


class Unconfirmed(BrokerUnavailable):
    """Repeated until the time was up, and never confirmed: stored or not is unknown."""


class Outgoing(NamedTuple):
    """A message ready to be stored."""

    subject: str
    body: bytes
    headers: dict[str, str] | bytes
    """A ready block where many messages share one."""

    @property
    def size(self) -> int:
        return len(self.body) + header_size(self.headers)


class BatchMessage(NamedTuple):
    """A message ready for a batch: its headers are lines of text, without a message id of their own."""

    subject: str
    body: bytes
    lines: str


class JobTemplate:
    """Plain jobs of one task differ in id, run and body only: the rest of their wire form is made once."""

    __slots__ = ("_lines", "_prefix", "_with_id")

    ID = "\x00id"
    RUN = "\x00run"

    def __init__(self, message: Outgoing) -> None:
        """Cut from the wire form of a job whose id is ID and whose run is RUN."""
        assert isinstance(message.headers, dict)
        self._prefix = message.subject.removesuffix(self.ID)
        self._lines = header_lines({k: v for k, v in message.headers.items() if k != h.MSG_ID})
        self._with_id = self.ID in self._lines

    def stage(self, uid: str, run: str, body: bytes) -> BatchMessage:
        lines = self._lines.replace(self.RUN, run)
        return BatchMessage(self._prefix + uid, body, lines.replace(self.ID, uid) if self._with_id else lines)


def stage(message: Outgoing) -> BatchMessage:
    """Any message for a batch."""
    assert isinstance(message.headers, dict)
    return BatchMessage(
        message.subject, message.body, header_lines({k: v for k, v in message.headers.items() if k != h.MSG_ID})
    )


class Publisher:
    """Stores messages. Every one carries a `Nats-Msg-Id` or a guard, so that repeating it is harmless."""

    def __init__(self, connection: Connection, names: Names, timeout_s: float) -> None:
        self._connection = connection
        self._names = names
        self._timeout_s = timeout_s

    def outgoing(
        self, job: Job, due_at: float | None = None, guard: str | None = None, lane: str = ""
    ) -> Outgoing:
        """The wire form of a job: on its lane, on a detour from it, or until `due_at` on `later` or `retry`."""
        headers = encode_headers(job)
        if due_at is not None:
            lane = lane or n.LATER
            headers[h.SCHEDULE] = f"@at {api.format_time(due_at)}"
            headers[h.SCHEDULE_TARGET] = self._names.job(job.queue, job.lane, job.task, job.key, job.uid)
        elif lane:
            headers[h.LANE] = job.lane
        subject = self._names.job(job.queue, lane or job.lane, job.task, job.key, job.uid)
        if guard is not None:
            headers[h.EXPECTED_LAST_SUBJECT_SEQ] = "0"
            headers[h.EXPECTED_LAST_SUBJECT] = guard
        return Outgoing(subject, job.body, headers)

    def fits(self, message: Outgoing, limit: int) -> bool:
        """False when the server would close the connection over it, or a later move could not hold it."""
        # Most jobs are far below: count the headers only where they could matter.
        return len(message.body) <= limit - HEADER_ROOM or message.size <= limit

    def check_size(self, message: Outgoing, limit: int) -> None:
        """JobTooLarge unless it fits."""
        if not self.fits(message, limit):
            size = message.size
            raise JobTooLarge(
                f"headers and body are {size:,} bytes; the limit is {limit:,}",
                size=size,
                limit=limit,
                hint="send fewer headers, or raise max_payload on the server",
            )

    async def store(
        self,
        stream: str,
        message: Outgoing,
        *,
        timeout_s: float | None = None,
        owned: Callable[[], bool] = _always,
    ) -> bool:
        """As `confirm`. False when the stream calls it a duplicate of one it has."""
        return b'"duplicate"' not in await self.confirm(stream, message, timeout_s=timeout_s, owned=owned)

    async def confirm(
        self,
        stream: str,
        message: Outgoing,
        *,
        timeout_s: float | None = None,
        owned: Callable[[], bool] = _always,
    ) -> bytes:
        """Publish until confirmed; the confirmation.

        WrongLastSequence on a failed guard, Unconfirmed when time is up, else BrokerError. Not repeated once
        `owned` is false: a job whose lease is lost is another worker's to move.
        """
        give_up = time.monotonic() + (timeout_s or self._timeout_s)
        pause = 0.05
        while True:
            try:
                self._check_connected()
                reply = await self._connection.ask(message.subject, message.body, message.headers, _TRY_S)
                if b'"error"' in reply:
                    _raise_refusal(reply, message.subject)
                return reply
            except BrokerError as error:
                if not is_transient(error):
                    raise
                if self._connection.connected:  # others may listen there too, so not only when nobody does
                    await self._check_bound(stream, message.subject)
                if time.monotonic() + pause >= give_up or self._connection.closed.is_set() or not owned():
                    raise Unconfirmed(str(error), code=error.code) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    def _check_connected(self) -> None:
        # nats-py would buffer the message and send it after the reconnect, when nobody wants it any more.
        if not self._connection.connected:
            raise BrokerUnavailable("not connected")

    async def store_batch(self, stream: str, messages: Sequence[BatchMessage]) -> int:
        """Store all or none; the sequence of the last, those before it stand right before it (0 when the answer to
        that was lost). Unconfirmed when time is up; then none or all are stored. WrongLastSequence on a failed
        guard.
        """
        # A batch is stored whole or not at all, so one message id is enough to refuse a second copy of it,
        # and the server has a thousand fewer to remember. ADR 4.
        message_id = new_uid()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._timeout_s
        pause, sent_before = 0.05, False
        while True:
            try:
                self._check_connected()
                return await self._send_batch(messages, message_id)
            except BrokerError as error:
                if error.code == BATCH_DUPLICATE and sent_before:
                    return 0  # the earlier try was stored, only its answer was lost
                if not is_transient(error):
                    raise
                if error.code == 503:
                    await self._check_bound(stream, messages[0].subject)
                if loop.time() + pause >= give_up or self._connection.closed.is_set():
                    raise Unconfirmed(str(error), code=error.code) from error
            sent_before = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    async def _send_batch(self, messages: Sequence[BatchMessage], message_id: str) -> int:
        batch = new_run()
        first, last = messages[0], messages[-1]
        extra = f"{h.MSG_ID}: {message_id}\r\n"
        if len(messages) > 1:
            # The first answer tells whether the server takes the batch at all, before the rest is sent.
            reply = await self._connection.ask(first.subject, first.body, _block(first, batch, 1, extra), _TRY_S)
            if reply:
                _raise_refusal(reply, first.subject)
            extra = ""
            frames = [
                frame(message.subject, message.body, "", _block(message, batch, number))
                for number, message in enumerate(messages[1:-1], 2)
            ]
            if frames:
                await self._connection.send_frames(frames)
        commit = _block(last, batch, len(messages), f"{extra}{h.BATCH_COMMIT}: 1\r\n")
        reply = await self._connection.ask(last.subject, last.body, commit, 10.0)
        if b'"error"' in reply:
            _raise_refusal(reply, last.subject)
        return int(json.loads(reply)["seq"])

    async def _check_bound(self, stream: str, subject: str) -> None:
        """Nobody answered: tell a stream that is not there from one that has no leader just now."""
        try:
            info = await self._connection.api(api.stream_info(stream))
        except TopologyMissing:
            raise
        except BrokerError:
            return  # no leader for the API either, or we may not ask: try again
        if not any(matches(pattern, subject) for pattern in info["config"].get("subjects", [])):
            raise TopologyMissing(f"stream {stream} does not take {subject}", hint="jetjobs setup apply")


def _block(message: BatchMessage, batch: str, number: int, extra: str = "") -> bytes:
    return (f"NATS/1.0\r\n{message.lines}{h.BATCH_ID}: {batch}\r\n{h.BATCH_SEQ}: {number}\r\n{extra}\r\n").encode()


def _raise_refusal(data: bytes, subject: str) -> None:
    answer: dict[str, Any] = json.loads(data)
    error = answer.get("error", {})
    if error.get("err_code") == WRONG_LAST_SEQUENCE:
        found = _SEQUENCE.search(error.get("description", ""))
        raise WrongLastSequence(int(found[1]) if found else 0)
    if (refusal := from_response(answer, f"publish to {subject}")) is not None:
        raise refusal
