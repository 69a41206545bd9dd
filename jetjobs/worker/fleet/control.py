"""Answer control requests to this worker or to all workers: ping, quiet, stop, cancel, lease, watch."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jetjobs.define.router import Router
from jetjobs.jetstream.jobs.cancel_marks import CancelMarks
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.job import Job
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import Names
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.options import Spawn

Reply = dict[str, Any]
Handler = Callable[[dict[str, Any]], Reply | Awaitable[Reply]]
"""Called with the request on the worker's event loop. Its value is the reply; `ok` and `worker` are added."""

_log = logging.getLogger("jetjobs.worker")


class Control:
    """Subscribes to requests to all workers and to this one. A request is a JSON object with its name in `do`."""

    def __init__(self, connection: Connection, names: Names, key: str, spawn: Spawn) -> None:
        self._connection = connection
        self._names = names
        self._spawn = spawn
        self._handlers: dict[str, Handler] = {}
        self._key = key
        self._sids: list[int] = []
        self.subjects = (names.control_workers, names.control_worker(key))

    def on(self, word: str, handler: Handler) -> None:
        """Answer requests of that name. The handler may be a coroutine function; it must not block."""
        self._handlers[word] = handler

    async def open(self) -> None:
        for subject in self.subjects:
            self._sids.append(await self._connection.nc.listen(subject, self._on_request))

    async def close(self) -> None:
        sids, self._sids = self._sids, []
        for sid in sids:
            with contextlib.suppress(Exception):  # a lost connection has ended the subscription already
                await self._connection.nc.unlisten(sid)

    def _on_request(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if self._sids:
            self._spawn(self._answer(reply, data))

    async def _answer(self, reply_to: str, data: bytes) -> None:
        reply = {"worker": self._key, "ok": True, **await self._handle(data)}
        if reply_to:
            self._connection.post(reply_to, json.dumps(reply, default=str).encode())

    async def _handle(self, data: bytes) -> Reply:
        try:
            request = read_json(data)
            word = str(request["do"])
        except (ValueError, KeyError, TypeError):
            return self._refuse('a request must be a JSON object with the key "do"')
        handler = self._handlers.get(word)
        if handler is None:
            return self._refuse(f"unknown request {word!r}")
        try:
            reply = handler(request)
            return await reply if inspect.isawaitable(reply) else reply
        except Exception as error:
            extra = {"event": "control.failed", "word": word}
            _log.error("a control request failed", exc_info=error, extra=extra)
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _refuse(self, why: str) -> Reply:
        return {"ok": False, "error": why, "words": sorted(self._handlers)}


def handle_cancel(leases: LeaseTable, registry: Router, request: Mapping[str, Any]) -> Reply:
    """Interrupt the requested run if this worker executes it.

    In the reply, `holds` says whether this worker holds the job, `runs` whether its task has started, and `stops`
    whether the task was interrupted. The worker knows the cancel mark by now, so a job that has not started will
    not start.
    """
    attempt = _find(leases, str(request.get("id", "")), str(request.get("run", "")))
    if attempt is None or attempt.job is None:
        return {"holds": False}
    if not attempt.running:
        return {"holds": True, "runs": False}
    return {"holds": True, "runs": True, "stops": _stop(attempt, attempt.job, registry)}


def stop_flow(leases: LeaseTable, registry: Router, marks: CancelMarks, fkey: str) -> None:
    """Interrupt the running jobs of a flow that was cancelled."""
    for attempt in leases.held:
        job = attempt.job
        if job is not None and job.key == fkey and attempt.running and marks.flow_of(job) is not None:
            _stop(attempt, job, registry)


def _stop(attempt: Attempt, job: Job, registry: Router) -> bool:
    """Interrupt a running task. False for one in a thread, which cannot be stopped: cancelling the attempt would
    only hide that its code is still running."""
    task = registry.tasks.get(job.task)
    stops = task is not None and (task.is_async or task.isolated)
    if stops:
        attempt.cancel_running()
    return stops


def _find(leases: LeaseTable, job_id: str, run: str) -> Attempt | None:
    for attempt in leases.held:
        if attempt.job is not None and attempt.job.id == job_id and attempt.job.run == run:
            return attempt
    return None
