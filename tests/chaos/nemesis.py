"""Inject the planned faults, end each one, and record when it actually started and ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.chaos.history import Span
from tests.chaos.plan import KILL_ALL, PRODUCER, WORKERS, PlannedFault, PlannedJob
from tests.chaos.producer import Producer
from tests.chaos.world import World

REPAIR_S = 1.0
"""How long the workers have to recreate a deleted consumer before the operator provisions it."""
POISON_NUMBERS = 1_000_000


class Nemesis:
    """Injects one fault after another. `heal` ends every fault that remains."""

    def __init__(self, world: World, producer: Producer, seed: int) -> None:
        self._world = world
        self._producer = producer
        self._draw = random.Random(f"{seed} network")  # jitter of the delays: not part of the plan
        self._one = asyncio.Lock()
        self._acts: dict[str, Callable[[PlannedFault, Span], Awaitable[None]]] = {
            "kill_worker": self._kill_worker,
            KILL_ALL: self._kill_all,
            "term_worker": self._term_worker,
            "freeze_worker": self._freeze_worker,
            "poison": self._poison,
            "kill_server": self._stop_server,
            "restart_server": self._stop_server,
            "cut": self._cut,
            "delay": self._delay,
            "blackhole": self._blackhole,
            "delete_consumer": self._delete_consumer,
            "fill_storage": self._fill_storage,
        }

    async def run(self, faults: list[PlannedFault], started: float) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(self._act(fault, started))

    async def _act(self, fault: PlannedFault, started: float) -> None:
        await asyncio.sleep(max(0.0, started + fault.at - time.time()))
        # A fault takes longer on a slow machine, but faults must not overlap unless that is planned.
        async with contextlib.AsyncExitStack() as stack:
            if fault.kind != KILL_ALL:
                await stack.enter_async_context(self._one)
            span = Span(fault.kind, time.time(), workers=frozenset(fault.links), lane=fault.lane)
            self._world.history.spans.append(span)
            try:
                await self._acts[fault.kind](fault, span)
            finally:
                span.end = time.time()

    async def heal(self) -> None:
        world = self._world
        for link in world.links:
            link.delay = lambda: 0.0
            link.resume()
        world.fleet.thaw()
        if world.server.process is None:
            await asyncio.to_thread(world.server.start)
        await world.free()
        await world.provision()

    # Workers

    async def _kill_worker(self, fault: PlannedFault, span: Span) -> None:
        self._signal(fault, span, signal.SIGKILL, "kill")

    async def _kill_all(self, fault: PlannedFault, span: Span) -> None:
        for worker in range(WORKERS):
            self._world.fleet.send(worker, signal.SIGKILL, "kill")

    async def _term_worker(self, fault: PlannedFault, span: Span) -> None:
        for worker in fault.links:
            if not self._world.fleet.send(worker, signal.SIGTERM, "term"):
                span.note = "one was not running"
            await asyncio.sleep(fault.lasts_s / len(fault.links))

    async def _freeze_worker(self, fault: PlannedFault, span: Span) -> None:
        self._signal(fault, span, signal.SIGSTOP, "")
        await asyncio.sleep(fault.lasts_s)
        for worker in fault.links:
            self._world.fleet.send(worker, signal.SIGCONT)

    def _signal(self, fault: PlannedFault, span: Span, number: signal.Signals, wanted: str) -> None:
        for worker in fault.links:
            if not self._world.fleet.send(worker, number, wanted):
                span.note = "was not running"

    async def _poison(self, fault: PlannedFault, span: Span) -> None:
        number = POISON_NUMBERS + len(self._world.history.spans)
        self._producer.send(PlannedJob(fault.at, "poison", number, fault.lane[0], 0.0))

    # The server

    async def _stop_server(self, fault: PlannedFault, span: Span) -> None:
        server = self._world.server
        await asyncio.to_thread(server.kill if fault.kind == "kill_server" else server.stop)
        await asyncio.sleep(fault.lasts_s)
        await asyncio.to_thread(server.start)

    async def _delete_consumer(self, fault: PlannedFault, span: Span) -> None:
        queue, lane = fault.lane
        subject = f"jobs-work-{queue}.{lane}"
        await self._world.truth.api(f"CONSUMER.DELETE.{subject}")
        await asyncio.sleep(REPAIR_S)
        if "error" not in await self._world.truth.api(f"CONSUMER.INFO.{subject}"):
            span.note = "recreated by a worker"
        else:
            span.note = "provisioned by the operator"
            await self._world.provision()

    async def _fill_storage(self, fault: PlannedFault, span: Span) -> None:
        written = await self._world.fill()
        span.note = f"{written / 1e6:.0f} MB of ballast"
        until = time.time() + fault.lasts_s
        while time.time() < until:
            await asyncio.sleep(0.1)
            await self._world.fill()  # acked jobs free space: fill that too
        await self._world.free()

    # The network

    async def _cut(self, fault: PlannedFault, span: Span) -> None:
        for link in fault.links:
            self._world.links[link].cut()
        span.workers = _workers(fault)

    async def _delay(self, fault: PlannedFault, span: Span) -> None:
        span.workers = _workers(fault)
        for link in fault.links:
            self._world.links[link].delay = lambda: self._draw.uniform(0.1, 0.3)
        await asyncio.sleep(fault.lasts_s)
        for link in fault.links:
            self._world.links[link].delay = lambda: 0.0

    async def _blackhole(self, fault: PlannedFault, span: Span) -> None:
        span.workers = _workers(fault)
        span.note = "then late" if fault.late else "then cut"
        for link in fault.links:
            self._world.links[link].hold()
        await asyncio.sleep(fault.lasts_s)
        for link in fault.links:
            if not fault.late:
                self._world.links[link].cut()
            self._world.links[link].resume()


def _workers(fault: PlannedFault) -> frozenset[int]:
    """The workers among the links. {-1} when only the producer's link is affected: an empty set means all."""
    return frozenset(link for link in fault.links if link != PRODUCER) or frozenset({-1})
