"""Store the webhook of a job that has ended, as a job of queue `webhooks`. ADR 57."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from jetjobs.jetstream import topology
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.topology_plan import plan
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import AccessDenied, TopologyMissing
from jetjobs.model.events import Observer, SettleFailed
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.settings import QueueSettings
from jetjobs.model.webhooks.message import MAX_RESULT, encoded, event_of
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import NO_KEY, JobId, webhook_id
from jetjobs.model.wire.subjects import Names
from jetjobs.model.wire.validation import WEBHOOK_TASK, WEBHOOKS

TIMEOUT_S = 15.0


class Webhooks:
    """Used by every process that ends jobs: workers, the leader, and those that cancel."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        names: Names,
        settings: QueueSettings,
        observe: Observer,
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._settings = settings
        self._observe = observe
        self._creating = asyncio.Lock()

    async def add(
        self,
        job: Job,
        end: Mapping[str, Any],
        timeout_s: float = TIMEOUT_S,
        owned: Callable[[], bool] = lambda: True,
    ) -> None:
        """Store the webhook of a job with a callback. `end` is as in `event_of`.

        A second one of the same run is not stored while the first is alive. BrokerError if it could not be stored,
        unless this user may not store it: that is only reported.
        """
        event = event_of(job, end, min(MAX_RESULT, self._connection.inline_limit // 2))
        if not event:
            return
        webhook = self._outgoing(job, event)
        try:
            try:
                await self._store(webhook, timeout_s, owned)
            except TopologyMissing:
                async with self._creating:  # the first of many jobs that end at once creates the queue
                    await self._create_and_store(webhook, timeout_s, owned)
        except AccessDenied as error:
            # A missing permission lasts, and each such job would hold a slot: producers could stop the worker.
            self._observe(SettleFailed(job.queue, job.task, job.id, str(error), "webhook"))

    def _outgoing(self, job: Job, message: Mapping[str, Any]) -> Outgoing:
        uid = webhook_id(job.queue, job.task, job.id, job.run)
        headers = {h.PRODUCER: "jetjobs", h.PARENT: job.id, h.ROOT: lineage_of(job.headers)[1] or job.id}
        body = encoded({"url": job.headers[h.CALLBACK], "message": message})
        job = Job(uid, WEBHOOK_TASK, WEBHOOKS, "normal", body, run=job.run, headers=headers)
        guard = self._names.job_anywhere(WEBHOOKS, WEBHOOK_TASK, JobId(NO_KEY, uid))
        return self._publisher.outgoing(job, None, guard)

    async def _store(self, webhook: Outgoing, timeout_s: float, owned: Callable[[], bool]) -> None:
        try:
            stream = self._names.work_stream(WEBHOOKS)
            await self._publisher.store(stream, webhook, timeout_s=timeout_s, owned=owned)
        except WrongLastSequence:
            return  # it is there already

    async def _create_and_store(self, webhook: Outgoing, timeout_s: float, owned: Callable[[], bool]) -> None:
        try:
            await self._store(webhook, timeout_s, owned)
        except TopologyMissing:
            replicas = 3 if self._connection.clustered else 1
            wanted = plan(self._names, [WEBHOOKS], self._settings, replicas)
            changes = await topology.inspect(self._connection, wanted, keep_replicas=True)
            missing = [change for change in changes if change.action == "create"]
            await topology.apply(self._connection, self._publisher, self._names, missing)
            await self._store(webhook, timeout_s, owned)
