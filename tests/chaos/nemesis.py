"""Inject the planned faults, end each one, and record when it actually started and ended."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
import signal
import sys
from collections.abc import Awaitable, Callable

from tests.chaos import clock
from tests.chaos.burst import Bursts
from tests.chaos.history import CONFIRMATIONS, Span
from tests.chaos.plan import KILL_ALL, LEAP, PRODUCER, WORKERS, PlannedFault, PlannedLeap
from tests.chaos.server_faults import Act, ServerFaults
from tests.chaos.world import World
from tests.support.leaping_clock import leap

RETRIED = ("flaky",) * 8 + ("patient",) * 4
"""Jobs that are retried while answers are slow."""
CANCELS = ("cancelled",) * 8
"""Jobs that are cancelled while their workers may not answer."""
CAN_LEAP = sys.platform == "linux" and platform.machine() == "x86_64"
ANSWERS_S = (2.2, 3.0)
"""The delay of `slow_answers`: longer than a publish waits for its confirmation."""


class Nemesis:
    """Injects one fault after another. `heal` ends every fault that remains."""

    def __init__(
        self, world: World, bursts: Bursts, seed: int, edit_schedules: Callable[[], Awaitable[None]]
    ) -> None:
        """`edit_schedules` edits all schedules."""
        self._world = world
        self._bursts = bursts
        self._server = ServerFaults(world, bursts, edit_schedules)
        self._draw = random.Random(f"{seed} network")  # jitter of the delays: not part of the plan
        self._one = asyncio.Lock()
        self._acts: dict[str, Act] = {
            **self._server.acts,
            "kill_worker": self._kill_worker,
            KILL_ALL: self._kill_all,
            "term_worker": self._term_worker,
            "freeze_worker": self._freeze_worker,
            "poison": self._poison,
            "cut": self._cut,
            "delay": self._delay,
            "blackhole": self._blackhole,
            "slow_answers": self._slow_answers,
        }

    async def run(self, faults: list[PlannedFault], started: float) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(self._act(fault, started))

    async def _act(self, fault: PlannedFault, started: float) -> None:
        await asyncio.sleep(max(0.0, started + fault.at - clock.now()))
        # A fault takes longer on a slow machine, but faults must not overlap unless that is planned.
        async with contextlib.AsyncExitStack() as stack:
            if fault.kind != KILL_ALL:
                await stack.enter_async_context(self._one)
            span = Span(fault.kind, clock.now(), workers=frozenset(fault.links), lane=fault.lane)
            self._world.history.spans.append(span)
            try:
                await self._acts[fault.kind](fault, span)
            finally:
                span.end = span.end or clock.now()

    async def heal(self) -> None:
        world = self._world
        for link in world.links:
            link.heal()
        world.fleet.thaw()
        await self._server.heal()

    async def leap(self, leaps: list[PlannedLeap], started: float, producer: int) -> None:
        """Let wall clocks leap, one at a time, beside the other faults. `producer`: its process id."""
        if not CAN_LEAP:
            self._world.history.note("clocks can leap on x86-64 Linux only")
            return
        for planned in leaps:
            await asyncio.sleep(max(0.0, started + planned.at - clock.now()))
            pid = producer if planned.who == PRODUCER else self._world.fleet.pid(planned.who)
            if not pid:
                continue
            workers = frozenset({planned.who}) if planned.who != PRODUCER else frozenset({-1})
            span = Span(LEAP, clock.now(), workers=workers, note=f"{planned.offset_s:+d} s")
            try:
                await asyncio.to_thread(leap, pid, planned.offset_s)
                self._world.history.spans.append(span)
                await asyncio.sleep(planned.lasts_s)
                span.end = clock.now()
                await asyncio.to_thread(leap, pid, 0)
            except OSError:  # the process has died
                span.end = span.end or clock.now()
            except AssertionError as error:
                self._world.history.note(f"leap of {planned.who}: {error}")

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
        self._bursts.send(["poison"], fault.lane[0])

    # The network

    async def _cut(self, fault: PlannedFault, span: Span) -> None:
        for link in fault.links:
            self._world.links[link].cut()
        span.workers = _workers(fault)

    async def _delay(self, fault: PlannedFault, span: Span) -> None:
        span.workers = _workers(fault)
        for link in fault.links:
            self._world.links[link].delay(lambda: self._draw.uniform(0.1, 0.3))
        await asyncio.sleep(fault.lasts_s)
        for link in fault.links:
            self._world.links[link].delay(lambda: 0.0)

    async def _slow_answers(self, fault: PlannedFault, span: Span) -> None:
        """The server gets a publish at once, but its answer arrives so late that the publish is repeated."""
        span.workers = _workers(fault)
        span.note = "all" if fault.late else CONFIRMATIONS
        self._bursts.send(RETRIED, fault.lane[0])
        for number in fault.links:
            link = self._world.links[number]
            if fault.late:
                link.delay(lambda: 0.0, lambda: self._draw.uniform(*ANSWERS_S))
            else:
                link.lose_confirmations()
        await asyncio.sleep(fault.lasts_s)
        for number in fault.links:
            self._world.links[number].heal()
        span.end = clock.now()
        span.healed = span.end + ANSWERS_S[1]

    async def _blackhole(self, fault: PlannedFault, span: Span) -> None:
        span.workers = _workers(fault)
        span.note = "then late" if fault.late else "then cut"
        self._bursts.send(CANCELS, fault.lane[0])
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
