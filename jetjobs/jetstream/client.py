"""Everything on the server behind one name: the connection and the places jobs are moved between."""

from __future__ import annotations

from jetjobs.jetstream.cancel_marks import CancelMarks
from jetjobs.jetstream.changeover import Changeover
from jetjobs.jetstream.checkpoints import Checkpoints
from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.dead_letters import DeadLetters
from jetjobs.jetstream.following import Following
from jetjobs.jetstream.payloads import Payloads
from jetjobs.jetstream.places import Places
from jetjobs.jetstream.publisher import Publisher
from jetjobs.jetstream.replay_marks import ReplayMarks
from jetjobs.jetstream.results import Results
from jetjobs.jetstream.schedule_edits import ScheduleEdits
from jetjobs.jetstream.schedules import ScheduleStore
from jetjobs.jetstream.server_clock import ServerClock
from jetjobs.jetstream.ticks import Ticks
from jetjobs.model.events import Observer
from jetjobs.model.names import Names, kv_stream
from jetjobs.model.settings import Settings


class JetStreamClient:
    """Made by the app, used by it and by the worker. Inert until `open`."""

    def __init__(self, settings: Settings, name: str, observe: Observer) -> None:
        self._settings = settings.nats
        self._name = name
        self.names = Names(settings.queues.namespace)
        self.connection = Connection(settings.nats, name, observe)
        patience_s = settings.queues.publish_timeout.total_seconds()
        self.publisher = Publisher(self.connection, self.names, patience_s)
        self.payloads = Payloads(self.connection, self.publisher, self.names.payload_store, patience_s)
        self.results = Results(self.connection, self.publisher, self.names)
        self.dead = DeadLetters(self.connection, self.publisher, self.payloads, self.names)
        self.replay_marks = ReplayMarks(self.connection, self.publisher, self.names)
        self.cancel_marks = CancelMarks(self.connection, self.publisher, self.names)
        self.places = Places(self.connection, self.publisher, self.results, self.dead, self.payloads, self.names)
        self.checkpoints = Checkpoints(self.connection, self.publisher, self.names)
        self.schedules = ScheduleStore(self.connection, self.publisher, self.names)
        self.ticks = Ticks(self.connection, self.publisher, self.names)
        self.server_clock = ServerClock(self.connection, kv_stream(self.names.schedules_bucket))
        self.changeover = Changeover(self.ticks)
        self.schedule_edits = ScheduleEdits(self.schedules, self.ticks, self.changeover, self.server_clock)
        self.following = Following(self.connection, self.places, self.names)

    async def open(self) -> None:
        await self.connection.open()

    def beside(self, role: str) -> Connection:
        """Another connection to the same server, not yet open, for use on another event loop."""
        return Connection(self._settings, f"{self._name}-{role}", lambda event: None)

    async def close(self) -> None:
        await self.connection.close()
