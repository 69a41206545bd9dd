"""Run all ready jobs with a real worker until none is left, and report the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.transport import api
from jetjobs.model.durations import Duration, show_duration, to_duration
from jetjobs.model.events import Event, JobFinished
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.subjects import PULLED, JobSubject
from jetjobs.testing.clock import bring_forward
from jetjobs.testing.server import working
from jetjobs.worker.worker import Worker

_TRACES = 3
"""The most failures shown with their traceback."""


@public("jetjobs.testing")
class JobsFailed(AssertionError):
    """Jobs failed in a drain. `failures` has one entry per failure, `drained` is the complete report."""

    def __init__(self, failures: list[JobFinished], drained: Drained) -> None:
        super().__init__(_failure_text(failures))
        self.failures = failures
        self.drained = drained


@public("jetjobs.testing")
@dataclass
class Drained:
    """The report of a drain: one entry per attempt, in the order in which attempts ended."""

    finished: list[JobFinished] = field(default_factory=list)

    @property
    def succeeded(self) -> list[JobFinished]:
        return self._with("succeeded")

    @property
    def retried(self) -> list[JobFinished]:
        """Attempts that failed and will be retried."""
        return self._with("retried")

    @property
    def snoozed(self) -> list[JobFinished]:
        return self._with("snoozed")

    @property
    def parked(self) -> list[JobFinished]:
        """Jobs that wait for a worker that knows their task."""
        return self._with("parked")

    @property
    def dead(self) -> list[JobFinished]:
        """Jobs that became dead letters."""
        return self._with("dead_lettered")

    def _with(self, outcome: str) -> list[JobFinished]:
        return [event for event in self.finished if event.outcome == outcome]

    def __repr__(self) -> str:
        counts = ("succeeded", "retried", "snoozed", *(("parked",) if self.parked else ()), "dead")
        return f"<Drained {' '.join(f'{name}={len(getattr(self, name))}' for name in counts)}>"


async def drain(
    app: JetJobs,
    queue: str | Sequence[str] | None = None,
    *,
    retries: bool = False,
    check: bool = True,
    slots: int | None = None,
    timeout: Duration = "60s",
) -> Drained:
    """Run every ready job, and the jobs they enqueue, with a real worker; return when none is left.

    Jobs scheduled for later do not run. With `retries`, failed jobs are retried at once until they end. With
    `check`, JobsFailed when an attempt fails, or, with `retries`, when a job becomes a dead letter, and when the
    app does not know the task of a job. `queue` is one queue or several; by default, the queues of the app's
    tasks. AssertionError after `timeout`.
    """
    __tracebackhide__ = True
    queues = list(app.task_queues) if queue is None else [queue] if isinstance(queue, str) else list(queue)
    limit_s = to_duration("timeout", timeout, of="drain: ").total_seconds()
    drained = Drained()

    def watch(event: Event) -> None:
        if isinstance(event, JobFinished):
            drained.finished.append(event)

    app.observe(watch)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if not app.is_open:
                await stack.enter_async_context(app)
            app.jetstream.connection.check_loop()
            worker = app.worker(queues=dict.fromkeys(queues), slots=slots, name="drain", schedules=False)
            await stack.enter_async_context(working(worker))
            await _until_done(app.jetstream, worker, drained, retries, limit_s)
    finally:
        app.forget(watch)
    failures = [*([] if retries else drained.retried), *drained.parked, *drained.dead]
    if check and failures:
        raise JobsFailed(failures, drained)
    return drained


async def _until_done(
    client: JetStreamClient, worker: Worker, drained: Drained, retries: bool, limit_s: float
) -> None:
    queues = list(worker.options.queues)
    try:
        async with asyncio.timeout(limit_s):
            while True:
                seen = await _until_empty(client, queues)
                await worker.slots.idle()  # so that the report has every attempt that has ended
                if not retries:
                    return
                # A retry that became due in the meantime no longer waits, but then the queue has changed.
                if not await _retry_now(client, queues, drained) and await _look_at(client, queues) == seen:
                    return
    except TimeoutError:
        left = [job for look in await _look_at(client, queues) for job in look.ready]
        shown = ", ".join(left[:10]) or "retrying jobs"
        raise AssertionError(f"not drained within {show_duration(limit_s)}: {shown} ({drained!r})") from None


async def _retry_now(client: JetStreamClient, queues: Sequence[str], drained: Drained) -> bool:
    """Make the retries of this drain due now. Returns whether there were any."""
    ids = {event.job_id for event in drained.retried}

    def ours(message: StoredMessage) -> bool:
        return h.ATTEMPT in message.headers and (job := _parse(message.subject)) is not None and job.job_id in ids

    return any([await bring_forward(client, queue, None, ours) for queue in queues])


@dataclass(frozen=True)
class _Look:
    """A queue at one point in time."""

    ready: tuple[str, ...]
    """Task and id of each job that is ready or running."""
    last_sequence: int


async def _until_empty(client: JetStreamClient, queues: Sequence[str]) -> list[_Look]:
    """Wait until no job is ready or running.

    A job may enqueue another into a queue that was read before it. So all queues must be found empty twice, with
    nothing stored in between.
    """
    before: list[_Look] | None = None
    pause = 0.005
    while True:
        looks = await _look_at(client, queues)
        if any(look.ready for look in looks):
            before = None
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        elif looks == before:
            return looks
        else:
            before = looks


async def _look_at(client: JetStreamClient, queues: Sequence[str]) -> list[_Look]:
    return [await _look(client, queue) for queue in queues]


async def _look(client: JetStreamClient, queue: str) -> _Look:
    names = client.names
    lanes = tuple(names.lane_filter(queue, lane).removesuffix(">") for lane in PULLED)
    query = {"subjects_filter": names.queue_filter(queue)}
    info = await client.connection.api(api.stream_info(names.work_stream(queue)), query)
    subjects = info["state"].get("subjects") or {}
    ready = tuple(_label(subject) for subject in subjects if subject.startswith(lanes))
    return _Look(ready, int(info["state"]["last_seq"]))


def _label(subject: str) -> str:
    job = _parse(subject)
    return subject if job is None else f"{job.task} {job.job_id}"


def _parse(subject: str) -> JobSubject | None:
    """None for a subject that jobs do not have; a worker removes such messages too."""
    try:
        return JobSubject.parse(subject)
    except ValueError:
        return None


def _failure_text(failures: list[JobFinished]) -> str:
    count = "1 job failed" if len(failures) == 1 else f"{len(failures)} jobs failed"
    lines = [f"{count} in drain(); `check=False` returns the report instead"]
    for failure in failures[:10]:
        outcome = {
            "dead_lettered": f"dead ({failure.reason})",
            "retried": f"retries in {show_duration(failure.retry_in_s)}",
        }.get(failure.outcome, failure.outcome)
        error = f"{failure.error.type}: {failure.error.text}" if failure.error is not None else ""
        lines.append(f"  {failure.task} {failure.job_id}, attempt {failure.attempt}, {outcome}: {error}")
    lines += [f"  and {len(failures) - 10} more"] if len(failures) > 10 else []
    for failure in failures[:_TRACES]:
        if failure.error is not None and failure.error.traceback:
            lines += ["", f"{failure.task} {failure.job_id}:", failure.error.traceback.rstrip()]
    return "\n".join(lines)
