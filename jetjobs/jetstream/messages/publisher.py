"""Store one message and confirm it: repeated under one message id, or guarded by an expected sequence."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jetjobs.jetstream.messages.codec import encode_headers, header_size
from jetjobs.jetstream.messages.refused_writes import RefusedWrites
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.backoff import backoff_s
from jetjobs.jetstream.transport.connection import HEADER_ROOM, Connection
from jetjobs.jetstream.transport.errors import WRONG_LAST_SEQUENCE, NotSent, from_response, is_transient
from jetjobs.model.errors import (
    AccessDenied,
    BrokerError,
    BrokerUnavailable,
    JobTooLarge,
    TopologyMissing,
    UnsupportedServer,
)
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import Names

TRY_S = 2.0
"""How long one try waits for its answer."""
_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class WrongLastSequence(Exception):
    """A guarded publish found another `sequence` on its subject than it expected; 0 if the server named none."""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"wrong last sequence: {sequence}")
        self.sequence = sequence


class Unconfirmed(BrokerUnavailable):
    """Repeated until time was up and never confirmed: it is unknown whether the message is stored."""


def _always() -> bool:
    return True


class Outgoing(NamedTuple):
    """A message ready to be stored."""

    subject: str
    body: bytes
    headers: dict[str, str] | bytes
    """Bytes are a ready header block that many messages share."""

    @property
    def size(self) -> int:
        return len(self.body) + header_size(self.headers)


class Publisher:
    """Stores messages. Each has a `Nats-Msg-Id` or a guard, so it is safe to repeat the publish."""

    def __init__(self, connection: Connection, names: Names, timeout_s: float) -> None:
        self._connection = connection
        self._names = names
        self._timeout_s = timeout_s
        self.refused = RefusedWrites()

    def outgoing(
        self, job: Job, due_at: float | None = None, guard: str | None = None, lane: str = ""
    ) -> Outgoing:
        """The wire form of a job on its own lane, on another `lane`, or until `due_at` on `later` or `retry`."""
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
        """False when the message is larger than `limit`: the server would close the connection over it, or a
        later move would not fit."""
        # Most jobs are far below the limit: count the headers only where they could matter.
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
        """As `confirm`. Returns False when another publish has stored a message with this id."""
        return b'"duplicate"' not in await self.confirm(stream, message, timeout_s=timeout_s, owned=owned)

    async def confirm(
        self,
        stream: str,
        message: Outgoing,
        *,
        timeout_s: float | None = None,
        owned: Callable[[], bool] = _always,
    ) -> bytes:
        """Publish until confirmed, and return the confirmation.

        WrongLastSequence when the guard failed, Unconfirmed when time is up, otherwise BrokerError. Not repeated
        once `owned` is false: a job whose lease is lost is moved by its next owner. If an earlier try was stored
        and only its answer was late or lost, its confirmation is returned.
        """
        give_up = time.monotonic() + (timeout_s or self._timeout_s)
        failures = 0
        unanswered = False
        while True:
            try:
                reply = await self._connection.ask(message.subject, message.body, message.headers, TRY_S)
                if unanswered:
                    reply = await self._after_resend(message, reply)
                elif b'"error"' in reply:
                    raise_refusal(reply, message.subject)
                if self.refused.streams:
                    self.refused.stored(stream)
                return reply
            except BrokerError as error:
                await self.refused.failed(stream, error, self._connection)
                if not is_transient(error):
                    raise
                unanswered |= not error.code and not isinstance(error, NotSent)
                unknown = ""
                if self._connection.connected:  # always, because others may listen on the subject too
                    unknown = await self.check_stream(stream, message.subject, sent=unanswered)
                failures += 1
                pause_s = backoff_s(failures)
                if time.monotonic() + pause_s >= give_up or self._connection.closed.is_set() or not owned():
                    if isinstance(error, NotSent) and not unanswered:
                        raise BrokerUnavailable(
                            "the connection to the server is lost; nothing was stored",
                            hint="the client reconnects by itself: try again later",
                        ) from error
                    reason = self.refused.reason(stream) or f"{error}{unknown}"
                    raise Unconfirmed(reason, code=error.code) from error
            await asyncio.sleep(pause_s)

    async def _after_resend(self, message: Outgoing, reply: bytes) -> bytes:
        """The confirmation of a message of which an earlier try got no answer, as if that one had got it.

        A server with one replica compares the expected sequence before the message id. So if the earlier try was
        stored, the resend may be refused because of it, or because of what became of it: a schedule that has
        fired, a job that has ended. Only the server's list of message ids shows it. To read that, publish the id
        with an invalid rollup: the server answers `duplicate`, or refuses it and stores nothing. ADR 44.
        """
        try:
            if b'"error"' in reply:
                raise_refusal(reply, message.subject)
        except WrongLastSequence:
            if not isinstance(message.headers, dict) or h.MSG_ID not in message.headers:
                raise
            question = {h.MSG_ID: message.headers[h.MSG_ID], h.ROLLUP: "none"}
            reply = await self._connection.ask(message.subject, b"", question, TRY_S)
            if b'"duplicate"' not in reply:
                refusal = from_response(json.loads(reply), f"publish to {message.subject}")
                if refusal is not None and is_transient(refusal):
                    raise refusal from None  # still unknown: try again
                raise
        confirmation = json.loads(reply)
        return json.dumps({"stream": confirmation["stream"], "seq": confirmation["seq"]}).encode()

    async def check_stream(self, stream: str, subject: str, *, sent: bool = False) -> str:
        """After a publish without an answer: TopologyMissing when the stream does not exist or does not accept the
        subject, UnsupportedServer when JetStream is off. A stream without a leader passes.

        `sent`: an earlier try may have been stored; then Unconfirmed instead of UnsupportedServer. Returns what to
        add to a later error if this user may not ask, else an empty text.
        """
        try:
            info = await self._connection.api(api.stream_info(stream))
        except TopologyMissing:
            raise
        except UnsupportedServer as error:
            if sent:
                raise Unconfirmed(str(error), code=error.code) from error
            raise
        except AccessDenied as error:
            return f"; whether the stream exists is unknown: {error}"
        except BrokerError:
            return ""  # the API has no leader either: try again
        if not any(api.matches(pattern, subject) for pattern in info["config"].get("subjects", [])):
            raise TopologyMissing(f"stream {stream} does not accept {subject}", hint="jetjobs setup apply")
        return ""


def raise_refusal(data: bytes, subject: str) -> None:
    """Raise the error in the answer to a publish, if it has one."""
    answer: dict[str, Any] = json.loads(data)
    error = answer.get("error", {})
    if error.get("err_code") == WRONG_LAST_SEQUENCE:
        found = _SEQUENCE.search(error.get("description", ""))
        raise WrongLastSequence(int(found[1]) if found else 0)
    if (refusal := from_response(answer, f"publish to {subject}")) is not None:
        raise refusal
