"""What a worker can be asked over core NATS: words, each with a handler, and an answer to every request."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from jetjobs.jetstream.connection import Connection
from jetjobs.model.names import Names
from jetjobs.model.reading import read_json

Answer = dict[str, Any]
Handler = Callable[[dict[str, Any]], Answer | Awaitable[Answer]]
"""Called with the request, on the worker's loop. What it returns is the answer; `ok` and `worker` are added."""
Spawn = Callable[[Coroutine[Any, Any, None]], None]

_log = logging.getLogger("jetjobs.worker")


class Control:
    """Listens for requests to all workers and to this one. A request is a JSON object with the word under `do`."""

    def __init__(self, connection: Connection, names: Names, name: str, spawn: Spawn) -> None:
        """`name` is how it signs before it is registered."""
        self._connection = connection
        self._names = names
        self._spawn = spawn
        self._handlers: dict[str, Handler] = {}
        self._name = name
        self._key = ""
        self._sids: list[int] = []
        self._own_sid: int | None = None
        self._open = False

    def on(self, word: str, handler: Handler) -> None:
        """Answer requests of that word. The handler may be a coroutine function; it must not block."""
        self._handlers[word] = handler

    async def open(self) -> None:
        """Listen for what all workers are asked."""
        self._open = True
        self._sids.append(await self._connection.nc.listen(self._names.control_workers, self._on_request))

    async def move(self, key: str) -> None:
        """The registry has a key for us, or another one: from now on we are asked by it."""
        if key == self._key or not self._open:
            return
        self._key, before = key, self._own_sid
        self._own_sid = await self._connection.nc.listen(self._names.control_worker(key), self._on_request)
        await self._unlisten([before] if before is not None else [])

    async def close(self) -> None:
        self._open = False
        sids = [*self._sids, *([self._own_sid] if self._own_sid is not None else [])]
        self._sids, self._own_sid = [], None
        await self._unlisten(sids)

    async def _unlisten(self, sids: list[int]) -> None:
        for sid in sids:
            with contextlib.suppress(Exception):  # the connection is gone, and the subscription with it
                await self._connection.nc.unlisten(sid)

    # Requests

    def _on_request(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if self._open:
            self._spawn(self._handle(reply, data))

    async def _handle(self, reply: str, data: bytes) -> None:
        answer = {"worker": self._key or self._name, "ok": True, **await self._answer(data)}
        if reply:
            self._connection.post(reply, json.dumps(answer, default=str).encode())

    async def _answer(self, data: bytes) -> Answer:
        try:
            request = read_json(data)
            word = str(request["do"])
        except (ValueError, KeyError, TypeError):
            return self._refuse('a request is a JSON object with a word under "do"')
        handler = self._handlers.get(word)
        if handler is None:
            return self._refuse(f"unknown word {word!r}")
        try:
            answer = handler(request)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            extra = {"event": "control.failed", "word": word}
            _log.error("a control request failed", exc_info=error, extra=extra)
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _refuse(self, why: str) -> Answer:
        return {"ok": False, "error": why, "words": sorted(self._handlers)}
