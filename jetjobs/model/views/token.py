"""Tokens of the HTTP API: their text, what is stored of them, and what a list shows."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jetjobs.model.errors import ConfigError, DefinitionError
from jetjobs.model.public import Record, public
from jetjobs.model.views.access import Access, check_scopes
from jetjobs.model.wire.lenient_json import as_time, read_record
from jetjobs.model.wire.validation import check_token, is_token

_TEXT = re.compile(r"jj_([A-Za-z0-9_-]{1,64})_([a-z2-7]{52})", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
_NO_HASH = "0" * 64
_MAX_BY = 200


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class TokenInfo(Record):
    """A token without its secret, which is not stored."""

    name: str
    scopes: tuple[str, ...]
    queues: tuple[str, ...] | None
    """The only queues it may use; None for all."""
    created_at: datetime
    by: str
    expires_at: datetime | None
    """None if it never expires."""


class TokenText(NamedTuple):
    """The parts of a token's text, `jj_{name}_{secret}`."""

    name: str
    secret: str

    @classmethod
    def new(cls, name: str) -> TokenText:
        """A new secret of 32 random bytes in base32, which contains no `_`."""
        return cls(name, base64.b32encode(secrets.token_bytes(32)).decode().rstrip("=").lower())

    @classmethod
    def parse(cls, text: str) -> TokenText | None:
        """None for a text of any other form."""
        found = _TEXT.fullmatch(text)
        return cls(*found.groups()) if found is not None else None

    @property
    def hash(self) -> str:
        """The secret has 256 random bits, so that one round of SHA-256 is enough."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def __str__(self) -> str:
        return f"jj_{self.name}_{self.secret}"


class StoredToken(NamedTuple):
    """What is stored of a token."""

    info: TokenInfo
    hash: str

    def access(self) -> Access:
        queues = self.info.queues
        return Access(self.info.name, frozenset(self.info.scopes), None if queues is None else frozenset(queues))


def is_secret_of(text: TokenText, stored: StoredToken | None) -> bool:
    """Whether the text is that token. Takes the same time for a wrong secret, and for a name without a token."""
    same = hmac.compare_digest(text.hash, stored.hash if stored is not None else _NO_HASH)
    return same and stored is not None


def check_queues(queues: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names in order. DefinitionError for an invalid one, ConfigError if there are none."""
    if queues is None:
        return None
    found = tuple(sorted({check_token("queue", queue) for queue in queues}))
    if not found:
        raise ConfigError("a token needs at least one queue", hint="leave out the queues to allow all")
    return found


def write_token(
    text: TokenText,
    scopes: Iterable[str],
    queues: Iterable[str] | None,
    by: str,
    expires_at: datetime | None,
) -> bytes:
    """The value of its key. The server adds the time of creation."""
    record = {
        "sha256": text.hash,
        "scopes": sorted(scopes),
        "queues": None if queues is None else list(queues),
        "by": by[:_MAX_BY],
        "expires_at": None if expires_at is None else expires_at.timestamp(),
    }
    return json.dumps(record).encode()


def read_token(name: str, stored_at: float, body: bytes) -> StoredToken | None:
    """None unless every part is valid: what cannot be understood must grant nothing."""
    record = read_record(body)
    expires = record.get("expires_at")
    try:
        scopes = tuple(sorted(check_scopes(_texts(record.get("scopes")))))
        queues = check_queues(None if record.get("queues") is None else _texts(record["queues"]))
    except (ConfigError, DefinitionError):
        return None
    expires_at = as_time(expires)
    hashed = record.get("sha256")
    valid = isinstance(hashed, str) and _HASH.fullmatch(hashed) and is_token(name)
    if not valid or (expires is not None and expires_at is None):
        return None
    created_at = datetime.fromtimestamp(stored_at, UTC)
    by = str(record.get("by", ""))[:_MAX_BY]
    return StoredToken(TokenInfo(name, scopes, queues, created_at, by, expires_at), str(hashed))


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ConfigError("not a list of texts")
    return value
