"""Compare the streams, lanes and buckets that jetjobs needs with those of the server, and apply the changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.topology_plan import TopologyItem, lanes
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import NO_PEERS
from jetjobs.jetstream.wire_version import compare_layouts, layout_in
from jetjobs.jetstream.workers.control_client import announce_lease, repeat_lease
from jetjobs.model.errors import BrokerError, TopologyConflict, TopologyMissing
from jetjobs.model.public import Record, json_value, public
from jetjobs.model.settings import QueueSettings
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import Names

Action = Literal["create", "update", "none"]


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class TopologyChange(Record):
    """What must be done to one of them. `diff` maps each key to (current, wanted)."""

    wanted: TopologyItem
    action: Action
    diff: dict[str, tuple[Any, Any]]

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the keys of the command line."""
        return {"what": self.wanted.label, "action": self.action, "diff": json_value(self.diff)}


# Compare


async def inspect(
    connection: Connection, wanted: Sequence[TopologyItem], *, keep_replicas: bool
) -> list[TopologyChange]:
    """Compare with the server. `keep_replicas` accepts any number of replicas, because the settings name none.

    TopologyConflict when a stream has another layout: an update would not convert its messages.
    """
    changes = await asyncio.gather(*(_inspect(connection, one, keep_replicas) for one in wanted))
    different = [change for change in changes if "metadata" in change.diff and not change.wanted.consumer]
    compare_layouts({change.wanted.stream: layout_in(change.diff["metadata"][0]) for change in different})
    return list(changes)


async def _inspect(connection: Connection, wanted: TopologyItem, keep_replicas: bool) -> TopologyChange:
    there = await _config_of(connection, wanted)
    if there is None:
        return TopologyChange(wanted, "create", {})
    diff = difference(wanted.config, there)
    if keep_replicas:
        diff.pop("num_replicas", None)
    return TopologyChange(wanted, "update" if diff else "none", diff)


def difference(wanted: dict[str, Any], there: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys of `wanted` that differ on the server. Other keys are the operator's choice."""
    diff: dict[str, tuple[Any, Any]] = {}
    for key, value in wanted.items():
        found = there.get(key)
        if key == "metadata":
            found = {k: v for k, v in (found or {}).items() if k in value}
        elif key == "subjects":
            value, found = sorted(value), sorted(found or [])
        if found != value and (found or value):
            diff[key] = (found, value)
    return diff


def check(changes: Sequence[TopologyChange]) -> None:
    """TopologyMissing or TopologyConflict if there are changes to apply."""
    missing = [c.wanted.label for c in changes if c.action == "create"]
    if missing:
        raise TopologyMissing(f"not on the server: {', '.join(missing)}", hint="jetjobs setup apply")
    drifted = [f"{c.wanted.label} ({', '.join(sorted(c.diff))})" for c in changes if c.action == "update"]
    if drifted:
        raise TopologyConflict(
            f"different from the plan: {', '.join(drifted)}", hint="`jetjobs setup plan` shows the differences"
        )


# Apply


async def apply(
    connection: Connection,
    publisher: Publisher,
    names: Names,
    changes: Sequence[TopologyChange],
    *,
    force: bool = False,
) -> None:
    """Apply the changes. Many processes may do so at once: each step is idempotent, and the order is fixed.

    WorkerSilent, and nothing is changed, if a lease is lowered and a worker of its queue does not confirm it.
    `force` lowers it anyway.
    """
    lowered = lowered_leases(changes)
    lease_s = min(lowered.values(), default=0.0)
    if lowered:
        await announce_lease(connection, names, lease_s, lowered, force=force)
    for change in changes:
        try:
            if change.action != "none" and change.wanted.consumer:
                await _put_consumer(connection, change.wanted)
            elif change.action != "none" or change.wanted.pin:
                await _put_stream(connection, publisher, change)
        except BrokerError as error:
            raise type(error)(f"{change.wanted.label}: {error}", hint=error.hint, code=error.code) from error
    if lowered:
        repeat_lease(connection, names, lease_s, lowered)


def lowered_leases(changes: Sequence[TopologyChange]) -> dict[str, float]:
    """The new lease in seconds of each queue whose lease is lowered."""
    return {
        change.wanted.config["metadata"]["jetjobs.queue"]: change.wanted.config["ack_wait"] / api.NS
        for change in changes
        if change.wanted.consumer
        and (change.diff.get("ack_wait", (0,))[0] or 0) > change.wanted.config["ack_wait"]
    }


async def _put_stream(connection: Connection, publisher: Publisher, change: TopologyChange) -> None:
    wanted = change.wanted
    config = dict(wanted.config)
    if change.action == "create":
        if wanted.pin:
            # The pin must be the first message, so no lane may accept a job before it is stored.
            config["subjects"] = [s for s in config["subjects"] if f".{n.MARK}." in s]
        await _create_stream(connection, config)
    if wanted.pin:
        await _put_pin(publisher, wanted)
    # A new stream answers once it has a leader, which takes seconds if one of its servers is down.
    there = await _config_of(connection, wanted, timeout_s=15.0)
    if there is None:
        raise TopologyMissing(f"{wanted.label} was deleted while it was updated")
    diff = difference(wanted.config, there)
    if change.action == "create" or "num_replicas" not in change.diff:
        diff.pop("num_replicas", None)
    if diff:
        merged = {**there, **{key: wanted.config[key] for key in diff}}
        merged["metadata"] = {**there.get("metadata", {}), **wanted.config.get("metadata", {})}
        await connection.api(api.stream_update(wanted.stream), merged)


async def _create_stream(connection: Connection, config: dict[str, Any]) -> None:
    try:
        await connection.api(api.stream_create(config["name"]), config, timeout_s=15.0, try_s=5.0)
    except TopologyConflict:
        return  # another process created it first; it is compared and updated next
    except BrokerError as error:
        if error.code not in NO_PEERS:
            raise
        # Only the operator may choose fewer replicas: they would not be noticed until a server fails.
        raise TopologyConflict(
            f"the cluster has no room for {config['num_replicas']} replicas: {error}",
            hint=f"wait until {config['num_replicas']} servers of the cluster are up; for a smaller cluster, or a "
            "single server, set queues.replicas to 1",
            code=error.code,
        ) from error


async def _put_pin(publisher: Publisher, wanted: TopologyItem) -> None:
    headers = {h.EXPECTED_LAST_SUBJECT_SEQ: "0"}
    try:
        await publisher.store(wanted.stream, Outgoing(wanted.pin, b"", headers))
    except WrongLastSequence:
        return


async def _put_consumer(connection: Connection, wanted: TopologyItem) -> None:
    subject = api.consumer_create(wanted.stream, wanted.consumer, wanted.config["filter_subject"])
    config = {"name": wanted.consumer, **wanted.config}
    if until := await _pause_of(connection, wanted.stream):
        config["pause_until"] = until  # the lane is created while its queue is paused
    await connection.api(subject, {"stream_name": wanted.stream, "config": config}, timeout_s=15.0, try_s=5.0)


async def _pause_of(connection: Connection, stream: str) -> str | None:
    """The end of the pause of a queue's lanes; None when they are not paused."""
    lanes = (await connection.api(api.consumer_list(stream))).get("consumers") or []
    return next((lane["config"]["pause_until"] for lane in lanes if lane.get("paused")), None)


async def restore_lanes(connection: Connection, names: Names, queue: str, settings: QueueSettings) -> list[str]:
    """Create the missing lanes of a queue and return their labels. Jobs are in the stream, so none are lost."""
    made = []
    for wanted in lanes(names, queue, settings):
        if await _config_of(connection, wanted) is None:
            await _put_consumer(connection, wanted)
            made.append(wanted.label)
    return made


async def _config_of(
    connection: Connection, wanted: TopologyItem, timeout_s: float = 5.0
) -> dict[str, Any] | None:
    subject = (
        api.consumer_info(wanted.stream, wanted.consumer) if wanted.consumer else api.stream_info(wanted.stream)
    )
    try:
        config: dict[str, Any] = (await connection.api(subject, timeout_s=timeout_s, try_s=5.0))["config"]
    except TopologyMissing:
        return None
    return config
