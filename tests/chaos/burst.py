"""Jobs that the nemesis sends beside the plan, where a fault would meet too few of them by chance."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tests.chaos.asker import Asker
from tests.chaos.plan import PlannedJob
from tests.chaos.producer import Producer
from tests.chaos.world import World

FIRST_NUMBER = 1_000_000
"""No planned job has such a number."""


class Bursts:
    """Sends over the producer's link, and anonymous jobs directly to the server."""

    def __init__(self, world: World, seed: int) -> None:
        asker = Asker(world.app, world.operator, world.history)
        self._producer = Producer(world.app, world.truth.nc, world.history, asker)
        self._draw = random.Random(f"{seed} bursts")
        self._number = FIRST_NUMBER

    def send(self, kinds: Iterable[str], queue: str) -> None:
        for kind in kinds:
            self._number += 1
            self._producer.send(PlannedJob(0.0, kind, self._number, queue, self._draw.random()))

    async def settled(self) -> None:
        await self._producer.settled()
