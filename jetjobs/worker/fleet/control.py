"""What a worker says on core NATS: an answer to every request, and what happens while somebody watches."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.events import Event, Observer, WorkerChanged
from jetjobs.model.views.live_events import WATCHED_S, LiveEvent, live_event
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import Names
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.leases.lease_table import Leases

Answer = dict[str, Any]
Handler = Callable[[dict[str, Any]], Answer | Awaitable[Answer]]
"""Called with the request, on the worker's loop. What it returns is the answer; `ok` and `worker` are added."""
Spawn = Callable[[Coroutine[Any, Any, None]], None]

MOST_A_SECOND = 500
"""Events of one kind and task. Watchers must not slow the work: what is beyond it is counted and not published."""
MOST_COUNTED = 1_000
"""Kinds and tasks counted at a time: task names of jobs published without jetjobs may be anything."""

_log = logging.getLogger("jetjobs.worker")


class Control:
    """Listens for requests to all workers and to this one. A request is a JSON object with the word under `do`."""

    def __init__(self, connection: Connection, names: Names, key: str, spawn: Spawn) -> None:
        self._connection = connection
        self._names = names
        self._spawn = spawn
        self._handlers: dict[str, Handler] = {}
        self._key = key
        self._sids: list[int] = []

    def on(self, word: str, handler: Handler) -> None:
        """Answer requests of that word. The handler may be a coroutine function; it must not block."""
        self._handlers[word] = handler

    async def open(self) -> None:
        for subject in (self._names.control_workers, self._names.control_worker(self._key)):
            self._sids.append(await self._connection.nc.listen(subject, self._on_request))

    async def close(self) -> None:
        sids, self._sids = self._sids, []
        for sid in sids:
            with contextlib.suppress(Exception):  # the connection is gone, and the subscription with it
                await self._connection.nc.unlisten(sid)

    # Requests

    def _on_request(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if self._sids:
            self._spawn(self._handle(reply, data))

    async def _handle(self, reply: str, data: bytes) -> None:
        answer = {"worker": self._key, "ok": True, **await self._answer(data)}
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


class Telling:
    """Called before the worker's observers. Unwatched, it costs a job two looks at a number. ADR 35."""

    def __init__(self, jetstream: JetStreamClient, worker: str, observe: Observer) -> None:
        self._connection = jetstream.connection
        self._names = jetstream.names
        self._worker = worker
        self._observe = observe
        self._watched_until = 0.0
        self._counts: dict[tuple[str, str], tuple[float, int, int]] = {}
        """By kind and task: when its second began, how many were published in it, how many were skipped."""

    def __call__(self, event: Event) -> None:
        if self._watched_until or type(event) is WorkerChanged:
            self._tell(event)
        self._observe(event)

    @property
    def watched(self) -> bool:
        """Whether somebody watches, as far as is known."""
        return time.monotonic() < self._watched_until

    def hear(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The control word `watch`: somebody watches, for some seconds from now."""
        self._watched_until = time.monotonic() + WATCHED_S
        return {}

    def _tell(self, event: Event) -> None:
        now = time.monotonic()
        if now >= self._watched_until:
            self._watched_until = 0.0
            self._counts.clear()  # what was skipped then is nothing to those who watch next
            if type(event) is not WorkerChanged:
                return
        told = live_event(event, self._worker, round(time.time(), 6))
        skipped = self._skipped(told, now) if told is not None else None
        if told is not None and skipped is not None:
            self._publish(told._replace(skipped=skipped))

    def _skipped(self, told: LiveEvent, now: float) -> int | None:
        """How many events like this were skipped before it; None when it has to be skipped too."""
        key = told.kind, told.task
        if key not in self._counts and len(self._counts) >= MOST_COUNTED:
            self._counts.clear()
        begun, published, skipped = self._counts.get(key, (now, 0, 0))
        if now - begun >= 1.0:
            begun, published = now, 0
        if published >= MOST_A_SECOND:
            self._counts[key] = begun, published, skipped + 1
            return None
        self._counts[key] = begun, published + 1, 0
        return skipped

    def _publish(self, told: LiveEvent) -> None:
        names, word = self._names, told.kind.partition(".")[2]
        if told.kind.startswith("worker."):
            subject = names.worker_event(word, told.worker)
        else:
            subject = names.job_event(word, told.queue, told.task or "-", told.job_id or "-")
        self._connection.post(subject, told.to_wire())


def cancel_here(leases: Leases, registry: Router, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request: `holds` says whether the job is in hand, `runs` whether its task has begun, `stops`
    whether that was interrupted. The mark is written before anybody is asked: what has not begun will not.
    """
    attempt = _find(leases, str(request.get("id", "")), str(request.get("run", "")))
    if attempt is None or attempt.job is None:
        return {"holds": False}
    if not attempt.running:
        return {"holds": True, "runs": False}
    task = registry.tasks.get(attempt.job.task)
    # A thread cannot be stopped: to cancel the attempt would only hide that its code runs on.
    stops = task is not None and (task.is_async or task.isolated)
    if stops:
        attempt.cancel_running()
    return {"holds": True, "runs": True, "stops": stops}


def _find(leases: Leases, job_id: str, run: str) -> Attempt | None:
    for attempt in leases.held:
        if attempt.job is not None and attempt.job.id == job_id and attempt.job.run == run:
            return attempt
    return None
