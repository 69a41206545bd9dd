"""Find a job that was published by hand: its subject holds no id before its first move."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from jetjobs.jetstream.codec import identify
from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.reads import StoredMessage, at_sequence
from jetjobs.jetstream.scan import scan
from jetjobs.model import names as n
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.ids import adopted_id, sequence_id
from jetjobs.model.names import Names

MOST = 10_000
"""Messages of a queue that are looked at for one that gave its id as `Nats-Msg-Id`."""
_BY_PLACE = re.compile(r"s[0-9a-f]{10}-([1-9][0-9]{0,17})", re.ASCII)
_LANES = frozenset({*n.PULLED, n.LATER})


async def find_by_hand(
    connection: Connection, names: Names, queue: str, task: str, job_id: str
) -> StoredMessage | None:
    """The message; None when it is not among those looked at. The task may be `*`."""
    stream = names.work_stream(queue)
    try:
        if (named := _BY_PLACE.fullmatch(job_id)) is not None:
            created = str((await connection.api(f"STREAM.INFO.{stream}"))["created"])
            if sequence_id(created, int(named[1])) == job_id:
                found = await at_sequence(connection, stream, int(named[1]))
                fits = found is not None and _is_bare(found, task) and identify(found, created) == job_id
                return found if fits else None
        async for message in scan(connection, stream, names.made_by_hand(queue, task), limit=MOST):
            given = message.headers.get(n.MSG_ID)
            if given and adopted_id(given) == job_id and _is_bare(message, task):
                return message
    except TopologyMissing:
        pass
    return None


async def locate_by_hand(
    connection: Connection, names: Names, queues: Sequence[str], job_id: str
) -> set[tuple[str, str]]:
    """Queue and task of every such job of that id."""
    found = await asyncio.gather(*(find_by_hand(connection, names, queue, "*", job_id) for queue in queues))
    return {
        (queue, message.subject.split(".")[4])
        for queue, message in zip(queues, found, strict=True)
        if message is not None
    }


def is_by_hand(message: StoredMessage) -> bool:
    return message.subject.count(".") == 4


def _is_bare(message: StoredMessage, task: str) -> bool:
    tokens = message.subject.split(".")
    return len(tokens) == 5 and tokens[3] in _LANES and task in ("*", tokens[4])
