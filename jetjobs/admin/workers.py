"""`app.workers`: list the live workers, quiet them, stop them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.workers.control_client import ANSWER_S, WorkerAnswers, ask_all, read_answer
from jetjobs.jetstream.workers.registry import list_tasks, list_workers
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import BrokerUnavailable, WorkerNotFound, WorkerSilent
from jetjobs.model.public import public
from jetjobs.model.views.audit import REFUSED
from jetjobs.model.views.task_info import TaskDefinition, TaskInfo, known_tasks
from jetjobs.model.views.worker_info import WorkerRecord


@public("jetjobs.admin")
class Workers:
    """The workers of one namespace, as the registry has them.

    A worker that stops leaves the registry at once; a worker that dies leaves it within 15 seconds.
    """

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._connection = jetstream.connection
        self._audit = jetstream.audit
        self._names = jetstream.names

    async def tasks(self, declared: Iterable[TaskDefinition] = ()) -> list[TaskInfo]:
        """The tasks that the live workers know, by name, with their definitions, and those of `declared`."""
        workers = await list_workers(self._connection, self._names)
        return known_tasks(workers, await list_tasks(self._connection, self._names), declared)

    async def list(self, queue: str | None = None) -> list[WorkerRecord]:
        """The live workers, by key; with `queue`, only those that serve it."""
        found = await list_workers(self._connection, self._names)
        return [record for record in found if queue is None or queue in record.queues]

    async def get(self, name: str) -> WorkerRecord:
        """The worker with that key, or else the only worker with that name.

        WorkerNotFound when no worker has it, or several workers share the name.
        """
        found = await self.list()
        matches = [record for record in found if record.key == name] or [r for r in found if r.name == name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            keys = ", ".join(record.key for record in matches)
            raise WorkerNotFound(f"several workers are named {name!r}", hint=f"use one of {keys}")
        raise WorkerNotFound(f"no running worker {name!r}", hint="list them with `jetjobs workers list`")

    async def quiet(
        self, name: str, *, by: str = "", reason: str = "", timeout: Duration = ANSWER_S
    ) -> dict[str, Any]:
        """Make a worker take no new jobs. It finishes its running jobs and stays until it is stopped.

        Returns the worker's answer.
        """
        return await self._change(name, "quiet", {}, by, reason, timeout)

    async def stop(
        self, name: str, *, now: bool = False, by: str = "", reason: str = "", timeout: Duration = ANSWER_S
    ) -> dict[str, Any]:
        """Stop a worker as a signal would: gracefully, or at once with `now`.

        Returns the worker's answer, which it sends before it has stopped.
        """
        return await self._change(name, "stop", {"now": now}, by, reason, timeout)

    async def _change(
        self, name: str, command: str, body: Mapping[str, Any], by: str, reason: str, timeout: Duration
    ) -> dict[str, Any]:
        limit = to_duration("timeout", timeout)
        async with self._audit.action(f"worker.{command}", name, by=by, reason=reason) as outcome:
            answer = await self.request(name, command, body, timeout=limit)
            if not answer.get("ok"):
                outcome.set(REFUSED, str(answer.get("error", "")))
            elif body.get("now"):
                outcome.detail = "at once"
        return answer

    async def request(
        self, name: str, command: str, body: Mapping[str, Any] | None = None, *, timeout: Duration = ANSWER_S
    ) -> dict[str, Any]:
        """Send a command to one worker and return its answer.

        WorkerNotFound when the worker is gone, WorkerSilent when it does not answer in time.
        """
        timeout_s = to_duration("timeout", timeout).total_seconds()
        key = (await self.get(name)).key
        request = json.dumps({**(body or {}), "do": command}).encode()
        try:
            reply = await self._connection.ask(self._names.control_worker(key), request, None, timeout_s)
        except BrokerUnavailable as error:
            if error.code == 503:
                hint = "list the running workers with `jetjobs workers list`"
                raise WorkerNotFound(f"worker {key} is gone", hint=hint) from error
            if not self._connection.connected:
                raise
            raise WorkerSilent(
                f"worker {key} has not answered within {timeout_s:g} s",
                hint=f"its event loop is blocked or it has just died: `jetjobs workers show {key}` shows which",
            ) from error
        return read_answer(reply) or {"worker": key, "ok": False, "error": "the answer is not a JSON object"}

    async def request_all(
        self, command: str, body: Mapping[str, Any] | None = None, *, timeout: Duration = ANSWER_S
    ) -> WorkerAnswers:
        """Send a command to every worker and collect the answers."""
        timeout_s = to_duration("timeout", timeout).total_seconds()
        return await ask_all(self._connection, self._names, command, body or {}, timeout_s=timeout_s)
