"""Live events as server-sent events: one subscription of the process, shared by all clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import NamedTuple

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from jetjobs.app import JetJobs
from jetjobs.http.models.admin_requests import EventQuery
from jetjobs.http.problems import Problem
from jetjobs.model.errors import BrokerError
from jetjobs.model.settings import HttpSettings
from jetjobs.model.views.access import Access
from jetjobs.model.views.live_events import LiveEvent, event_subjects
from jetjobs.model.wire.ids import new_run
from jetjobs.model.wire.lenient_json import write_json
from jetjobs.model.wire.subjects import Names

KEPT = 1_000
"""Events that are kept for clients that connect again, and that may wait for one client."""
HEARTBEAT_S = 15
SEND_S = 30.0
"""A client that takes nothing for this long is disconnected."""
RENEW_S = 5.0
"""How often the access of a client is checked again."""
BEGIN_S = 5.0
LINGER_S = 60.0
"""How long the subscription lasts after the last client has left."""
RETRY_MS = 2_000
"""After how long a client connects again."""
_PROGRESS = "job.progress"


class _Entry(NamedTuple):
    """An event with its number; None for a gap, in which events were missed."""

    number: int
    event: LiveEvent | None


class _Client:
    """One connection, and the events that it has not taken yet."""

    def __init__(self, access: Access, query: EventQuery) -> None:
        self.access = access
        self._query = query
        self._waiting: asyncio.Queue[_Entry | None] = asyncio.Queue(KEPT)

    def wants(self, event: LiveEvent | None) -> bool:
        """Whether the filters select the event and the caller may see it. Progress must be asked for."""
        if event is None:
            return True
        query = self._query
        if not (self.access.sees(event.queue) if event.queue else self.access.queues is None):
            return False
        if query.queue not in (None, event.queue) or query.task not in (None, event.task):
            return False
        if not query.kind:
            return event.kind != _PROGRESS
        return any(fnmatchcase(event.kind, pattern) for pattern in query.kind)

    def put(self, entry: _Entry) -> None:
        """Queue an event. A client that is too slow is disconnected; it connects again with its last id."""
        if self._waiting.full():
            self.close()
        elif self.wants(entry.event):
            self._waiting.put_nowait(entry)

    def clear(self) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait()

    def close(self) -> None:
        self.clear()
        self._waiting.put_nowait(None)

    async def entries(self) -> AsyncIterator[_Entry]:
        while (entry := await self._waiting.get()) is not None:
            yield entry


class _Response(EventSourceResponse):
    """Calls `ended` at the end of the connection, also if the client has left before its first event."""

    def __init__(self, content: AsyncIterator[ServerSentEvent], ended: Callable[[], None]) -> None:
        super().__init__(content, ping=HEARTBEAT_S, send_timeout=SEND_S, sep="\n")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _renew(client: _Client, renew: Callable[[], Awaitable[Access]]) -> None:
    """Close the stream once the caller's access has changed or ended."""
    while True:
        await asyncio.sleep(RENEW_S)
        try:
            valid = await renew() == client.access
        except BrokerError:
            continue  # not known now
        except Problem:
            valid = False
        if not valid:
            client.close()
            return


class EventFeed:
    """The events of one namespace. It subscribes when the first client comes."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app
        self._epoch = new_run()
        self._kept: deque[_Entry] = deque(maxlen=KEPT)
        self._number = 0
        self._clients: list[_Client] = []
        self._following: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None

    async def response(
        self, access: Access, query: EventQuery, last_id: str | None, renew: Callable[[], Awaitable[Access]]
    ) -> EventSourceResponse:
        """The stream for one client, until it leaves or `renew` no longer returns its access.

        Problem 429 if too many are open; ConfigError for an invalid filter.
        """
        event_subjects(Names("any"), query.queue, query.task, query.kind)
        self._check_limits(access, self._app.settings.http)
        client = _Client(access, query)
        self._clients.append(client)  # before the wait, so that the limits hold
        try:
            await self._begin()
        except BaseException:
            self._remove(client)
            raise
        client.clear()  # what has come since then is among the kept events
        content = self._stream(client, self._missed(client, last_id))
        renewing = asyncio.create_task(_renew(client, renew))

        def ended() -> None:
            renewing.cancel()
            self._remove(client)

        return _Response(content, ended)

    def close(self) -> None:
        """End all streams and the subscription."""
        for client in self._clients:
            client.close()
        if self._idle is not None:
            self._idle.cancel()
        self._stop()

    def _check_limits(self, access: Access, settings: HttpSettings) -> None:
        by_caller = Counter(client.access.name for client in self._clients)
        over = f"{len(self._clients)} streams" if len(self._clients) >= settings.max_streams else ""
        if by_caller[access.name] >= settings.max_streams_per_token:
            over = f"{by_caller[access.name]} streams of {access.name!r}"
        if over:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_streams",
                f"{over} are open already",
                hint="close one, or raise http.max_streams and http.max_streams_per_token",
                headers={"Retry-After": "10"},
            )

    # The subscription

    async def _begin(self) -> None:
        """Return when workers publish events for this process. Errors of the subscription are raised."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._following is None or self._following.done():
            self._begun.clear()
            if self._number:
                self._publish(None)  # nothing was followed since the last client left
            self._following = asyncio.create_task(self._follow())
        begun = asyncio.create_task(self._begun.wait())
        await asyncio.wait({begun, self._following}, timeout=BEGIN_S, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if self._following.done():
            self._following.result()

    async def _follow(self) -> None:
        connection = self._app.jetstream.connection
        forget = connection.on_reconnect(lambda: self._publish(None))
        try:
            async with contextlib.aclosing(self._app.events(begun=lambda workers: self._begun.set())) as events:
                async for event in events:
                    self._publish(event)
        finally:
            forget()
            if not self._begun.is_set():
                self._begun.set()
            else:
                for client in self._clients:
                    client.close()

    def _publish(self, event: LiveEvent | None) -> None:
        self._number += 1
        entry = _Entry(self._number, event)
        self._kept.append(entry)
        for client in self._clients:
            client.put(entry)

    def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following.add_done_callback(lambda task: task.cancelled() or task.exception())

    # One client

    def _missed(self, client: _Client, last_id: str | None) -> Sequence[_Entry]:
        """What the client has missed since its last event; a gap first if that is not known."""
        if last_id is None:
            return []
        gap = _Entry(self._number, None)
        epoch, _, text = last_id.rpartition("-")
        if epoch != self._epoch or not (text.isascii() and text.isdigit() and len(text) < 20):
            return [gap]
        last = int(text)
        kept = [entry for entry in self._kept if entry.number > last and client.wants(entry.event)]
        complete = last >= self._number or (self._kept and last >= self._kept[0].number - 1)
        return kept if complete else [_Entry(self._kept[0].number - 1 if self._kept else last, None), *kept]

    async def _stream(self, client: _Client, missed: Sequence[_Entry]) -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent(comment="jetjobs", retry=RETRY_MS)
        for entry in missed:
            yield self._sent(entry)
        async for entry in client.entries():
            yield self._sent(entry)

    def _sent(self, entry: _Entry) -> ServerSentEvent:
        number = f"{self._epoch}-{entry.number}"
        if entry.event is None:
            return ServerSentEvent(data="{}", event="gap", id=number)
        return ServerSentEvent(data=write_json(entry.event.as_dict()), event=entry.event.kind, id=number)

    def _remove(self, client: _Client) -> None:
        self._clients.remove(client)
        if not self._clients and self._following is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._idle = asyncio.get_running_loop().call_later(LINGER_S, self._stop)
