"""Enqueue in the name of a caller, such as the bearer of a token, and at most once for an id of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jetjobs.define.enqueue_report import EnqueueReport
from jetjobs.define.handle import JobHandle
from jetjobs.define.task import JobRequest
from jetjobs.enqueue import Identity
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.model.errors import JobConflict

if TYPE_CHECKING:
    from jetjobs.app import JetJobs


class Producer:
    """Stores jobs of an open app with `Jetjobs-Producer` set to `name`."""

    def __init__(self, app: JetJobs, name: str) -> None:
        self._app = app
        self._enqueuer = app.enqueuer(name)

    async def send(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """As `app.send`."""
        return await self._app.send_by(self._enqueuer, request)

    async def send_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """As `app.enqueue_many`."""
        return await self._app.send_many_by(self._enqueuer, requests)

    async def send_once(self, request: JobRequest[Any], identity: Identity) -> JobHandle[Any]:
        """Store the job, or return the handle of the one that has its id, live or ended, as a duplicate.

        JobConflict if that job is another one: its run differs. The job's record is kept for `identity.keep_s`
        after its end; a repeat after that is a new job.
        """
        queue, task = request.options.get("queue", request.task.queue), request.task.name
        locator, job_id = self._app.jetstream.locator, identity.job_id
        # First where it lives, then where it ends: a job that ends in between is found in the second place. One
        # that is stored and ends between these reads and the publish has a message id that the server still knows.
        live = await locator.find_live(queue, task, job_id)
        places = {(queue, task)} if live is not None else await self._places(job_id)
        if not places:
            handle = await self._app.send_by(self._enqueuer, request, identity)
            if not handle.duplicate:
                return handle
        # Perhaps replayed into another queue.
        where = (queue, task) if not places or (queue, task) in places else min(places)
        status = await locator.status(*where, job_id)
        if status.state is not None and not is_repeat(status.run, status.replays, identity.run):
            raise _conflict(job_id)
        if where != (queue, task):
            request = request._replace(options={**request.options, "queue": where[0]})
        return self._enqueuer.existing(request, job_id, status.run)

    async def _places(self, job_id: str) -> set[tuple[str, str]]:
        jetstream = self._app.jetstream
        return await jetstream.locator.locate(job_id, await list_queues(jetstream.connection, jetstream.names))


def is_repeat(found: str, replays: Sequence[Mapping[str, Any]], run: str) -> bool:
    """Whether a job with this run, or the one that it was replayed from, is that run."""
    return found == run or any(replay.get("run") == run for replay in replays)


def _conflict(job_id: str) -> JobConflict:
    return JobConflict(
        f"job {job_id} exists with other content",
        job_id=job_id,
        hint="use the same idempotency key only to repeat the same request",
    )
