"""Store bodies and results that do not fit into a message as objects in a NATS object store.

The wire form is that of every NATS client. The code is not theirs, because they do not report why a write was
refused, leave messages behind when an object is deleted, and do not let objects expire. ADR 2.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from jetjobs.jetstream.messages.codec import header_size
from jetjobs.jetstream.messages.get import StoredMessage, last_on, next_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, Unconfirmed, WrongLastSequence
from jetjobs.jetstream.messages.scan import page
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.backoff import backoff_s
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import is_transient
from jetjobs.model.errors import BrokerError, BrokerUnavailable, MalformedJob, TopologyMissing
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_uid
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import object_chunks, object_meta, object_stream

MAX_OBJECT = 64 * 1024 * 1024
"""The largest body or result: a worker holds it in memory."""
CHUNK = 128 * 1024
"""As in other clients; less if `max_payload` is small."""

_PAGE = 16
_DIGEST = "SHA-256="
_LABEL = "jetjobs."
_NOT_IN_TOKENS = frozenset(" \t\r\n.*>")
T = TypeVar("T")


class ObjectInfo(NamedTuple):
    """The entry of an object, stored on its meta subject."""

    name: str
    nuid: str
    size: int
    chunks: int
    digest: str
    deleted: bool
    labels: dict[str, str]
    """Queue, task, id and run of its job; empty for an object that jetjobs did not write."""
    sequence: int = 0
    stored_at: float = 0.0


def labels_of(job: Job) -> dict[str, str]:
    """The labels of an object of this job, by which the job can be found."""
    return {"queue": job.queue, "task": job.task, "id": job.id, "run": job.run}


def write_info(info: ObjectInfo, store: str, chunk_size: int) -> bytes:
    """The entry in the form that every NATS client reads."""
    entry = {
        "name": info.name,
        "bucket": store,
        "nuid": info.nuid,
        "size": info.size,
        "chunks": info.chunks,
        "mtime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "digest": info.digest,
        "metadata": {f"{_LABEL}{key}": value for key, value in info.labels.items()},
        "options": {"max_chunk_size": chunk_size},
    }
    return json.dumps(entry).encode()


def read_info(message: StoredMessage) -> ObjectInfo:
    """Read an entry. An unreadable one counts as deleted."""
    try:
        entry: dict[str, Any] = read_json(message.data)
        labels = entry.get("metadata") or {}
        return ObjectInfo(
            str(entry["name"]),
            str(entry.get("nuid") or ""),
            int(entry.get("size") or 0),
            int(entry.get("chunks") or 0),
            str(entry.get("digest") or ""),
            bool(entry.get("deleted")) or bool((entry.get("options") or {}).get("link")),
            _usable({k.removeprefix(_LABEL): str(v) for k, v in labels.items() if k.startswith(_LABEL)}),
            message.sequence,
            message.stored_at,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ObjectInfo("", "", 0, 0, "", True, {}, message.sequence, message.stored_at)


def _usable(labels: dict[str, str]) -> dict[str, str]:
    """The labels, or none if they are not valid tokens: they become part of subjects."""
    return {} if any(set(label) & _NOT_IN_TOKENS for label in labels.values()) else labels


def format_digest(digest: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(digest).decode()


class _Broken(Exception):
    """The chunks do not match the entry."""


def _always() -> bool:
    return True


class Payloads:
    """The object store of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, store: str, timeout_s: float) -> None:
        self._connection = connection
        self._publisher = publisher
        self._timeout_s = timeout_s
        self.store = store
        self.stream = object_stream(store)

    # Writing

    async def put(
        self,
        name: str,
        data: bytes,
        labels: Mapping[str, str],
        *,
        ttl_s: int = 0,
        owned: Callable[[], bool] = _always,
    ) -> None:
        """Store `data` under `name` and replace an older object. The object appears as a whole. Safe to repeat.

        It expires after `ttl_s`; 0 keeps it. BrokerError when it is not stored; its chunks are then removed.
        """
        doing = f"store {len(data):,} bytes in {self.store}"
        there = await self._retry(lambda: self.info(name), doing)
        writing = _Writing(name, new_uid(), ttl_s, owned)
        try:
            digest, chunks = await self._write_chunks(writing, data)
        except BrokerError as error:
            await self._purge_quietly(object_chunks(self.store, writing.nuid))
            raise _named(error, doing) from error
        entry = write_info(
            ObjectInfo(name, writing.nuid, len(data), chunks, digest, False, dict(labels)),
            self.store,
            self._chunk_size(writing),
        )
        try:
            await self._write_entry(writing, entry, there)
        except Unconfirmed as error:
            # The entry may be stored, so its chunks must stay. If it is not, the sweep removes them.
            raise _named(error, doing) from error
        except BrokerError as error:
            await self._purge_quietly(object_chunks(self.store, writing.nuid))
            raise _named(error, doing) from error

    async def _write_chunks(self, writing: _Writing, data: bytes) -> tuple[str, int]:
        """Write the chunks one after the other and confirm each, because only their order numbers them."""
        subject = object_chunks(self.store, writing.nuid)
        size = self._chunk_size(writing)
        digest = hashlib.sha256()
        chunks = 0
        for start in range(0, len(data), size):
            chunk = data[start : start + size]
            digest.update(chunk)
            message = Outgoing(subject, chunk, writing.headers(chunks))
            await self._publisher.store(self.stream, message, timeout_s=self._timeout_s, owned=writing.owned)
            chunks += 1
        return format_digest(digest.digest()), chunks

    def _chunk_size(self, writing: _Writing) -> int:
        room = self._connection.max_payload - header_size(writing.headers(99_999_999))
        return max(1, min(CHUNK, room))

    async def _write_entry(self, writing: _Writing, entry: bytes, there: ObjectInfo | None) -> None:
        """Make the object visible and remove the chunks of the object that it replaces."""
        subject = object_meta(self.store, writing.name)
        while True:
            headers = {h.ROLLUP: "sub", h.EXPECTED_LAST_SUBJECT_SEQ: str(there.sequence if there else 0)}
            if writing.ttl_s:
                headers[h.TTL] = f"{writing.ttl_s}s"
            try:
                message = Outgoing(subject, entry, headers)
                await self._publisher.store(self.stream, message, timeout_s=self._timeout_s, owned=writing.owned)
                break
            except WrongLastSequence:
                there = await self._retry(lambda: self.info(writing.name), f"read {writing.name}")
                if there is not None and there.nuid == writing.nuid:
                    return  # a repeated publish of ours
        if there is not None and there.nuid:
            await self._purge_quietly(object_chunks(self.store, there.nuid))

    # Reading

    async def info(self, name: str) -> ObjectInfo | None:
        """The entry of that name, read from the leader; None if there is none."""
        found = await last_on(self._connection, self.stream, object_meta(self.store, name))
        return read_info(found)._replace(name=name) if found is not None else None

    async def get(self, name: str) -> bytes:
        """Read the object. MalformedJob when it is missing or damaged: the job can never run. BrokerError when it
        cannot be read now."""
        for last in (False, True):
            there = await self._retry(lambda: self.info(name), f"read {name}")
            if there is None or there.deleted or not there.nuid:
                raise MalformedJob(f"object {name!r} is not in {self.store}")
            if there.size > MAX_OBJECT:
                raise MalformedJob(
                    f"object {name!r} in {self.store} is {there.size:,} bytes; the limit is {MAX_OBJECT:,}"
                )
            try:
                return await self._read(there)
            except _Broken as broken:
                # It may have been replaced while it was read: read it once more.
                if last:
                    raise MalformedJob(f"object {name!r} in {self.store} is damaged: {broken}") from None
        raise AssertionError("not reached")

    async def _read(self, there: ObjectInfo) -> bytes:
        digest = hashlib.sha256()
        parts: list[bytes] = []
        size = start = 0
        while len(parts) < there.chunks:
            following = functools.partial(self._next, there, start, there.chunks - len(parts))
            found = await self._retry(following, f"read {there.name}")
            if not found:
                raise _Broken(f"it has {len(parts)} of {there.chunks} chunks")
            for chunk in found:
                digest.update(chunk.data)
                size += len(chunk.data)
                parts.append(chunk.data)
            if size > there.size:
                break
            start = found[-1].sequence + 1
        if size != there.size:
            raise _Broken(f"it has {size:,} of {there.size:,} bytes")
        if there.digest and there.digest.rstrip("=") != format_digest(digest.digest()).rstrip("="):
            raise _Broken("the digest differs")
        return b"".join(parts)

    async def _next(self, there: ObjectInfo, start: int, left: int) -> list[StoredMessage]:
        """The next few chunks. A replica may be behind, so only the leader decides that there are none."""
        subject = object_chunks(self.store, there.nuid)
        found: list[StoredMessage] = []
        with contextlib.suppress(BrokerUnavailable, TopologyMissing):
            found = await page(self._connection, self.stream, subject, max(1, start), min(_PAGE, left))
        if not found:
            one = await next_on(self._connection, self.stream, subject, max(1, start))
            found = [one] if one is not None else []
        return found

    # Removing

    async def delete(self, name: str) -> None:
        """Remove the object if it exists."""
        there = await self._retry(lambda: self.info(name), f"delete {name}")
        if there is not None:
            await self.remove(there)

    async def remove(self, there: ObjectInfo) -> None:
        """Remove this version of an object, the entry first, so that no entry is without chunks."""
        subject = object_meta(self.store, there.name)
        body = {"filter": subject, "seq": there.sequence + 1}
        await self._retry(
            lambda: self._connection.api(api.stream_purge(self.stream), body), f"delete {there.name}"
        )
        if there.nuid:
            await self.purge_chunks(there.nuid)

    async def purge_chunks(self, nuid: str) -> None:
        body = {"filter": object_chunks(self.store, nuid)}
        await self._retry(lambda: self._connection.api(api.stream_purge(self.stream), body), f"purge {nuid}")

    async def _purge_quietly(self, subject: str) -> None:
        """Remove chunks without an entry. If that fails, the sweep removes them."""
        with contextlib.suppress(BrokerError):
            await self._connection.api(api.stream_purge(self.stream), {"filter": subject})

    async def _retry(self, once: Callable[[], Awaitable[T]], doing: str) -> T:
        """Repeat after transient errors, for as long as a publish is repeated."""
        give_up = time.monotonic() + self._timeout_s
        failures = 0
        while True:
            try:
                return await once()
            except BrokerError as error:
                failures += 1
                pause_s = backoff_s(failures)
                over = time.monotonic() + pause_s >= give_up or self._connection.closed.is_set()
                if over or not is_transient(error):
                    raise _named(error, doing) from error
            await asyncio.sleep(pause_s)


class _Writing(NamedTuple):
    """One version of an object, with its own chunks."""

    name: str
    nuid: str
    ttl_s: int
    owned: Callable[[], bool]

    def headers(self, number: int) -> dict[str, str]:
        """Headers of a chunk. The message id makes a repeat safe; the name leads the sweep to the object."""
        headers = {h.MSG_ID: f"{self.nuid}.{number}", h.OBJECT: self.name}
        if self.ttl_s:
            headers[h.TTL] = f"{self.ttl_s}s"
        return headers


def _named(error: BrokerError, doing: str) -> BrokerError:
    """The error with the failed step. Not Unconfirmed, which is reserved for jobs."""
    kind = BrokerUnavailable if isinstance(error, Unconfirmed) else type(error)
    return kind(f"{doing}: {error}", hint=error.hint, code=error.code)
