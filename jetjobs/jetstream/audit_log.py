"""The audit: a stream with one entry for each action of an operator. Only their age removes entries."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import ContextVar
from datetime import UTC, datetime

from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher
from jetjobs.jetstream.messages.scan import page as read_page
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError, ConfigError
from jetjobs.model.public import public
from jetjobs.model.views.audit import (
    FAILED,
    INTERRUPTED,
    AuditEntry,
    AuditFilter,
    AuditPage,
    Outcome,
    Via,
    check_action,
    read_entry,
    write_entry,
)
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_run
from jetjobs.model.wire.subjects import Names

SCAN_LIMIT = 10_000
"""The most messages that are looked at for one page."""
MAX_LIMIT = 10_000
_WINDOW = 250
_WRITE_S = 2.0
"""How long an action that is done waits for its entry."""
_EVERYTHING = AuditFilter()
_log = logging.getLogger("jetjobs.audit")
_counting: ContextVar[Counter[str] | None] = ContextVar("jetjobs_audit_counting", default=None)
"""The outcomes of an action on many, inside `together`."""


@public("jetjobs.admin")
class AuditLog:
    """`app.audit`: the entries of one namespace. Operations that change something write them."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names

    # Writing

    async def record(
        self,
        action: str,
        target: str,
        *,
        by: str = "",
        reason: str = "",
        outcome: str = "done",
        detail: str = "",
        via: Via | None = None,
    ) -> bool:
        """Add an entry for an action that has been carried out or refused, such as `http.refused`.

        False, with a warning in the log, when it cannot be stored: the action is not undone because of that.
        """
        return await self._write(check_action(action), by, reason, Outcome(target, outcome, detail), via)

    @contextlib.asynccontextmanager
    async def action(self, action: str, target: str, *, by: str, reason: str) -> AsyncIterator[Outcome]:
        """Carry out one action inside this block, and record it at the end, also if it raises."""
        outcome = Outcome(target)
        try:
            yield outcome
        except Exception as error:
            outcome.set(FAILED, f"{type(error).__name__}: {error}")
            raise
        except BaseException:  # cancelled
            outcome.set(INTERRUPTED)
            raise
        finally:
            counting = _counting.get()
            if counting is not None:
                counting[outcome.text] += 1
            else:
                await self._write(action, by, reason, outcome)

    @contextlib.asynccontextmanager
    async def together(self, action: str, target: str, *, by: str, reason: str) -> AsyncIterator[None]:
        """One entry, with counts by outcome, for all actions inside this block; `target` is their filter."""
        async with self.action(check_action(action), target, by=by, reason=reason) as outcome:
            counts = Counter[str]()
            before = _counting.set(counts)
            try:
                yield
            finally:
                _counting.reset(before)
                outcome.counts = dict(sorted(counts.items()))

    async def _write(self, action: str, by: str, reason: str, outcome: Outcome, via: Via | None = None) -> bool:
        body = write_entry(by, reason, outcome, via)
        message = Outgoing(self._names.audit(action), body, {h.MSG_ID: new_run()})
        try:
            if not self._connection.connected:
                raise BrokerError("not connected")
            await self._publisher.confirm(self._names.audit_stream, message, timeout_s=_WRITE_S)
        except BrokerError as error:
            cause = f"{error}; {error.hint}" if error.hint else str(error)
            extra = {"event": "audit.unrecorded", "action": action, "target": outcome.target[:200], "error": cause}
            _log.warning("an action was not recorded in the audit", extra=extra)
            return False
        return True

    # Reading

    async def page(
        self, wanted: AuditFilter = _EVERYTHING, *, limit: int = 50, cursor: str | None = None
    ) -> AuditPage:
        """One page of entries, newest first. TopologyMissing when the stream does not exist.

        At most SCAN_LIMIT messages are looked at; then the page ends early and its cursor continues from there.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise ConfigError(f"invalid limit {limit}: use 1 to {MAX_LIMIT:,}")
        until = None if cursor is None else _read_cursor(cursor)
        stream, subject = self._names.audit_stream, self._names.audit(wanted.action or ">")
        state = (await self._connection.api(api.stream_info(stream)))["state"]
        until = min(until or int(state["last_seq"]), int(state["last_seq"]))
        first = int(state["first_seq"])
        if wanted.since is not None:
            found = await read_page(self._connection, stream, subject, 1, 1, wanted.since.isoformat())
            first = found[0].sequence if found else until + 1
        items: list[AuditEntry] = []
        scanned = 0
        while first <= until and scanned < SCAN_LIMIT:
            start = max(first, until - _WINDOW + 1)
            for message in reversed(await self._between(stream, subject, start, until)):
                entry = self._read(message)
                if not wanted.matches(entry):
                    continue
                if len(items) == limit:
                    return AuditPage(items, str(entry.sequence), scanned)
                items.append(entry)
            scanned += until - start + 1
            until = start - 1
        return AuditPage(items, str(until) if first <= until else None, scanned)

    async def _between(self, stream: str, subject: str, start: int, until: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async for message in scan(self._connection, stream, subject, start):
            if message.sequence > until:
                break
            found.append(message)
        return found

    def _read(self, message: StoredMessage) -> AuditEntry:
        at = datetime.fromtimestamp(message.stored_at, UTC)
        return read_entry(message.sequence, at, self._names.action_of(message.subject), message.data)

    async def list(self, wanted: AuditFilter = _EVERYTHING) -> AsyncIterator[AuditEntry]:
        """Every entry that matches, newest first, read page by page."""
        cursor: str | None = None
        while True:
            found = await self.page(wanted, limit=1000, cursor=cursor)
            for entry in found.items:
                yield entry
            cursor = found.cursor
            if cursor is None:
                return


def _read_cursor(text: str) -> int:
    if not (len(text) < 20 and text.isascii() and text.isdecimal() and 1 <= int(text) < 2**63):
        raise ConfigError(f"invalid cursor {text[:40]!r}", hint="use the one that the previous list printed")
    return int(text)
