"""The streams, lanes and buckets that jetjobs needs, as the API of the server expects them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.wire_version import LAYOUT
from jetjobs.model.public import Record, public
from jetjobs.model.settings import QueueSettings
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.subjects import Names, kv_stream, object_chunks, object_metas, object_stream

DUPLICATE_WINDOW_S = 120
LEDGER_WINDOW_S = 30
"""Each id costs memory on the server, and an entry that is stored again later does no harm."""
LEDGER_AGE = timedelta(days=31)
"""One day longer than the longest deadline of a flow. A stream of counters has no message TTL."""
SPARE_DELIVERIES = 5
"""How far the delivery limit of the server is above max_crashes."""
Kind = Literal["stream", "lane", "bucket"]


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class TopologyItem(Record):
    """One stream, lane or bucket that the server must have, as the API expects it."""

    kind: Kind
    label: str
    stream: str
    consumer: str
    config: dict[str, Any]
    pin: str = ""
    """Subject of the first message of the stream, which no consumer reads. ADR 1."""


def plan(names: Names, queues: Iterable[str], settings: QueueSettings, replicas: int = 1) -> list[TopologyItem]:
    """Everything that the namespace needs for `queues`. Does not read from the server."""
    shared = {"storage": settings.storage, "num_replicas": settings.replicas or replicas}
    flows = FlowNames(names)
    dead = {"description": "jetjobs dead letters", "max_msgs_per_subject": 1, **shared}
    audit = {"description": "jetjobs audit", "deny_delete": True, "deny_purge": True, **shared}
    window = LEDGER_WINDOW_S * api.NS
    ledger = {"description": "jetjobs flows", "allow_msg_counter": True, "duplicate_window": window, **shared}
    buckets = (
        names.running_bucket, names.locks_bucket, names.cancelled_bucket, names.workers_bucket,
        names.checkpoints_bucket, names.schedules_bucket, names.tokens_bucket,
        flows.flows_bucket,
    )  # fmt: skip
    wanted = [
        _log("dead-letter", names.dead_stream, names.dead_filter, settings.dead_max_age, dead),
        _log("audit", names.audit_stream, names.audit(">"), settings.audit_max_age, audit),
        _log("ledger", flows.ledger_stream, flows.ledger_filter, LEDGER_AGE, ledger),
        *(_bucket(bucket, shared) for bucket in buckets),
        _payloads(names, shared),
    ]
    for queue in sorted(set(queues)):
        wanted.append(_work(names, queue, shared))
        wanted.extend(lanes(names, queue, settings))
        wanted.append(_bucket(names.done_bucket(queue), shared))
    return wanted


def lanes(names: Names, queue: str, settings: QueueSettings) -> list[TopologyItem]:
    """The consumers of one queue."""
    return [_lane(names, queue, lane, settings) for lane in n.PULLED]


def _work(names: Names, queue: str, shared: dict[str, Any]) -> TopologyItem:
    lanes = (*n.PULLED, *n.WAITING, n.MARK)
    stream = names.work_stream(queue)
    config = {
        "name": stream,
        "description": f"jetjobs queue {queue}",
        "subjects": [names.lane_filter(queue, lane) for lane in lanes],
        "retention": "workqueue",
        # No limits and no message TTL: the server must not drop jobs. Schedules require rollups, so a user that
        # may publish here with headers may also purge; see docs/how-to/operations.md.
        "discard": "old",
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "allow_msg_schedules": True,
        "allow_direct": True,
        "allow_atomic": True,
        "duplicate_window": DUPLICATE_WINDOW_S * api.NS,
        "metadata": {"jetjobs.queue": queue, LAYOUT: n.WIRE_VERSION},
        **shared,
    }
    return TopologyItem("stream", f"work stream {stream}", stream, "", config, names.pin(queue))


def _lane(names: Names, queue: str, lane: str, settings: QueueSettings) -> TopologyItem:
    stream = names.work_stream(queue)
    config = {
        "durable_name": lane,
        "ack_policy": "explicit",
        "ack_wait": int(settings.lease.total_seconds() * api.NS),
        # Workers dead-letter a job at max_crashes. This limit is for jobs that kill them before that. ADR 28.
        "max_deliver": settings.max_crashes + SPARE_DELIVERIES,
        "max_ack_pending": settings.max_running,
        "max_waiting": 2048,
        "filter_subject": names.lane_filter(queue, lane),
        "metadata": {"jetjobs.queue": queue, "jetjobs.lane": lane},
    }
    return TopologyItem("lane", f"lane {queue}/{lane}", stream, lane, config)


def _log(what: str, stream: str, subjects: str, max_age: timedelta, more: dict[str, Any]) -> TopologyItem:
    """A stream whose messages stay until they are older than `max_age`."""
    config = {
        "name": stream,
        "subjects": [subjects],
        "retention": "limits",
        "discard": "old",
        "max_age": int(max_age.total_seconds() * api.NS),
        "allow_direct": True,
        "metadata": {LAYOUT: n.WIRE_VERSION},
        **more,
    }
    return TopologyItem("stream", f"{what} stream {stream}", stream, "", config)


def _bucket(bucket: str, shared: dict[str, Any]) -> TopologyItem:
    # The form that every NATS client uses for a key-value bucket.
    config = {
        "name": kv_stream(bucket),
        "subjects": [f"$KV.{bucket}.>"],
        "discard": "new",
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        **shared,
    }
    return TopologyItem("bucket", f"bucket {bucket}", kv_stream(bucket), "", config)


def _payloads(names: Names, shared: dict[str, Any]) -> TopologyItem:
    store = names.payload_store
    config = {
        "name": object_stream(store),
        "subjects": [object_chunks(store, ">"), object_metas(store)],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "allow_msg_ttl": True,  # results expire with their records
        **shared,
    }
    return TopologyItem("bucket", f"object store {store}", object_stream(store), "", config)
