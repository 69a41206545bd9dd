"""`app.workers`: which workers live, what they do, and how to quiet or stop them."""

from __future__ import annotations

from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.control import ANSWER_S, Answers, ask_all, ask_worker
from jetjobs.jetstream.registry import workers_on
from jetjobs.model.errors import WorkerNotFound
from jetjobs.model.presence import WorkerRecord


class Workers:
    """The workers of one namespace, as the registry has them: who stopped is gone at once, who died in 15 s."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    async def list(self, queue: str | None = None) -> list[WorkerRecord]:
        """Those that live, by name; only those of `queue` if one is named."""
        found = await workers_on(self._jetstream.connection, self._jetstream.names)
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
        return await self._ask(name, "quiet", {}, timeout_s)

    async def stop(self, name: str, *, now: bool = False, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Let it end as by a signal: in order, or at once with `now`. Its answer, given before it has ended."""
        return await self._ask(name, "stop", {"now": now}, timeout_s)

    async def ask_all(
        self, word: str, body: dict[str, Any] | None = None, *, timeout_s: float = ANSWER_S
    ) -> Answers:
        """Ask every worker something, and gather the answers."""
        jetstream = self._jetstream
        return await ask_all(jetstream.connection, jetstream.names, word, body, timeout_s=timeout_s)

    async def _ask(self, name: str, word: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        record = await self.get(name)
        jetstream = self._jetstream
        return await ask_worker(jetstream.connection, jetstream.names, record.key, word, body, timeout_s=timeout_s)
