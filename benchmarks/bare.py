"""A plain consumer process for comparison with `jetjobs worker`: nats-py and uvloop, pulling and acking."""

from __future__ import annotations

import asyncio
import sys

import nats
import uvloop

from benchmarks.raw import PullLoop


async def _main(url: str, batch: int) -> None:
    nc = await nats.connect(url)
    await PullLoop(nc, batch).start()
    await asyncio.Event().wait()  # until terminated


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], int(sys.argv[2])))
