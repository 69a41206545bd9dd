"""Remove objects that nothing refers to.

A crash between object and message leaves one, and so does a dead letter that has aged out. Lists may be stale:
what is deleted is decided by the streams' leaders, and twice.
"""

from __future__ import annotations

import asyncio
import time

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.objects import ObjectInfo, read_info
from jetjobs.jetstream.reads import last_on
from jetjobs.jetstream.scan import PAGE, page, scan
from jetjobs.model import names as n
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.names import object_chunks, object_metas

OLDER_THAN_S = 3600.0
"""Younger objects are left alone: their message may be on its way."""
_AGAIN_S = 1.0
_JOB = ("queue", "task", "id", "run")


async def sweep_orphans(jetstream: JetStreamClient, older_than_s: float = OLDER_THAN_S) -> int:
    """Delete objects older than `older_than_s` that no live job, dead letter or done record refers to, and chunks
    that belong to no object. Returns how many. BrokerError when the server does not answer; it may be repeated.

    What was not written by jetjobs is left alone, and so is an object whose queue has no streams any more:
    they may be restored. One object is looked at after another, to be gentle.
    """
    payloads = jetstream.payloads
    before = await jetstream.publisher.server_now(payloads.stream, time.time()) - older_than_s
    removed, start = 0, 1
    while True:
        metas = await page(jetstream.connection, payloads.stream, object_metas(payloads.store), start, PAGE)
        if not metas:
            break
        start = metas[-1].sequence + 1
        old = [read_info(meta) for meta in metas if meta.stored_at < before]
        removed += await _sweep_page(jetstream, old)
    return removed + await _sweep_chunks(jetstream, before)


async def _sweep_page(jetstream: JetStreamClient, objects: list[ObjectInfo]) -> int:
    suspects = [one for one in objects if not await _is_needed(jetstream, one)]
    if not suspects:
        return 0
    # Whoever moved so that we missed it is found the second time.
    await asyncio.sleep(_AGAIN_S)
    removed = 0
    for one in suspects:
        there = await jetstream.payloads.info(one.name)
        if there is None or there.sequence != one.sequence or await _is_needed(jetstream, one):
            continue
        await jetstream.payloads.remove(there)
        removed += 1
    return removed


async def _is_needed(jetstream: JetStreamClient, one: ObjectInfo) -> bool:
    if not all(one.labels.get(key) for key in _JOB):
        return True  # not ours
    labels = one.labels
    try:
        return await jetstream.places.needs(labels["queue"], labels["task"], labels["id"], one.name)
    except TopologyMissing:
        return True


# Chunks without an entry: a writer died before it could make its object visible.


async def _sweep_chunks(jetstream: JetStreamClient, before: float) -> int:
    removed, offset = 0, 0
    prefix = object_chunks(jetstream.payloads.store, "")
    while True:
        subjects, total = await _chunk_subjects(jetstream, offset)
        strays = {subject.removeprefix(prefix) for subject in subjects}
        await _keep_known(jetstream, strays)
        gone = sum([await _remove_chunks(jetstream, nuid, before) for nuid in strays])
        removed += gone
        offset += len(subjects) - gone
        if not subjects or offset + gone >= total:
            return removed


async def _chunk_subjects(jetstream: JetStreamClient, offset: int) -> tuple[list[str], int]:
    """A page of the subjects that have chunks, up to 100,000 as the server has it, and how many there are."""
    payloads = jetstream.payloads
    query = {"subjects_filter": object_chunks(payloads.store, ">"), "offset": offset}
    info = await jetstream.connection.api(f"STREAM.INFO.{payloads.stream}", query, timeout_s=15.0)
    return list(info["state"].get("subjects") or {}), int(info.get("total") or 0)


async def _keep_known(jetstream: JetStreamClient, nuids: set[str]) -> None:
    """Take out those that an entry names."""
    if not nuids:
        return
    payloads = jetstream.payloads
    async for meta in scan(jetstream.connection, payloads.stream, object_metas(payloads.store)):
        nuids.discard(read_info(meta).nuid)


async def _remove_chunks(jetstream: JetStreamClient, nuid: str, before: float) -> bool:
    """Remove chunks that are old and whose object, by the leader, is not there or was written by another."""
    payloads = jetstream.payloads
    last = await last_on(jetstream.connection, payloads.stream, object_chunks(payloads.store, nuid))
    if last is None or last.stored_at >= before or n.OBJECT not in last.headers:
        return False
    there = await payloads.info(last.headers[n.OBJECT])
    if there is not None and there.nuid == nuid:
        return False
    await payloads.purge_chunks(nuid)
    return True
