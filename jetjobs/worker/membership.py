"""A worker among others: kept in the registry, its leases kept beside it, and open to what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from jetjobs.define.registry import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.worker.control import Control, Spawn
from jetjobs.worker.keeper import LeaseKeeper
from jetjobs.worker.leases import Leases
from jetjobs.worker.presence import Presence
from jetjobs.worker.slots import Slots

REGISTER_S = 1.0
"""How long a start waits for the registry: whoever asks all workers is to know of one before it has jobs."""


class Membership:
    """The keeper's thread with the worker's record, and the control requests. Inert until `open`."""

    def __init__(self, jetstream: JetStreamClient, name: str, leases: Leases, spawn: Spawn) -> None:
        self._name = name
        self._jetstream = jetstream
        self._leases = leases
        self._spawn = spawn
        self._keeper: LeaseKeeper | None = None
        self.control = Control(jetstream.connection, jetstream.names, name, spawn)

    async def open(
        self,
        stack: contextlib.AsyncExitStack,
        registry: Router,
        queues: Mapping[str, int | None],
        slots: Slots,
        phase: Callable[[], str],
    ) -> None:
        """Until the stack is closed: then the record goes first, and nothing is answered any more."""
        loop = asyncio.get_running_loop()

        def on_key(key: str) -> None:
            with contextlib.suppress(RuntimeError):  # the worker's loop has ended
                loop.call_soon_threadsafe(lambda: self._spawn(self.control.move(key)))

        presence = Presence(self._jetstream, self._name, registry, queues, slots, self._leases, phase, on_key)
        stack.push_async_callback(self.control.close)
        await self.control.open()
        self._keeper = LeaseKeeper(self._jetstream, self._leases, presence)
        stack.push_async_callback(self._keeper.stop)
        self._keeper.start()
        await asyncio.to_thread(presence.registered.wait, REGISTER_S)

    def changed(self) -> None:
        """The worker has entered another phase: the registry is told at once."""
        if self._keeper is not None:
            self._keeper.wake()

    def turned(self) -> None:
        """Called by the worker's loop at every tick."""
        if self._keeper is not None:
            self._keeper.turned()

    def loop_ends(self) -> None:
        """The loop's own tick ends here: that it does not turn any more is nothing to tell."""
        if self._keeper is not None:
            self._keeper.watching = False
