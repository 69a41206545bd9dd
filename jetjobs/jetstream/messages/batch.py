"""Store many messages in one atomic batch: all of them or none."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from jetjobs.jetstream.messages.publisher import TRY_S, Outgoing, Publisher, Unconfirmed, raise_refusal
from jetjobs.jetstream.transport.backoff import backoff_s
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import BATCH_DUPLICATE, is_transient
from jetjobs.jetstream.transport.nats_client import frame, header_lines
from jetjobs.model.errors import BrokerError
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_run, new_uid

BATCH_SIZE = 1000
"""The server's own limit for one atomic batch."""
BATCH_BYTES = 8 * 1024 * 1024

_COMMIT_S = 10.0


class BatchMessage(NamedTuple):
    """A message ready for a batch. Its headers are lines of text and have no message id of their own."""

    subject: str
    body: bytes
    lines: str


def batch_message(message: Outgoing) -> BatchMessage:
    """Prepare any message for a batch."""
    assert isinstance(message.headers, dict)
    return BatchMessage(
        message.subject, message.body, header_lines({k: v for k, v in message.headers.items() if k != h.MSG_ID})
    )


class JobTemplate:
    """The wire form of plain jobs of one task, made once: they differ only in id, run and body."""

    __slots__ = ("_lines", "_prefix", "_with_id")

    ID = "\x00id"
    RUN = "\x00run"

    def __init__(self, message: Outgoing) -> None:
        """From the wire form of a job whose id is ID and whose run is RUN."""
        assert isinstance(message.headers, dict)
        self._prefix = message.subject.removesuffix(self.ID)
        self._lines = header_lines({k: v for k, v in message.headers.items() if k != h.MSG_ID})
        self._with_id = self.ID in self._lines

    def fill(self, uid: str, run: str, body: bytes) -> BatchMessage:
        lines = self._lines.replace(self.RUN, run)
        return BatchMessage(self._prefix + uid, body, lines.replace(self.ID, uid) if self._with_id else lines)


class BatchPublisher:
    """Stores batches of messages."""

    def __init__(self, connection: Connection, publisher: Publisher, timeout_s: float) -> None:
        self._connection = connection
        self._publisher = publisher
        self._timeout_s = timeout_s

    async def store(self, stream: str, messages: Sequence[BatchMessage]) -> int:
        """Store all messages or none. Returns the sequence of the last; the others directly precede it. Returns 0
        when the batch is stored but the answer was lost.

        Unconfirmed when time is up: then all or none are stored. WrongLastSequence when a guard failed.
        """
        # One message id is enough to reject a second copy of the batch, because a batch is stored as a whole. The
        # server has a thousand fewer ids to remember. ADR 4.
        message_id = new_uid()
        give_up = time.monotonic() + self._timeout_s
        failures = 0
        unanswered = False
        while True:
            try:
                return await self._send(messages, message_id)
            except BrokerError as error:
                if error.code == BATCH_DUPLICATE and failures:
                    return 0  # an earlier try was stored and only its answer was lost
                if not is_transient(error):
                    raise
                unanswered |= not error.code
                unknown = ""
                if error.code == 503:
                    unknown = await self._publisher.check_stream(stream, messages[0].subject, sent=unanswered)
                failures += 1
                pause_s = backoff_s(failures)
                if time.monotonic() + pause_s >= give_up or self._connection.closed.is_set():
                    raise Unconfirmed(f"{error}{unknown}", code=error.code) from error
            await asyncio.sleep(pause_s)

    async def _send(self, messages: Sequence[BatchMessage], message_id: str) -> int:
        batch = new_run()
        first, last = messages[0], messages[-1]
        extra = f"{h.MSG_ID}: {message_id}\r\n"
        if len(messages) > 1:
            # The answer to the first message shows whether the server accepts the batch at all.
            reply = await self._connection.ask(first.subject, first.body, _block(first, batch, 1, extra), TRY_S)
            if reply:
                raise_refusal(reply, first.subject)
            extra = ""
            frames = [
                frame(message.subject, message.body, "", _block(message, batch, number))
                for number, message in enumerate(messages[1:-1], 2)
            ]
            if frames:
                await self._connection.send_frames(frames)
        commit = _block(last, batch, len(messages), f"{extra}{h.BATCH_COMMIT}: 1\r\n")
        reply = await self._connection.ask(last.subject, last.body, commit, _COMMIT_S)
        if b'"error"' in reply:
            raise_refusal(reply, last.subject)
        return int(json.loads(reply)["seq"])


def _block(message: BatchMessage, batch: str, number: int, extra: str = "") -> bytes:
    return (f"NATS/1.0\r\n{message.lines}{h.BATCH_ID}: {batch}\r\n{h.BATCH_SEQ}: {number}\r\n{extra}\r\n").encode()
