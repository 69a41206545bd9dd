"""The entry of an object in the object store, as a value: read, written, and whose it is."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jetjobs.jetstream.reads import StoredMessage
from jetjobs.model.job import Job
from jetjobs.model.reading import read_json

_DIGEST = "SHA-256="
_LABEL = "jetjobs."
_NOT_IN_TOKENS = frozenset(" \t\r\n.*>")


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


def digest_of(data: bytes) -> str:
    return spell(hashlib.sha256(data).digest())


def spell(digest: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(digest).decode()
