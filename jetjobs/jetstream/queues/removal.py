"""Delete what is no longer used: a queue, or everything of a namespace."""

from __future__ import annotations

import contextlib
from typing import Any

from jetjobs.jetstream.queues.inspection import stream_info, stream_names
from jetjobs.jetstream.queues.queue_state import pause_record
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.subjects import Names, kv_stream, object_stream

_TIMEOUT_S = 15.0


async def jobs_in(connection: Connection, names: Names, queue: str) -> int:
    """The number of jobs in a work stream, in all lanes, as its leader knows it; 0 if it does not exist."""
    query = {"subjects_filter": names.lane_filter(queue, n.MARK)}
    try:
        answer = await connection.api(api.stream_info(names.work_stream(queue)), query)
    except TopologyMissing:
        return 0
    marks: dict[str, int] = answer["state"].get("subjects") or {}
    return int(answer["state"]["messages"]) - sum(marks.values())


async def close_queue(connection: Connection, names: Names, queue: str) -> dict[str, Any]:
    """Let the queue accept no more jobs. Returns its configuration, for `reopen_queue`."""
    config: dict[str, Any] = (await connection.api(api.stream_info(names.work_stream(queue))))["config"]
    closed = {**config, "subjects": [names.lane_filter(queue, n.MARK)]}
    await connection.api(api.stream_update(config["name"]), closed, _TIMEOUT_S)
    return config


async def reopen_queue(connection: Connection, config: dict[str, Any]) -> None:
    await connection.api(api.stream_update(config["name"]), config, _TIMEOUT_S)


async def delete_queue(connection: Connection, names: Names, queue: str) -> None:
    """Delete the queue with its jobs, lanes, done records and dead letters. Safe to repeat.

    Objects and checkpoints of its jobs stay until the leader removes them or they expire.
    """
    await _delete(connection, names.work_stream(queue))
    await _delete(connection, kv_stream(names.done_bucket(queue)))
    locks = kv_stream(names.locks_bucket)
    for stream, subject in ((names.dead_stream, names.dead_of(queue)), (locks, pause_record(names, queue))):
        with contextlib.suppress(TopologyMissing):
            await connection.api(api.stream_purge(stream), {"filter": subject}, _TIMEOUT_S)


async def streams_of(connection: Connection, names: Names) -> list[str]:
    """All streams of the namespace on the server, work streams last: done records of its queues, dead letters,
    key-value buckets, objects. A stream of another program may have a name like these, but has other subjects."""
    flows = FlowNames(names)
    buckets = (
        names.running_bucket, names.locks_bucket, names.schedules_bucket, names.checkpoints_bucket,
        names.workers_bucket, names.cancelled_bucket, names.tokens_bucket, flows.flows_bucket,
    )  # fmt: skip
    work = [stream for stream in await stream_names(connection, names.work_filter) if names.queue_of(stream)]
    done = {kv_stream(names.done_bucket(names.queue_of(stream) or "")) for stream in work}
    rest = {
        names.dead_stream,
        names.audit_stream,
        flows.ledger_stream,
        object_stream(names.payload_store),
        *map(kv_stream, buckets),
        *done,
    }
    return sorted(rest.intersection(await stream_names(connection))) + sorted(work)


async def destroy(connection: Connection, names: Names) -> list[str]:
    """Delete everything of the namespace and return the deleted streams. Safe to repeat: the work streams, by
    which the others are found, are deleted last."""
    streams = await streams_of(connection, names)
    for stream in streams:
        await _delete(connection, stream)
    return streams


async def message_count(connection: Connection, stream: str) -> int:
    """The number of messages in a stream; 0 if it does not exist."""
    info = await stream_info(connection, stream)
    return 0 if info is None else int(info["state"]["messages"])


async def _delete(connection: Connection, stream: str) -> None:
    with contextlib.suppress(TopologyMissing):
        await connection.api(api.stream_delete(stream), {}, _TIMEOUT_S)
