"""Send requests to workers over core NATS, and receive the live events they publish."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import nats.errors

from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.denials import Violation
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.jetstream.transport.nats_client import read_status
from jetjobs.jetstream.workers.registry import list_workers, live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import BrokerError, BrokerUnavailable, WorkerSilent
from jetjobs.model.events import PermissionDenied
from jetjobs.model.public import Record, public
from jetjobs.model.views.live_events import ANNOUNCE_S, WATCH, LiveEvent, read_live
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import Names

ANSWER_S = 2.0
SHORTEN_LEASE = "lease"
LEASE_ANSWER_S = 3.0
"""A worker answers after its heartbeats are confirmed, for which it waits up to 2 s."""
_NOTHING: Mapping[str, Any] = {}
MOST_WAITING = 10_000
"""If a reader is slower than the events, the oldest are dropped, and the next one reports how many."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class WorkerAnswers(Record):
    """The answers of workers by their keys, and the keys of registered workers that did not answer."""

    by_worker: dict[str, dict[str, Any]]
    silent: list[str]


async def ask_all(
    connection: Connection,
    names: Names,
    word: str,
    body: Mapping[str, Any] = _NOTHING,
    *,
    timeout_s: float = ANSWER_S,
    others_s: float = 0.0,
) -> WorkerAnswers:
    """Send a request to all workers. Waits for the registered ones, but no longer than `timeout_s`, and then for
    `others_s` for workers that could not register."""
    answers: dict[str, dict[str, Any]] = {}
    news = asyncio.Event()
    no_responders = False

    def on_reply(_: str, reply: str, data: bytes, headers: bytes | None) -> None:
        nonlocal no_responders
        if headers is not None and not data and read_status(headers)[0] == "503":
            no_responders = True
        elif (answer := read_answer(data)) is not None:
            answers[str(answer.get("worker", f"?{len(answers)}"))] = answer
        news.set()

    inbox = connection.nc.new_inbox()
    try:
        sid = await connection.nc.listen(inbox, on_reply)
    except nats.errors.Error as error:
        raise from_exception(error, "request to all workers") from error
    try:
        request = json.dumps({**body, "do": word}).encode()
        if not connection.post(names.control_workers, request, inbox):
            raise BrokerUnavailable("request to all workers: not connected")
        expected: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                expected = {record.key for record in await list_workers(connection, names)}
                while not no_responders and expected - answers.keys():
                    news.clear()
                    await news.wait()
        if others_s and not no_responders:
            await asyncio.sleep(others_s)
    finally:
        with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
            await connection.nc.unlisten(sid)
    return WorkerAnswers(answers, sorted(expected - answers.keys()))


async def announce_lease(
    connection: Connection, names: Names, lease_s: float, queues: Collection[str], *, force: bool
) -> None:
    """Before the lease of these queues is lowered: make their workers send heartbeats often enough for it.

    WorkerSilent when a registered worker has not confirmed that, AccessDenied when this user may not ask; neither
    with `force`. ADR 43.
    """
    if not force:
        await _check_permission(connection, names)
    request = {"seconds": lease_s, "queues": sorted(queues)}
    answers = await ask_all(connection, names, SHORTEN_LEASE, request, timeout_s=LEASE_ANSWER_S)
    if force:
        return
    problems = []
    for record in await live_workers(connection, names):
        answer = answers.by_worker.get(record.key)
        if record.queues.keys().isdisjoint(queues) or (answer is not None and answer.get("ok")):
            continue
        why = "has not answered" if answer is None else f"refused ({answer.get('error', 'no reason given')})"
        problems.append(f"worker {record.key} {why}")
    if problems:
        raise WorkerSilent(
            f"the lease of {', '.join(sorted(queues))} is not lowered to {show_duration(lease_s)}: "
            + ", ".join(problems),
            hint="its running jobs would run twice: stop it, or wait for the present lease after it is gone, "
            "then repeat; "
            "`jetjobs setup apply --force` does not wait for workers",
        )


async def _check_permission(connection: Connection, names: Names) -> None:
    """AccessDenied when this user may not send requests to workers: they would seem silent."""
    try:
        await connection.ask(names.control_workers, json.dumps({"do": "ping"}).encode(), None, 1.0)
    except BrokerUnavailable:
        return  # no worker answers


def repeat_lease(connection: Connection, names: Names, lease_s: float, queues: Collection[str]) -> None:
    """After the change: reaches workers that started while the others were asked."""
    request = {"do": SHORTEN_LEASE, "seconds": lease_s, "queues": sorted(queues)}
    connection.post(names.control_workers, json.dumps(request).encode())


def read_answer(data: bytes) -> dict[str, Any] | None:
    """The JSON object in a worker's answer, or None."""
    try:
        value = read_json(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class EventStream:
    """Live events: `async for event in EventStream(...).events()`. ADR 35."""

    def __init__(self, connection: Connection, names: Names, subjects: Iterable[str]) -> None:
        self._connection = connection
        self._names = names
        self._subjects = tuple(subjects)
        self._waiting: asyncio.Queue[LiveEvent | BrokerError] = asyncio.Queue()
        self._wants_jobs = any(names.kind_of_event(subject).startswith("job.") for subject in self._subjects)
        self._dropped = 0

    async def events(self, begun: Callable[[int], None] = lambda workers: None) -> AsyncGenerator[LiveEvent, None]:
        """Events without end, also after reconnects. `begun` is called with the number of workers that publish
        events by then.

        BrokerUnavailable when the connection is closed. AccessDenied when this user may not subscribe to the
        events, or not announce itself to the workers.
        """
        forget = self._connection.denials.on_denied(self._on_denied)
        announcing = asyncio.create_task(self._announce(begun))
        sids: list[int] = []
        try:
            sids += [await self._connection.nc.listen(subject, self._on_event) for subject in self._subjects]
            while not isinstance(event := await self._waiting.get(), BrokerError):
                if self._dropped:
                    event, self._dropped = replace(event, skipped=event.skipped + self._dropped), 0
                yield event
            raise event
        finally:
            forget()
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            for sid in sids:
                with contextlib.suppress(Exception):  # the connection is closed, and with it the subscription
                    await self._connection.nc.unlisten(sid)

    def _on_event(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        event = read_live(self._names.kind_of_event(subject), data, time.time())
        if event is None:
            return
        if self._waiting.qsize() >= MOST_WAITING:
            self._waiting.get_nowait()
            self._dropped += 1
        self._waiting.put_nowait(event)

    async def _announce(self, begun: Callable[[int], None]) -> None:
        try:
            answers = await ask_all(self._connection, self._names, WATCH)
        except BrokerError:
            answers = WorkerAnswers({}, [])
        begun(sum(bool(answer.get("ok")) for answer in answers.by_worker.values()))
        request = json.dumps({"do": WATCH}).encode()
        while not self._connection.closed.is_set():
            if self._connection.connected:
                self._connection.post(self._names.control_workers, request)
            await asyncio.sleep(ANNOUNCE_S)
        self._waiting.put_nowait(BrokerUnavailable("the server closed the connection"))

    def _on_denied(self, denied: PermissionDenied) -> None:
        if denied.subject in self._subjects:
            self._waiting.put_nowait(Violation("subscription", denied.subject).error())
        elif denied.subject == self._names.control_workers and self._wants_jobs:
            # Workers publish events of jobs only for watchers that they know of.
            self._waiting.put_nowait(Violation("publish", denied.subject).error())
