"""Assert which jobs are enqueued on the server, and show the closest ones when an assertion fails."""

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
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.model.errors import DeliveryError
from jetjobs.model.job import Job, JobState
from jetjobs.model.masking import read_paths
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import as_time, read_record
from jetjobs.model.wire.subjects import PULLED, WAITING, JobSubject
from jetjobs.testing.matching import Wanted, differences, effective_arguments, shown_argument, want
from jetjobs.testing.sync_bridge import run_with_client

SHOWN = 5
"""The most jobs shown in a message."""

TaskLike = Task[Any, Any] | TaskCall[Any, Any] | str


@public("jetjobs.testing")
class EnqueuedJob(NamedTuple):
    """A live job on the server."""

    id: str
    task: str
    queue: str
    state: JobState
    """`queued` (also while it runs), `scheduled` or `retrying`."""
    args: dict[str, Any]
    """The arguments by name, as the task will receive them, with defaults filled in."""
    priority: str
    attempt: int
    due_at: datetime | None
    headers: dict[str, str]
    """The headers set by the caller."""
    job: Job
    """The complete job."""

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
    """The live jobs in all queues that match, oldest first. Jobs that have ended are not included.

    `task` may be a task, its name, or a task with options. Arguments that are not given match any value.
    InvalidArguments for an argument that the task does not take.
    """
    __tracebackhide__ = True
    wanted = want(app, task, args, kwargs)
    return [
        found
        for found in _all(app)
        if wanted.matches_task(found.task) and not differences(wanted, found.job, found.args)
    ]


def assert_enqueued(app: JetJobs, task: TaskLike, /, *args: Any, **kwargs: Any) -> EnqueuedJob:
    """The oldest job that `enqueued` finds; AssertionError with the closest jobs when there is none."""
    __tracebackhide__ = True
    wanted = want(app, task, args, kwargs)
    everything = _all(app)
    near: list[tuple[EnqueuedJob, list[str]]] = []
    for found in everything:
        if wanted.matches_task(found.task):
            differing = differences(wanted, found.job, found.args)
            if not differing:
                return found
            near.append((found, differing))
    raise AssertionError(_not_enqueued(wanted, near, everything))


def refute_enqueued(app: JetJobs, task: TaskLike | None = None, /, *args: Any, **kwargs: Any) -> None:
    """AssertionError with the jobs that `enqueued` finds, if it finds any."""
    __tracebackhide__ = True
    found = enqueued(app, task, *args, **kwargs)
    if found:
        wanted = want(app, task, args, kwargs)
        count = "1 job is" if len(found) == 1 else f"{len(found)} jobs are"
        lines = [f"{count} enqueued, expected none: {wanted}"]
        lines += [f"  {job}" for job in found[:SHOWN]]
        lines += [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise AssertionError("\n".join(lines))


def _not_enqueued(wanted: Wanted, near: list[tuple[EnqueuedJob, list[str]]], everything: list[EnqueuedJob]) -> str:
    lines = [f"not enqueued: {wanted}"]
    if near:
        lines.append(f"found {len(near)} of this task:")
        for found, differing in sorted(near, key=lambda pair: len(pair[1]))[:SHOWN]:
            lines.append(f"  {found}")
            lines += [f"    {line}" for line in differing]
        lines += [f"  and {len(near) - SHOWN} more"] if len(near) > SHOWN else []
    others = Counter(found.task for found in everything if not wanted.matches_task(found.task))
    if others:
        lines.append("of other tasks: " + ", ".join(f"{count} {task}" for task, count in sorted(others.items())))
    elif not near:
        lines.append("no job is enqueued; jobs that have ended do not count")
    return "\n".join(lines)


def _all(app: JetJobs) -> list[EnqueuedJob]:
    found = run_with_client(app, _read)
    return [_shown(app, job, lane) for job, lane in found]


async def _read(client: JetStreamClient) -> list[tuple[Job, str]]:
    jobs: list[tuple[Job, str]] = []
    for queue in await list_queues(client.connection, client.names):
        stream = client.names.work_stream(queue)
        messages = scan(client.connection, stream, client.names.queue_filter(queue))
        jobs += [job async for message in messages if (job := await _job_in(client, message)) is not None]
    return sorted(jobs, key=lambda found: found[0].enqueued_at)


async def _job_in(client: JetStreamClient, message: StoredMessage) -> tuple[Job, str] | None:
    """The job and its current lane; None for a message that is not a readable job."""
    try:
        lane = JobSubject.parse(message.subject).lane
        if lane not in (*PULLED, *WAITING):
            return None
        job = decode(message)
        if job.payload:
            job = job._replace(body=await client.payloads.get(job.payload))
    except (ValueError, DeliveryError):
        return None
    return (job._replace(lane=_priority(message)) if lane in WAITING else job), lane


def _priority(message: StoredMessage) -> str:
    """The priority of a waiting job, which the target of its schedule holds."""
    try:
        return JobSubject.parse(message.headers.get(h.SCHEDULE_TARGET, "")).lane
    except ValueError:
        return "normal"


def _shown(app: JetJobs, job: Job, lane: str) -> EnqueuedJob:
    state = WAITING_STATES.get(lane, JobState.QUEUED)
    task = app.tasks.get(job.task)
    arguments = read_record(job.body) if task is None else effective_arguments(task, job.body)
    if task is not None and task.own_headers:  # a job published without jetjobs does not name its secrets
        job = job._replace(headers={**job.headers, **task.own_headers})
    return EnqueuedJob(
        job.id, job.task, job.queue, state, arguments, job.lane, job.attempt, as_time(job.due_at), job.carried, job
    )
