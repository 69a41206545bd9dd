"""Hear what workers tell while it happens: announce it, so that they do, and listen. ADR 20."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.control import Answers, ask_all
from jetjobs.model.errors import BrokerError, BrokerUnavailable
from jetjobs.model.live import ANNOUNCE_S, WATCH, WATCHED_S, LiveEvent, Wish, read_live
from jetjobs.model.names import Names

MOST_WAITING = 10_000
"""Of a reader that is slower than the events the oldest are dropped, and the next says how many."""


class Watching:
    """One watcher: `async for event in Watching(...).events()`."""

    def __init__(self, connection: Connection, names: Names, wish: Wish) -> None:
        self._connection = connection
        self._names = names
        self._wish = wish
        self._id = secrets.token_hex(8)
        self._waiting: asyncio.Queue[LiveEvent | None] = asyncio.Queue()
        self._dropped = 0

    async def events(self, begun: Callable[[int], None] = lambda workers: None) -> AsyncGenerator[LiveEvent, None]:
        """Without end, through reconnects. `begun` is told how many workers have heard of us by then.

        BrokerUnavailable when the connection is closed for good.
        """
        sids = [await self._connection.nc.listen(subject, self._on_event) for subject in self._subjects()]
        announcing = asyncio.create_task(self._announce_for_ever(begun))
        forget = self._connection.on_reconnect(self._announce)
        try:
            while (event := await self._waiting.get()) is not None:
                if self._dropped:
                    event, self._dropped = event._replace(skipped=event.skipped + self._dropped), 0
                yield event
            raise BrokerUnavailable("the server closed the connection for good")
        finally:
            forget()
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            self._announce(for_s=0)
            for sid in sids:
                with contextlib.suppress(Exception):  # the connection is gone, and the subscription with it
                    await self._connection.nc.unlisten(sid)

    def _subjects(self) -> list[str]:
        queue, task = self._wish.queue or "*", self._wish.task or "*"
        subjects = [self._names.job_event("*", queue, task, "*")]
        if not self._wish.queue and not self._wish.task:
            subjects.append(self._names.worker_event("*", "*"))
        return subjects

    def _on_event(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        event = read_live(self._names.kind_of_event(subject), data, time.time())
        if event is None or not self._wish.wants(event.kind, event.queue, event.task):
            return  # wanted by another watcher
        if self._waiting.qsize() >= MOST_WAITING:
            self._waiting.get_nowait()
            self._dropped += 1
        self._waiting.put_nowait(event)

    # Announcing

    async def _announce_for_ever(self, begun: Callable[[int], None]) -> None:
        try:
            body = self._request(WATCHED_S)
            answers = await ask_all(self._connection, self._names, WATCH, body)
        except BrokerError:
            answers = Answers({}, [])
        begun(sum(bool(answer.get("ok")) for answer in answers.by_worker.values()))
        while not self._connection.closed.is_set():
            self._announce()
            await asyncio.sleep(ANNOUNCE_S)
        self._waiting.put_nowait(None)

    def _announce(self, for_s: float = WATCHED_S) -> None:
        request = json.dumps({**self._request(for_s), "do": WATCH}).encode()
        if self._connection.connected:
            self._connection.post(self._names.control_workers, request)

    def _request(self, for_s: float) -> dict[str, object]:
        wish = self._wish
        return {
            "watcher": self._id,
            "queue": wish.queue,
            "task": wish.task,
            "kinds": [*wish.kinds],
            "for_s": for_s,
        }
