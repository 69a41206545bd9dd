"""Ask workers something over core NATS: one by its name, or all of them, and gather what they answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import from_exception
from jetjobs.jetstream.protocol import read_status
from jetjobs.jetstream.registry import workers_on
from jetjobs.model.errors import BrokerUnavailable, WorkerNotFound, WorkerSilent
from jetjobs.model.names import Names
from jetjobs.model.reading import read_json

ANSWER_S = 2.0
_HUSH_S = 0.1
"""Nobody has answered for so long: then those who could have, as far as the registry does not know better."""


class Answers(NamedTuple):
    """What workers said, by their keys, and the keys of those that are registered and said nothing."""

    by_worker: dict[str, dict[str, Any]]
    silent: list[str]


async def ask_worker(
    connection: Connection,
    names: Names,
    key: str,
    word: str,
    body: dict[str, Any] | None = None,
    *,
    timeout_s: float = ANSWER_S,
) -> dict[str, Any]:
    """The answer of one worker. WorkerNotFound when nobody listens under that key, WorkerSilent when none came."""
    request = json.dumps({**(body or {}), "do": word}).encode()
    try:
        reply = await connection.ask(names.control_worker(key), request, None, timeout_s)
    except BrokerUnavailable as error:
        if error.code == 503:
            raise WorkerNotFound(f"worker {key} is gone", hint="jetjobs workers list") from error
        if not connection.connected:
            raise
        raise WorkerSilent(
            f"worker {key} has not answered within {timeout_s:g} s",
            hint="its event loop is blocked or it has just died: jetjobs workers show tells",
        ) from error
    return _read(reply) or {"worker": key, "ok": False, "error": "an answer that is no JSON object"}


async def ask_all(
    connection: Connection,
    names: Names,
    word: str,
    body: dict[str, Any] | None = None,
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
        request = json.dumps({**(body or {}), "do": word}).encode()
        if not connection.post(names.control_workers, request, inbox):
            raise BrokerUnavailable("ask the workers: not connected")
        expected: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                expected = {record.key for record in await workers_on(connection, names)}
                while not nobody and (not expected or expected - answers.keys()):
                    news.clear()
                    if expected:
                        await news.wait()
                        continue
                    # Nobody is registered, and somebody listens: a worker of an older set-up, perhaps.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_HUSH_S):
                            await news.wait()
                            continue
                    break
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
