"""The layout version of streams: refuse streams that another version of jetjobs has created differently."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError, TopologyConflict
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import WIRE_VERSION, Names

LAYOUT = "jetjobs.wire"
"""Metadata key of the layout version of a stream."""
_TIMEOUT_S = 1.0
_SAMPLE = 8


async def check_layout(connection: Connection, names: Names, queues: Iterable[str] | None) -> None:
    """TopologyConflict when the streams of these queues have another layout. None: of the queues that exist.

    One request for each queue, not repeated: a queue that does not exist or may not be read passes.
    """
    if queues is None:
        queues = await _some_queues(connection, names)
    streams = [names.work_stream(queue) for queue in queues]
    found = await asyncio.gather(*(_read_layout(connection, stream) for stream in streams))
    if all(layout in ("", WIRE_VERSION) for layout in found):
        return
    layouts = dict(zip(streams, found, strict=True))
    with contextlib.suppress(BrokerError):  # name the other streams too, where this user may list them
        for queue in await list_queues(connection, names):
            layouts[names.work_stream(queue)] = await _read_layout(connection, names.work_stream(queue))
    layouts[names.dead_stream] = await _read_layout(connection, names.dead_stream)
    compare_layouts(layouts)


async def _some_queues(connection: Connection, names: Names) -> list[str]:
    """A few queues of the namespace, which all have one layout. Empty if this user may not list them."""
    try:
        return (await list_queues(connection, names))[:_SAMPLE]
    except BrokerError:
        return []


async def _read_layout(connection: Connection, stream: str) -> str:
    try:
        info = read_record(await connection.ask(api.stream_info(stream), timeout_s=_TIMEOUT_S))
    except BrokerError:
        return ""
    return layout_in((info.get("config") or {}).get("metadata") or {})


def layout_in(metadata: Mapping[str, str]) -> str:
    """Empty for a stream without layout: jetjobs did not create it, or its operator has removed the metadata."""
    return metadata.get(LAYOUT, "")


def compare_layouts(layouts: Mapping[str, str]) -> None:
    """TopologyConflict when one of these layouts, by stream, is not that of this version."""
    others = {stream: layout for stream, layout in sorted(layouts.items()) if layout not in ("", WIRE_VERSION)}
    if others:
        raise TopologyConflict(
            f"streams of another version of jetjobs: {', '.join(others)} "
            f"(layout {', '.join(sorted(set(others.values())))}; this version uses layout {WIRE_VERSION})",
            hint="in development, `jetjobs dev --fresh` starts with an empty store; elsewhere, run the remaining "
            "jobs with the other version, then delete these streams with `jetjobs setup destroy --namespace NAME`",
        )
