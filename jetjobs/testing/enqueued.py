"""What is enqueued: read it from the server, and say what was found instead where it is not as wanted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, NamedTuple

from jetjobs.app import JetJobs
from jetjobs.define.task import Task, TaskCall
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import WAITING_STATES
from jetjobs.jetstream.messages.codec import decode
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.topology import list_queues
from jetjobs.model.errors import DeliveryError
from jetjobs.model.job import Job, JobState
from jetjobs.model.masking import read_paths
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.lenient_json import as_time, read_json
from jetjobs.testing.matching import Wanted, differences, effective_arguments, shown_argument, want
from jetjobs.testing.sync_bridge import ask

SHOWN = 5
"""So many of the nearest jobs are shown in full."""

TaskLike = Task[Any, Any] | TaskCall[Any, Any] | str


@public("jetjobs.testing")
class EnqueuedJob(NamedTuple):
    """A live job as it stands on the server."""

    id: str
    task: str
    queue: str
    state: JobState
    """queued, also while it runs; scheduled; or retrying."""
    args: dict[str, Any]
    """By name, as the task will get them: defaults are filled in."""
    priority: str
    attempt: int
    due_at: datetime | None
    headers: dict[str, str]
    """The caller's own."""
    job: Job
    """All else there is to know."""

    def __repr__(self) -> str:
        return f"<EnqueuedJob {self}>"

    def __str__(self) -> str:
        paths = read_paths(self.job.headers.get(h.SECRET, ""))
        shown = [f"{name}={shown_argument(name, value, paths)}" for name, value in self.args.items()]
        call = f"{self.task}({', '.join(shown)})"
        due = ""
        if self.due_at is not None and self.state is not JobState.QUEUED:
            due = f" for {self.due_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{call}  {self.state}{due} in queue {self.queue!r}, id {self.id}"


def enqueued(app: JetJobs, task: TaskLike | None = None, /, *args: Any, **kwargs: Any) -> list[EnqueuedJob]:
    """The live jobs in all queues that fit, oldest first.

    `task` may be a task, its name, or a task with options; arguments that are not given may be anything.
    Jobs that have ended are not among them. InvalidArguments for an argument that the task does not take.
    """
    __tracebackhide__ = True
    wanted = want(app, task, args, kwargs)
    return [one for one in _all(app) if wanted.fits_task(one.task) and not differences(wanted, one.job, one.args)]


def assert_enqueued(app: JetJobs, task: TaskLike, /, *args: Any, **kwargs: Any) -> EnqueuedJob:
    """The oldest job that `enqueued` finds; AssertionError with what was found instead when there is none."""
    __tracebackhide__ = True
    wanted = want(app, task, args, kwargs)
    everything = _all(app)
    near: list[tuple[EnqueuedJob, list[str]]] = []
    for one in everything:
        if wanted.fits_task(one.task):
            differing = differences(wanted, one.job, one.args)
            if not differing:
                return one
            near.append((one, differing))
    raise AssertionError(_nothing_fits(wanted, near, everything))


def refute_enqueued(app: JetJobs, task: TaskLike | None = None, /, *args: Any, **kwargs: Any) -> None:
    """AssertionError with the jobs that `enqueued` finds, if there are any."""
    __tracebackhide__ = True
    found = enqueued(app, task, *args, **kwargs)
    if found:
        wanted = want(app, task, args, kwargs)
        count = "a job is" if len(found) == 1 else f"{len(found)} jobs are"
        lines = [f"{count} enqueued that should not be: {wanted}"]
        lines += [f"  {one}" for one in found[:SHOWN]]
        lines += [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise AssertionError("\n".join(lines))


def _nothing_fits(wanted: Wanted, near: list[tuple[EnqueuedJob, list[str]]], everything: list[EnqueuedJob]) -> str:
    lines = [f"not enqueued: {wanted}"]
    if near:
        lines.append(f"found {len(near)} of this task:")
        for one, differing in sorted(near, key=lambda pair: len(pair[1]))[:SHOWN]:
            lines.append(f"  {one}")
            lines += [f"    {line}" for line in differing]
        lines += [f"  and {len(near) - SHOWN} more"] if len(near) > SHOWN else []
    others = Counter(one.task for one in everything if not wanted.fits_task(one.task))
    if others:
        lines.append("of other tasks: " + ", ".join(f"{count} {task}" for task, count in sorted(others.items())))
    elif not near:
        lines.append("nothing is enqueued; a job that has ended is not enqueued any more")
    return "\n".join(lines)


def _all(app: JetJobs) -> list[EnqueuedJob]:
    found = ask(app, _read)
    return [_shown(app, job, lane) for job, lane in found]


async def _read(client: JetStreamClient) -> list[tuple[Job, str]]:
    jobs: list[tuple[Job, str]] = []
    for queue in await list_queues(client.connection, client.names):
        stream = client.names.work_stream(queue)
        messages = scan(client.connection, stream, client.names.queue_filter(queue))
        jobs += [job async for message in messages if (job := await _job_in(client, message)) is not None]
    return sorted(jobs, key=lambda found: found[0].enqueued_at)


async def _job_in(client: JetStreamClient, message: StoredMessage) -> tuple[Job, str] | None:
    """The job and the lane it stands in; None for what is no job."""
    lane = message.subject.split(".")[3]
    if lane not in (*n.PULLED, *n.WAITING):
        return None
    try:
        job = decode(message)
        if job.payload:
            job = job._replace(body=await client.payloads.get(job.payload))
    except DeliveryError:
        return None
    if lane in n.WAITING:
        target = message.headers.get(h.SCHEDULE_TARGET, "").split(".")
        job = job._replace(lane=target[3] if len(target) > 3 else "normal")
    return job, lane


def _shown(app: JetJobs, job: Job, lane: str) -> EnqueuedJob:
    state = WAITING_STATES.get(lane, JobState.QUEUED)
    task = app.tasks.get(job.task)
    arguments = _raw(job.body) if task is None else effective_arguments(task, job.body)
    if task is not None and task.own_headers:  # a hand-made job does not say what is secret in it
        job = job._replace(headers={**job.headers, **task.own_headers})
    return EnqueuedJob(
        job.id, job.task, job.queue, state, arguments, job.lane, job.attempt, as_time(job.due_at), job.carried, job
    )


def _raw(body: bytes) -> dict[str, Any]:
    try:
        found = read_json(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
