"""The bucket of tokens of the HTTP API: create, list and revoke them, and find what the bearer of one may do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from jetjobs.jetstream.audit_log import AuditLog
from jetjobs.jetstream.messages.get import StoredMessage, last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import ConfigError, TokenConflict, TokenNotFound
from jetjobs.model.public import public
from jetjobs.model.views.access import LOCAL_NAME, Access, check_scopes
from jetjobs.model.views.token import (
    StoredToken,
    TokenInfo,
    TokenText,
    check_queues,
    is_secret_of,
    read_token,
    write_token,
)
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_run
from jetjobs.model.wire.lenient_json import LAST_MOMENT
from jetjobs.model.wire.subjects import Names, kv_key, kv_stream, kv_subject
from jetjobs.model.wire.validation import check_token

KNOWN_S = 2.0
"""How long what was read counts: a revoked token is refused after this time."""
MOST = 10_000
"""Tokens that are read."""
_GONE_S = 3600
"""How long the mark of a revoked token is kept."""
_log = logging.getLogger("jetjobs.tokens")


@public("jetjobs.admin")
class Tokens:
    """`app.tokens`: the tokens of one namespace. Their names are unique."""

    def __init__(
        self, connection: Connection, publisher: Publisher, names: Names, audit: AuditLog, clock: ServerClock
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._bucket = names.tokens_bucket
        self._stream = kv_stream(self._bucket)
        self._audit = audit
        self._clock = clock
        self._known: dict[str, StoredToken] = {}
        self._known_until = 0.0
        self._reading = asyncio.Lock()
        self._reported: set[int] = set()

    # Changing

    async def new(
        self,
        name: str,
        scopes: Iterable[str],
        queues: Iterable[str] | None = None,
        expires: Duration | datetime | None = None,
        *,
        by: str = "",
        reason: str = "",
    ) -> str:
        """Create a token and return its text. The text is not stored and cannot be read again.

        TokenConflict when the name is taken. ConfigError or DefinitionError, before anything is stored, for an
        unknown scope, an invalid name, or a time that has passed.
        """
        if name == LOCAL_NAME:
            hint = "it is that of callers on loopback without a token"
            raise ConfigError(f"the name {name!r} is reserved", hint=hint)
        text = TokenText.new(check_token("token", name))
        granted, only = check_scopes(scopes), check_queues(queues)
        if expires is not None and not isinstance(expires, datetime):
            expires = to_duration("expires", expires, positive=True)
        async with self._audit.action("token.new", name, by=by, reason=reason) as outcome:
            expires_at = None if expires is None else await self._end(expires)
            await self._create(name, write_token(text, granted, only, by, expires_at))
            outcome.detail = " ".join(sorted(granted)) + (f" in {' '.join(only)}" if only else "")
        self._known_until = 0.0
        return str(text)

    async def _end(self, expires: timedelta | datetime) -> datetime:
        now = await self._clock.now()
        try:
            end = now + expires if isinstance(expires, timedelta) else expires
            passed = end <= now
        except (OverflowError, TypeError):  # beyond the calendar; without a time zone
            raise ConfigError(f"invalid expires {expires!s:.80}: use a duration, or a time with a zone") from None
        if passed or end.timestamp() >= LAST_MOMENT:
            raise ConfigError(f"invalid expires {expires!s:.80}: use a time from now to the year 9999")
        return end

    async def _create(self, name: str, body: bytes) -> None:
        there = await last_on(self._connection, self._stream, kv_subject(self._bucket, name))
        taken = TokenConflict(
            f"token {name!r} exists", hint=f"choose another name, or `jetjobs http token revoke {name}` first"
        )
        if there is not None and not _is_mark(there):
            raise taken
        headers = {
            h.MSG_ID: new_run(),
            h.EXPECTED_LAST_SUBJECT_SEQ: str(there.sequence if there is not None else 0),
        }
        try:
            await self._publisher.confirm(self._stream, Outgoing(kv_subject(self._bucket, name), body, headers))
        except WrongLastSequence:  # another process has just created it
            raise taken from None

    async def revoke(self, name: str, *, by: str = "", reason: str = "") -> None:
        """Revoke a token. It is refused everywhere within about two seconds. TokenNotFound if there is none."""
        check_token("token", name)
        subject = kv_subject(self._bucket, name)
        async with self._audit.action("token.revoke", name, by=by, reason=reason):
            there = await last_on(self._connection, self._stream, subject)
            if there is None or _is_mark(there):
                raise _not_found(name)
            headers = {h.MSG_ID: new_run(), h.KV_OPERATION: "DEL", h.TTL: f"{_GONE_S}s"}
            await self._publisher.confirm(self._stream, Outgoing(subject, b"", headers))
        self._known_until = 0.0

    # Reading

    async def get(self, name: str) -> TokenInfo:
        """One token. TokenNotFound if there is none, or if it cannot be read."""
        subject = kv_subject(self._bucket, check_token("token", name))
        there = await last_on(self._connection, self._stream, subject)
        found = None if there is None else self._read(there)
        if found is None:
            raise _not_found(name)
        return found.info

    async def find(self, text: str) -> Access | None:
        """What the bearer of the token may do; None if it is wrong, revoked or expired.

        All tokens are read at once, at most every two seconds: guessing causes no further requests.
        """
        given = TokenText.parse(text)
        if given is None:
            return None
        if time.monotonic() >= self._known_until:
            async with self._reading:
                if time.monotonic() >= self._known_until:
                    asked = time.monotonic()
                    self._known = await self._all()
                    self._known_until = asked + KNOWN_S
        stored = self._known.get(given.name)
        if not is_secret_of(given, stored) or stored is None:
            return None
        expires_at = stored.info.expires_at
        if expires_at is not None and expires_at <= await self._clock.now():
            return None
        return stored.access()

    async def _all(self) -> dict[str, StoredToken]:
        subject = kv_subject(self._bucket, "*")
        messages = [m async for m in scan(self._connection, self._stream, subject, limit=MOST)]
        return {found.info.name: found for m in messages if (found := self._read(m)) is not None}

    def _read(self, message: StoredMessage) -> StoredToken | None:
        """None for the mark of a revoked token, and for a record that cannot be read, which is reported once."""
        if _is_mark(message):
            return None
        name = kv_key(message.subject)
        found = read_token(name, message.stored_at, message.data)
        if found is None and message.sequence not in self._reported:
            self._reported.add(message.sequence)
            extra = {"event": "token.unreadable", "error": f"key {name[:100]!r} of bucket {self._bucket}"}
            _log.warning("a token cannot be read and is refused", extra=extra)
        return found

    async def list(self) -> list[TokenInfo]:
        """All tokens by name, also expired ones. Records that cannot be read are left out, with a warning."""
        return [stored.info for _, stored in sorted((await self._all()).items())]


def _is_mark(message: StoredMessage) -> bool:
    return h.KV_OPERATION in message.headers


def _not_found(name: str) -> TokenNotFound:
    return TokenNotFound(f"token {name!r} does not exist", hint="list them with `jetjobs http token list`")
