"""Bodies and results that do not fit into a message: objects in a NATS object store, written and read whole.

The form on the wire is that of every NATS client. The code is our own for three things they do not do: say
why a write was refused, leave nothing behind when an object is deleted, and let objects expire. ADR 2.
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
"""The largest body or result: what a worker must hold in memory for one job."""
CHUNK = 128 * 1024
"""What other clients write; less where `max_payload` is small."""

_PAGE = 16
_DIGEST = "SHA-256="
_LABEL = "jetjobs."
_NOT_IN_TOKENS = frozenset(" \t\r\n.*>")
T = TypeVar("T")


class ObjectInfo(NamedTuple):
    """The entry of an object: what stands on its meta subject."""

    name: str
    nuid: str
    size: int
    chunks: int
    digest: str
    deleted: bool
    labels: dict[str, str]
    """Queue, task, id and run of the job it belongs to; empty for what others wrote."""
    sequence: int = 0
    stored_at: float = 0.0


def labels_of(job: Job) -> dict[str, str]:
    """What an object says of the job it belongs to, so that the job can be looked up."""
    return {"queue": job.queue, "task": job.task, "id": job.id, "run": job.run}


def write_info(info: ObjectInfo, store: str, chunk_size: int) -> bytes:
    """The entry as every NATS client reads it."""
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
    """An entry as a value; one that cannot be read counts as deleted."""
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
    """The labels, or none where they do not name a job: they become part of subjects."""
    return {} if any(set(label) & _NOT_IN_TOKENS for label in labels.values()) else labels


def spell(digest: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(digest).decode()


class _Broken(Exception):
    """The chunks are not what the entry says."""


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
        """Store `data` under `name`, in place of what was there; seen whole or not at all, and safe to repeat.

        `ttl_s` lets it expire; 0 keeps it. BrokerError when it is not stored; what was written of it is removed.
        """
        doing = f"store {len(data):,} bytes in {self.store}"
        there = await self._insist(lambda: self.info(name), doing)
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
            # It may be there, so its chunks must stay. If it is not, the sweep finds them.
            raise _named(error, doing) from error
        except BrokerError as error:
            await self._purge_quietly(object_chunks(self.store, writing.nuid))
            raise _named(error, doing) from error

    async def _write_chunks(self, writing: _Writing, data: bytes) -> tuple[str, int]:
        """One after another, each confirmed: order is all that says which comes first."""
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
        return spell(digest.digest()), chunks

    def _chunk_size(self, writing: _Writing) -> int:
        room = self._connection.max_payload - header_size(writing.headers(99_999_999))
        return max(1, min(CHUNK, room))

    async def _write_entry(self, writing: _Writing, entry: bytes, there: ObjectInfo | None) -> None:
        """Make the object visible, and remove the chunks of the one it takes the place of."""
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
                there = await self._insist(lambda: self.info(writing.name), f"read {writing.name}")
                if there is not None and there.nuid == writing.nuid:
                    return  # our own resend
        if there is not None and there.nuid:
            await self._purge_quietly(object_chunks(self.store, there.nuid))

    # Reading

    async def info(self, name: str) -> ObjectInfo | None:
        """The entry of that name by the stream's leader, or None."""
        found = await last_on(self._connection, self.stream, object_meta(self.store, name))
        return read_info(found)._replace(name=name) if found is not None else None

    async def get(self, name: str) -> bytes:
        """The bytes, whole. MalformedJob when they are gone or broken: without them the job cannot run, now or
        later. BrokerError when they cannot be read now."""
        for last in (False, True):
            there = await self._insist(lambda: self.info(name), f"read {name}")
            if there is None or there.deleted or not there.nuid:
                raise MalformedJob(f"{name!r} is not in {self.store}")
            if there.size > MAX_OBJECT:
                raise MalformedJob(
                    f"{name!r} in {self.store} is {there.size:,} bytes; the limit is {MAX_OBJECT:,}"
                )
            try:
                return await self._read(there)
            except _Broken as broken:
                # It may have been written anew while we read: look once more.
                if last:
                    raise MalformedJob(f"{name!r} in {self.store} is broken: {broken}") from None
        raise AssertionError("not reached")

    async def _read(self, there: ObjectInfo) -> bytes:
        digest = hashlib.sha256()
        parts: list[bytes] = []
        size = start = 0
        while len(parts) < there.chunks:
            following = functools.partial(self._next, there, start, there.chunks - len(parts))
            found = await self._insist(following, f"read {there.name}")
            if not found:
                raise _Broken(f"{len(parts)} of {there.chunks} chunks are there")
            for chunk in found:
                digest.update(chunk.data)
                size += len(chunk.data)
                parts.append(chunk.data)
            if size > there.size:
                break
            start = found[-1].sequence + 1
        if size != there.size:
            raise _Broken(f"{size:,} bytes of {there.size:,}")
        if there.digest and there.digest.rstrip("=") != spell(digest.digest()).rstrip("="):
            raise _Broken("the digest differs")
        return b"".join(parts)

    async def _next(self, there: ObjectInfo, start: int, left: int) -> list[StoredMessage]:
        """The next chunks, a few at a time. A replica may be behind: only the leader says that there are none."""
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
        """Remove it; nothing happens when it is gone already."""
        there = await self._insist(lambda: self.info(name), f"delete {name}")
        if there is not None:
            await self.remove(there)

    async def remove(self, there: ObjectInfo) -> None:
        """Remove exactly this writing of an object. The entry first: it is never seen without its chunks."""
        subject = object_meta(self.store, there.name)
        body = {"filter": subject, "seq": there.sequence + 1}
        await self._insist(
            lambda: self._connection.api(api.stream_purge(self.stream), body), f"delete {there.name}"
        )
        if there.nuid:
            await self.purge_chunks(there.nuid)

    async def purge_chunks(self, nuid: str) -> None:
        body = {"filter": object_chunks(self.store, nuid)}
        await self._insist(lambda: self._connection.api(api.stream_purge(self.stream), body), f"purge {nuid}")

    async def _purge_quietly(self, subject: str) -> None:
        """Chunks that nothing refers to. What stays of them the sweep finds."""
        with contextlib.suppress(BrokerError):
            await self._connection.api(api.stream_purge(self.stream), {"filter": subject})

    async def _insist(self, once: Callable[[], Awaitable[T]], doing: str) -> T:
        """Repeat while the fault is a passing one, for as long as a publish would be."""
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
    """One writing of an object, with chunks of its own."""

    name: str
    nuid: str
    ttl_s: int
    owned: Callable[[], bool]

    def headers(self, number: int) -> dict[str, str]:
        """Of a chunk. By the message id a repeat is harmless; by the name the sweep finds whose it is."""
        headers = {h.MSG_ID: f"{self.nuid}.{number}", h.OBJECT: self.name}
        if self.ttl_s:
            headers[h.TTL] = f"{self.ttl_s}s"
        return headers


def _named(error: BrokerError, doing: str) -> BrokerError:
    """The error with what was being done. Unconfirmed is told of messages only: here nothing is stored."""
    kind = BrokerUnavailable if isinstance(error, Unconfirmed) else type(error)
    return kind(f"{doing}: {error}", hint=error.hint, code=error.code)
