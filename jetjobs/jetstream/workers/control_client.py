"""Talk to workers over core NATS: ask one by its name, or all of them, and hear what happens while it does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.jetstream.transport.nats_client import read_status
from jetjobs.jetstream.workers.registry import workers_on
from jetjobs.model.errors import BrokerError, BrokerUnavailable, WorkerNotFound, WorkerSilent
from jetjobs.model.views.live_events import ANNOUNCE_S, WATCH, LiveEvent, read_live
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import Names

ANSWER_S = 2.0
_NOTHING: Mapping[str, Any] = {}
MOST_WAITING = 10_000
"""Of a reader that is slower than the events the oldest are dropped, and the next says how many."""


class Answers(NamedTuple):
    """What workers said, by their keys, and the keys of those that are registered and said nothing."""

    by_worker: dict[str, dict[str, Any]]
    silent: list[str]


async def ask_all(
    connection: Connection,
    names: Names,
    word: str,
    body: Mapping[str, Any] = _NOTHING,
    *,
    timeout_s: float = ANSWER_S,
) -> Answers:
    """The answers of all workers: waits for those that are registered, but no longer than `timeout_s`."""
    answers: dict[str, dict[str, Any]] = {}
    news = asyncio.Event()
    nobody = False

    def on_reply(_: str, reply: str, data: bytes, headers: bytes | None) -> None:
        nonlocal nobody
        if headers is not None and not data and read_status(headers)[0] == "503":
            nobody = True
        elif (answer := _read(data)) is not None:
            answers[str(answer.get("worker", f"?{len(answers)}"))] = answer
        news.set()

    inbox = connection.nc.new_inbox()
    try:
        sid = await connection.nc.listen(inbox, on_reply)
    except nats.errors.Error as error:
        raise from_exception(error, "ask the workers") from error
    try:
        request = json.dumps({**body, "do": word}).encode()
        if not connection.post(names.control_workers, request, inbox):
            raise BrokerUnavailable("ask the workers: not connected")
        expected: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                expected = {record.key for record in await workers_on(connection, names)}
                while not nobody and expected - answers.keys():
                    news.clear()
                    await news.wait()
    finally:
        with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
            await connection.nc.unlisten(sid)
    return Answers(answers, sorted(expected - answers.keys()))


def _read(data: bytes) -> dict[str, Any] | None:
    try:
        value = read_json(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Workers:
    """`app.workers`: those of one namespace, as the registry has them: who stopped is gone at once, who died in
    15 s."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._names = names

    async def list(self, queue: str | None = None) -> list[WorkerRecord]:
        """Those that live, by name; only those of `queue` if one is named."""
        found = await workers_on(self._connection, self._names)
        return [record for record in found if queue is None or queue in record.queues]

    async def get(self, name: str) -> WorkerRecord:
        """The worker that the registry has under `name`, or else the only one that calls itself so. WorkerNotFound
        when there is none, or more than one."""
        found = await self.list()
        matches = [record for record in found if record.key == name] or [r for r in found if r.name == name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            keys = ", ".join(record.key for record in matches)
            raise WorkerNotFound(f"several workers are named {name!r}", hint=f"name one of {keys}")
        raise WorkerNotFound(f"there is no worker {name!r}", hint="jetjobs workers list")

    async def quiet(self, name: str, *, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Let it take no new work. It finishes what runs, and stays until it is stopped. Its answer."""
        return await self.ask(name, "quiet", {}, timeout_s=timeout_s)

    async def stop(self, name: str, *, now: bool = False, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Let it end as by a signal: in order, or at once with `now`. Its answer, given before it has ended."""
        return await self.ask(name, "stop", {"now": now}, timeout_s=timeout_s)

    async def ask(
        self, name: str, word: str, body: Mapping[str, Any] = _NOTHING, *, timeout_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """The answer of one worker. WorkerNotFound when it is gone, WorkerSilent when none came."""
        key = (await self.get(name)).key
        request = json.dumps({**body, "do": word}).encode()
        try:
            reply = await self._connection.ask(self._names.control_worker(key), request, None, timeout_s)
        except BrokerUnavailable as error:
            if error.code == 503:
                raise WorkerNotFound(f"worker {key} is gone", hint="jetjobs workers list") from error
            if not self._connection.connected:
                raise
            raise WorkerSilent(
                f"worker {key} has not answered within {timeout_s:g} s",
                hint="its event loop is blocked or it has just died: jetjobs workers show tells",
            ) from error
        return _read(reply) or {"worker": key, "ok": False, "error": "an answer that is no JSON object"}

    async def ask_all(
        self, word: str, body: Mapping[str, Any] = _NOTHING, *, timeout_s: float = ANSWER_S
    ) -> Answers:
        """Ask every worker something, and gather the answers."""
        return await ask_all(self._connection, self._names, word, body, timeout_s=timeout_s)


class Watching:
    """One watcher: `async for event in Watching(...).events()`. ADR 35."""

    def __init__(self, connection: Connection, names: Names, subjects: Iterable[str]) -> None:
        self._connection = connection
        self._names = names
        self._subjects = subjects
        self._waiting: asyncio.Queue[LiveEvent | None] = asyncio.Queue()
        self._dropped = 0

    async def events(self, begun: Callable[[int], None] = lambda workers: None) -> AsyncGenerator[LiveEvent, None]:
        """Without end, through reconnects. `begun` is told how many workers have heard of us by then.

        BrokerUnavailable when the connection is closed for good.
        """
        sids = [await self._connection.nc.listen(subject, self._on_event) for subject in self._subjects]
        announcing = asyncio.create_task(self._announce(begun))
        try:
            while (event := await self._waiting.get()) is not None:
                if self._dropped:
                    event, self._dropped = event._replace(skipped=event.skipped + self._dropped), 0
                yield event
            raise BrokerUnavailable("the server closed the connection for good")
        finally:
            announcing.cancel()
            await asyncio.gather(announcing, return_exceptions=True)
            for sid in sids:
                with contextlib.suppress(Exception):  # the connection is gone, and the subscription with it
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
            answers = Answers({}, [])
        begun(sum(bool(answer.get("ok")) for answer in answers.by_worker.values()))
        request = json.dumps({"do": WATCH}).encode()
        while not self._connection.closed.is_set():
            if self._connection.connected:
                self._connection.post(self._names.control_workers, request)
            await asyncio.sleep(ANNOUNCE_S)
        self._waiting.put_nowait(None)
