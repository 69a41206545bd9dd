"""The lanes that a worker pulls from: open, reset and close them, and restore lanes that were deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.pull.puller import LanePuller
from jetjobs.jetstream.topology import restore_lanes
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.events import PermissionDenied
from jetjobs.model.settings import Settings
from jetjobs.model.wire import subjects as n
from jetjobs.worker.intake.dispatcher import Dispatcher
from jetjobs.worker.options import Spawn

CHECK_S = 1.0
"""Pause between checks of a lane that refused a pull request."""

DENIED_CHECK_S = 5.0
"""Pause between checks of a lane without permission to pull or to ack."""

_log = logging.getLogger("jetjobs.worker")


class Lanes:
    """The pullers of one worker."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        queues: Iterable[str],
        settings: Settings,
        spawn: Spawn,
    ) -> None:
        self._jetstream = jetstream
        self._queues = list(queues)
        self._settings = settings
        self._spawn = spawn
        self._pullers: list[LanePuller] = []
        self._blocked: set[LanePuller] = set()
        self._open = True
        self._full: Callable[[], bool] = lambda: False
        self._forget: Callable[[], None] = lambda: None

    async def open(self, dispatcher: Dispatcher, doubt: Callable[[str], None]) -> None:
        """Start to pull. `doubt` is called with the queue of a lane that may be another one than before."""
        connection, names = self._jetstream.connection, self._jetstream.names
        self._pullers = [
            LanePuller(
                connection, queue, lane, names.work_stream(queue), dispatcher.on_delivery, dispatcher.on_change
            )
            for queue in self._queues
            for lane in n.PULLED
        ]
        self._forget = connection.denials.on_denied(self._on_denied)
        dispatcher.use(self._pullers, self.restore, self.reset, doubt)
        self._full = lambda: dispatcher.full
        for puller in self._pullers:
            await puller.open()
        await connection.denials.received()  # so that no job starts that cannot be acked

    async def close(self) -> None:
        """Drop every pull request. When this returns, the dispatcher has received every delivery."""
        self._open = False
        self._forget()
        self._forget = lambda: None
        for puller in self._pullers:
            await puller.close()

    async def reconnected(self) -> None:
        """Load the cancel marks that were missed, then pull again."""
        with contextlib.suppress(BrokerError):
            await self._jetstream.cancel_marks.load()
        self.reset()

    def reset(self) -> None:
        """Drop every pull request and start with new ones."""
        for puller in self._pullers:
            self._spawn(puller.reset())

    def on_stall(self, since: float) -> None:
        """Handle a stall of the process: unread deliveries may have been sent at any time after `since`.
        ADR 10."""
        for puller in self._pullers:
            puller.mark_stale(since)
        self.reset()

    def _on_denied(self, event: PermissionDenied) -> None:
        for puller in self._pullers if event.kind == "publish" else ():
            if puller.deny(event.subject):
                self._spawn(puller.reset())  # drop its open requests

    def restore(self, puller: LanePuller) -> None:
        """Pull from a refused lane again once it exists."""
        if puller not in self._blocked:
            self._blocked.add(puller)
            self._spawn(self._restore(puller))

    async def _restore(self, puller: LanePuller) -> None:
        """The stream may be a new one, in which sequences start again."""
        try:
            while self._open:
                await asyncio.sleep(DENIED_CHECK_S if puller.denied else CHECK_S)
                try:
                    if puller.denied:
                        await puller.check_permissions()
                        return
                    with contextlib.suppress(AccessDenied):
                        await self._jetstream.connection.api(api.stream_info(puller.stream))
                    await self._recreate_lanes(puller.queue)
                    if self._full():
                        # No pull request follows now that would show whether the lane works again.
                        with contextlib.suppress(AccessDenied):
                            await self._jetstream.connection.api(api.consumer_info(puller.stream, puller.lane))
                except BrokerError as error:
                    if puller.shut_down and self._jetstream.connection.connected:
                        puller.report(f"its server has stopped: {error}")
                    continue
                break
        finally:
            self._blocked.discard(puller)
        if self._open:
            puller.unblock()

    async def _recreate_lanes(self, queue: str) -> None:
        """Recreate deleted lanes, which hold no jobs, if this worker may provision. A deleted stream is not
        recreated: that would hide that its jobs are lost."""
        if self._settings.worker.provision != "apply":
            return
        restored = await restore_lanes(
            self._jetstream.connection, self._jetstream.names, queue, self._settings.queues
        )
        for label in restored:
            _log.warning("a deleted lane was recreated", extra={"event": "lane.restored", "lane": label})

    async def empty(self) -> bool:
        """Whether no lane has a job to deliver."""
        with contextlib.suppress(BrokerError):
            counts = await asyncio.gather(*(self._pending(puller) for puller in self._pullers))
            return not any(counts)
        return False

    async def _pending(self, puller: LanePuller) -> int:
        try:
            info = await self._jetstream.connection.api(api.consumer_info(puller.stream, puller.lane))
        except TopologyMissing:
            return 0  # a deleted lane delivers nothing
        return int(info["num_pending"])
