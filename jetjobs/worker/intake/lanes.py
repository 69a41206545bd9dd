"""The lanes a worker takes jobs from: opened, watched, mended, and started anew when the process stood still."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.pull.puller import LanePuller
from jetjobs.jetstream.topology import restore_lanes
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.settings import Settings
from jetjobs.model.wire import subjects as n
from jetjobs.worker.intake.dispatcher import Dispatcher
from jetjobs.worker.leases.lease_table import Leases

FAILOVER_S = 15.0
"""How long a cluster may take to find new leaders: a worker that starts meanwhile waits for them."""
MEND_S = 1.0
"""Between looks at a lane that the server refused."""

_log = logging.getLogger("jetjobs.worker")
Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Lanes:
    """All pullers of one worker."""

    def __init__(
        self, jetstream: JetStreamClient, queues: Iterable[str], settings: Settings, leases: Leases, spawn: Spawn
    ) -> None:
        self._jetstream = jetstream
        self._queues = list(queues)
        self._settings = settings
        self._leases = leases
        self._spawn = spawn
        self._pullers: list[LanePuller] = []
        self._mending: set[LanePuller] = set()
        self._open = True
        self._full: Callable[[], bool] = lambda: False

    async def learn(self) -> None:
        """What the server says of the queues. The lease is that of the lanes: others may have provisioned them."""
        connection, names = self._jetstream.connection, self._jetstream.names
        for queue in self._queues:
            for lane in n.PULLED:
                try:
                    subject = api.consumer_info(names.work_stream(queue), lane)
                    info = await connection.api(subject, timeout_s=FAILOVER_S)
                except AccessDenied:
                    return  # not allowed to ask: the settings must do
                self._leases.lease_s = min(self._leases.lease_s, info["config"]["ack_wait"] / api.NS)

    async def open(self, dispatcher: Dispatcher) -> None:
        connection, names = self._jetstream.connection, self._jetstream.names
        self._pullers = [
            LanePuller(
                connection, queue, lane, names.work_stream(queue), dispatcher.on_delivery, dispatcher.on_change
            )
            for queue in self._queues
            for lane in n.PULLED
        ]
        dispatcher.use(self._pullers, self.mend, self.start_anew)
        self._full = lambda: dispatcher.full
        for puller in self._pullers:
            await puller.open()

    async def close(self) -> None:
        """Drop every request. When this returns, all that was delivered has been handed over."""
        self._open = False
        for puller in self._pullers:
            await puller.close()

    async def reconnected(self) -> None:
        """First hear what was cancelled meanwhile, then ask for jobs again."""
        with contextlib.suppress(BrokerError):
            await self._jetstream.cancel_marks.load()
        self.start_anew()

    def start_anew(self) -> None:
        """What was asked for so far is forgotten."""
        for puller in self._pullers:
            self._spawn(puller.reset())

    def doubt(self, since: float) -> None:
        """The process has stood still: what lies in the socket may have been sent as long ago as that."""
        for puller in self._pullers:
            puller.mark_stale(since)
        self.start_anew()

    def mend(self, puller: LanePuller) -> None:
        if puller not in self._mending:
            self._mending.add(puller)
            self._spawn(self._mend(puller))

    async def _mend(self, puller: LanePuller) -> None:
        """Ask a lane again once its stream is there. It may be a new stream, in which sequences begin anew."""
        try:
            while self._open:
                await asyncio.sleep(MEND_S)
                try:
                    await self._jetstream.connection.api(api.stream_info(puller.stream))
                    await self._restore(puller.queue)
                    if self._full():
                        # It will not be asked for now, and so could not tell that it is well again.
                        with contextlib.suppress(AccessDenied):
                            await self._jetstream.connection.api(api.consumer_info(puller.stream, puller.lane))
                except BrokerError:
                    continue
                break
        finally:
            self._mending.discard(puller)
        if self._open:
            puller.unblock()

    async def _restore(self, queue: str) -> None:
        """A lane that was deleted is made again where we may provision: it holds no jobs. A stream is not: to make
        a new one in its place would hide that jobs were lost with it."""
        if self._settings.worker.provision != "apply":
            return
        made = await restore_lanes(self._jetstream.connection, self._jetstream.names, queue, self._settings.queues)
        for label in made:
            _log.warning("a lane was gone and is made again", extra={"event": "lane.restored", "lane": label})

    async def empty(self) -> bool:
        """Whether no lane has anything to deliver."""
        with contextlib.suppress(BrokerError):
            counts = await asyncio.gather(*(self._pending(puller) for puller in self._pullers))
            return not any(counts)
        return False

    async def _pending(self, puller: LanePuller) -> int:
        try:
            info = await self._jetstream.connection.api(api.consumer_info(puller.stream, puller.lane))
        except TopologyMissing:
            return 0  # a lane that is gone has nothing to deliver
        return int(info["num_pending"])
