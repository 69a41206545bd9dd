"""The registry of workers: a key-value bucket in which each running worker keeps a record that expires.

The server removes a record that its worker has not renewed for three heartbeats. A key is the name of the worker
and a random token, so that workers of the same name do not overwrite each other. ADR 38. Beside the records are
the definitions of tasks, under keys of three tokens: one for all workers that have the same. ADR 54.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
import time
from collections.abc import Collection

from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.messages.scan import check_direct_get, scan
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_response
from jetjobs.model.errors import BrokerError, TopologyMissing
from jetjobs.model.views.task_info import TaskDefinition, read_definition
from jetjobs.model.views.worker_info import WorkerRecord, read_worker
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_json, write_json
from jetjobs.model.wire.subjects import Names, kv_stream, kv_subject
from jetjobs.model.wire.validation import token_of

BEAT_S = 5.0
TTL_S = 14
"""Three heartbeats less a second, because the server removes expired messages about once a second."""
TASK_TTL_S = 3 * 3600
TASK_RENEW_S = 3600.0
"""Definitions change only with a deployment. One that no running worker has is not shown, and expires."""
TASKS_AT_ONCE = 32
READ_S = 1.0
"""How old the answers of a TaskDirectory may be."""


def new_key(name: str) -> str:
    """A new key for a worker of that name."""
    return f"{token_of(name)}-{secrets.token_hex(3)}"


async def register(connection: Connection, names: Names, record: WorkerRecord) -> None:
    """Write the record under its key. BrokerError when it is not written."""
    body, subject = json.dumps(record.to_wire()).encode(), kv_subject(names.workers_bucket, record.key)
    answer = json.loads(await connection.ask(subject, body, {h.TTL: f"{TTL_S}s"}, 2.0))
    if (refusal := from_response(answer, "register the worker")) is not None:
        raise refusal


async def publish_tasks(connection: Connection, names: Names, tasks: Collection[TaskDefinition]) -> None:
    """Write the definitions, or renew them. BrokerError when one is not written."""
    at_once = asyncio.Semaphore(TASKS_AT_ONCE)

    async def publish(task: TaskDefinition) -> None:
        subject = kv_subject(names.workers_bucket, names.task_key(task.name, task.fingerprint))
        body = write_json(task.as_dict()).encode()
        async with at_once:
            answer = json.loads(await connection.ask(subject, body, {h.TTL: f"{TASK_TTL_S}s"}, 5.0))
        if (refusal := from_response(answer, f"publish the definition of task {task.name}")) is not None:
            raise refusal

    answers = await asyncio.gather(*map(publish, tasks), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer


async def list_tasks(connection: Connection, names: Names) -> list[TaskDefinition]:
    """The definitions in the registry, also of workers that have stopped since."""
    bucket = names.workers_bucket
    found: dict[str, TaskDefinition] = {}
    try:
        async for message in scan(connection, kv_stream(bucket), kv_subject(bucket, names.task_key("*", "*"))):
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # foreign or deleted
                task = read_definition(read_json(message.data))
                found[task.fingerprint] = task
    except TopologyMissing:
        return []
    return list(found.values())


async def deregister(connection: Connection, names: Names, key: str) -> None:
    """Remove the record. BrokerError when that is not confirmed; then it expires."""
    headers = {h.KV_OPERATION: "DEL", h.TTL: "1s"}
    await connection.ask(kv_subject(names.workers_bucket, key), b"", headers, 1.0)


async def list_workers(connection: Connection, names: Names) -> list[WorkerRecord]:
    """The registered workers by key."""
    bucket = names.workers_bucket
    prefix = kv_subject(bucket, "")
    found: dict[str, WorkerRecord] = {}
    try:
        # Keys of workers have one token: the definitions of tasks are not even read.
        async for message in scan(connection, kv_stream(bucket), prefix + "*"):
            key = message.subject.removeprefix(prefix)
            if (record := _read(key, message)) is None:
                found.pop(key, None)
            else:
                found[record.key] = record  # twice, if it is written during the scan
    except TopologyMissing:
        return []  # no bucket: no worker can be registered
    return [found[key] for key in sorted(found)]


async def live_workers(connection: Connection, names: Names) -> list[WorkerRecord]:
    """As `list_workers`; AccessDenied at once when this user may not read the registry."""
    await check_direct_get(connection, kv_stream(names.workers_bucket))
    return await list_workers(connection, names)


def _read(key: str, message: StoredMessage) -> WorkerRecord | None:
    """None for the mark of a worker that stopped, and for an unreadable record."""
    if h.KV_OPERATION in message.headers or not message.data:
        return None
    try:
        return read_worker(key, read_json(message.data), message.stored_at)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class TaskDirectory:
    """Which tasks the running workers know. The registry is read once a second at most, however many jobs ask."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._workers: list[WorkerRecord] = []
        self._read_at = -math.inf
        self._lock = asyncio.Lock()

    async def knows(self, queue: str, task: str) -> bool:
        """Whether a running worker takes jobs of the queue and knows the task. If the registry cannot be read, by
        the last reading."""
        async with self._lock:
            if time.monotonic() - self._read_at >= READ_S:
                with contextlib.suppress(BrokerError):
                    self._workers = await live_workers(self._connection, self._names)
                self._read_at = time.monotonic()
        return any(worker.can_run(queue, task) for worker in self._workers)
