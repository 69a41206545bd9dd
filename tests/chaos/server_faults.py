"""Faults of the server: of a single one and its store, and of the nodes of a cluster."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable

from jetjobs.dev_server import EmbeddedServer
from tests.chaos import clock
from tests.chaos.burst import Bursts
from tests.chaos.history import OLDER_STORE, Span
from tests.chaos.plan import PlannedFault
from tests.chaos.world import STORE, World

REPAIR_S = 1.0
"""How long the workers have to recreate a deleted consumer before the operator provisions it."""
NEWCOMERS = ("newcomer",) * 8
ASKED = ("awaited",) * 12
"""Jobs that are looked up when a frozen leader wakes."""
ASKED_S = 1.5
KILL_AFTER_S = 2.2
"""When two workers are killed after a restart with an older store: these jobs still run."""
HEAL_S = 60.0
"""How long a cluster has until all its replicas are current again."""

Act = Callable[[PlannedFault, Span], Awaitable[None]]


class ServerFaults:
    """`edit_schedules` is called when edits of schedules may have been forgotten."""

    def __init__(self, world: World, bursts: Bursts, edit_schedules: Callable[[], Awaitable[None]]) -> None:
        self._world = world
        self._bursts = bursts
        self._edit_schedules = edit_schedules
        self.acts: dict[str, Act] = {
            "kill_server": self._stop_server,
            "restart_server": self._stop_server,
            "delete_consumer": self._delete_consumer,
            "fill_storage": self._fill_storage,
            OLDER_STORE: self._older_store,
            "kill_leader": self._kill_leader,
            "freeze_leader": self._freeze_leader,
            "hold_node": self._hold_node,
            "two_down": self._two_down,
            "rolling_restart": self._rolling_restart,
        }

    async def heal(self) -> None:
        world = self._world
        for node in world.nodes:
            if node.process is None:
                await asyncio.to_thread(node.start)
            else:
                node.process.send_signal(signal.SIGCONT)
        if world.cluster is None:
            await world.free()
        else:
            await self._current()
        await world.provision()

    # A single server

    async def _stop_server(self, fault: PlannedFault, span: Span) -> None:
        server = self._world.server
        await asyncio.to_thread(server.kill if fault.kind == "kill_server" else server.stop)
        await asyncio.sleep(fault.lasts_s)
        await asyncio.to_thread(server.start)

    async def _older_store(self, fault: PlannedFault, span: Span) -> None:
        """The server comes back with its store of some seconds ago, as from a backup or after a power cut.

        Jobs sent after the copy are forgotten while workers run them. Jobs sent after the restart get their
        sequences, so a late ack would delete one of these. Only the death of its worker shows that.
        """
        server, store, copy = self._world.server, self._world.folder / STORE, self._world.folder / "copy"
        span.start, span.workers = clock.now(), frozenset()
        await asyncio.to_thread(self._copy)
        self._send_newcomers()
        await asyncio.sleep(fault.lasts_s)
        await asyncio.to_thread(server.kill if fault.late else server.stop)
        span.stopped = clock.now()
        await asyncio.to_thread(shutil.rmtree, store)
        copy.rename(store)
        await asyncio.to_thread(server.start)
        span.end = clock.now()
        self._send_newcomers()
        span.note = f"by {span.stopped - span.start:.1f} s, {'kill -9' if fault.late else 'SIGTERM'}"
        await self._edit_schedules()
        await asyncio.sleep(span.end + KILL_AFTER_S - clock.now())
        for worker in fault.links:
            self._world.fleet.send(worker, signal.SIGKILL, "kill")

    def _send_newcomers(self) -> None:
        for queue in self._world.app.task_queues:
            self._bursts.send(NEWCOMERS, queue)

    def _copy(self) -> None:
        """Copy the store while the server cannot write."""
        process = self._world.server.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self._world.folder / STORE, self._world.folder / "copy")
        finally:
            process.send_signal(signal.SIGCONT)

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
        until = clock.now() + fault.lasts_s
        while clock.now() < until:
            await asyncio.sleep(0.1)
            await self._world.fill()  # acked jobs free space: fill that too
        await self._world.free()

    # A cluster

    async def _kill_leader(self, fault: PlannedFault, span: Span) -> None:
        leader = await self._leader(fault)
        await asyncio.to_thread(leader.kill)
        await asyncio.sleep(fault.lasts_s)
        await asyncio.to_thread(leader.start)
        await self._healed(span)

    async def _freeze_leader(self, fault: PlannedFault, span: Span) -> None:
        leader = await self._leader(fault)
        assert leader.process is not None
        leader.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s - ASKED_S)
        self._bursts.send(ASKED, fault.lane[0])
        await asyncio.sleep(ASKED_S)
        leader.process.send_signal(signal.SIGCONT)
        await self._healed(span)

    async def _hold_node(self, fault: PlannedFault, span: Span) -> None:
        """Nothing passes between one node and its clients; the nodes reach each other."""
        span.workers = frozenset()
        ways = [link.ways[fault.links[0]] for link in self._world.links]
        span.note = f"node {fault.links[0] + 1}, then {'late' if fault.late else 'cut'}"
        for way in ways:
            way.hold()
        await asyncio.sleep(fault.lasts_s)
        for way in ways:
            if not fault.late:
                way.cut()
            way.resume()

    async def _two_down(self, fault: PlannedFault, span: Span) -> None:
        leader = await self._leader(fault)
        nodes = self._world.nodes
        down = (leader, nodes[nodes.index(leader) - 1])
        for node in down:
            await asyncio.to_thread(node.kill)
        await asyncio.sleep(fault.lasts_s)
        for node in down:
            await asyncio.to_thread(node.start)
        await self._healed(span)

    async def _rolling_restart(self, fault: PlannedFault, span: Span) -> None:
        for node in self._world.nodes:
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(node.start)
            await self._current()
        await self._healed(span)

    async def _leader(self, fault: PlannedFault) -> EmbeddedServer:
        """The node that leads the work stream of the planned queue."""
        assert self._world.cluster is not None
        info = await self._world.truth.api(f"STREAM.INFO.jobs-work-{fault.lane[0]}")
        return self._world.cluster.named(info["cluster"]["leader"])

    async def _healed(self, span: Span) -> None:
        """The fault is over, but its effects last until all replicas are current."""
        span.end = clock.now()
        await self._current()
        span.healed = clock.now()
        span.note = f"all replicas current {span.healed - span.end:.1f} s later"

    async def _current(self) -> None:
        cluster = self._world.cluster
        assert cluster is not None
        give_up = clock.now() + HEAL_S
        while not await asyncio.to_thread(cluster.healthy):
            if clock.now() > give_up:
                self._world.history.note(f"not all replicas are current after {HEAL_S:.0f} s")
                return
            await asyncio.sleep(0.2)
