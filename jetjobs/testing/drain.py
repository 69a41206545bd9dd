"""Run what is ready to its end with a real worker, and report what came of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.transport import api
from jetjobs.model.durations import parse_duration, show_duration
from jetjobs.model.events import Event, JobFinished
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import JobId
from jetjobs.testing.clock import bring_forward
from jetjobs.testing.server import working
from jetjobs.worker.worker import Worker

_TRACES = 3
"""So many failures are shown with their traceback."""


@public("jetjobs.testing")
class JobsFailed(AssertionError):
    """Jobs failed in a drain. `failures` has one entry for each, `drained` the whole report."""

    def __init__(self, failures: list[JobFinished], drained: Drained) -> None:
        super().__init__(_failure_text(failures))
        self.failures = failures
        self.drained = drained


@public("jetjobs.testing")
@dataclass
class Drained:
    """What ran, in the order in which it ended: an entry for each attempt."""

    finished: list[JobFinished] = field(default_factory=list)

    @property
    def succeeded(self) -> list[JobFinished]:
        return self._with("succeeded")

    @property
    def retried(self) -> list[JobFinished]:
        """Attempts that failed and are followed by another one."""
        return self._with("retried")

    @property
    def snoozed(self) -> list[JobFinished]:
        return self._with("snoozed")

    @property
    def dead(self) -> list[JobFinished]:
        """Jobs that are dead letters now."""
        return self._with("dead_lettered")

    def _with(self, outcome: str) -> list[JobFinished]:
        return [one for one in self.finished if one.outcome == outcome]

    def __repr__(self) -> str:
        counts = ("succeeded", "retried", "snoozed", "dead")
        return f"<Drained {' '.join(f'{name}={len(getattr(self, name))}' for name in counts)}>"


async def drain(
    app: JetJobs,
    queue: str | Sequence[str] | None = None,
    *,
    retries: bool = False,
    check: bool = True,
    slots: int | None = None,
    timeout: timedelta | str = "60s",
) -> Drained:
    """Run every job that is ready, and those they enqueue, with a real worker; return when none is left.

    Jobs for later stay where they are. With `retries`, failed jobs are tried again at once until they end. With
    `check`, JobsFailed when an attempt has failed, or with `retries` when a job is dead. `queue` is one, several,
    or those of the app's tasks. AssertionError when it takes longer than `timeout`.
    """
    __tracebackhide__ = True
    queues = list(app.task_queues) if queue is None else [queue] if isinstance(queue, str) else list(queue)
    limit_s = (parse_duration(timeout) if isinstance(timeout, str) else timeout).total_seconds()
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
    failures = drained.dead if retries else [*drained.retried, *drained.dead]
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
                await worker.slots.idle()  # what has just ended is in the report by then
                if not retries:
                    return
                # A retry that fell due meanwhile is no longer among them, but something has changed then.
                if not await _try_again(client, queues, drained) and await _look_at(client, queues) == seen:
                    return
    except TimeoutError:
        left = [job for look in await _look_at(client, queues) for job in look.ready]
        shown = ", ".join(f"{task} {job_id}" for task, job_id in left[:10]) or "jobs that retry"
        raise AssertionError(f"not drained within {show_duration(limit_s)}: {shown} ({drained!r})") from None


async def _try_again(client: JetStreamClient, queues: Sequence[str], drained: Drained) -> bool:
    """Bring the retries of this drain forward; whether there were any."""
    ids = {one.job_id for one in drained.retried}

    def ours(message: StoredMessage) -> bool:
        return h.ATTEMPT in message.headers and _job_id(message.subject) in ids

    brought = [await bring_forward(client, queue, None, ours) for queue in queues]
    return any(brought)


@dataclass(frozen=True)
class _Look:
    ready: tuple[tuple[str, str], ...]
    last_sequence: int


async def _until_empty(client: JetStreamClient, queues: Sequence[str]) -> list[_Look]:
    """Until no job is ready or running. A job may enqueue another in a queue that was looked at before: so it must
    be found twice, with nothing stored in between."""
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
    """Jobs in lanes that workers take from, running ones too, and the newest sequence."""
    stream = client.names.work_stream(queue)
    query = {"subjects_filter": client.names.queue_filter(queue)}
    info = await client.connection.api(api.stream_info(stream), query)
    subjects = info["state"].get("subjects") or {}
    ready = [
        (subject.split(".")[4], _job_id(subject)) for subject in subjects if subject.split(".")[3] in n.PULLED
    ]
    return _Look(tuple(ready), int(info["state"]["last_seq"]))


def _job_id(subject: str) -> str:
    tokens = subject.split(".")
    return str(JobId(tokens[5], tokens[6])) if len(tokens) == 7 else ""


def _failure_text(failures: list[JobFinished]) -> str:
    count = "a job failed" if len(failures) == 1 else f"{len(failures)} jobs failed"
    lines = [f"{count} in drain(); `check=False` returns the report instead"]
    for one in failures[:10]:
        what = (
            f"dead ({one.reason})"
            if one.outcome == "dead_lettered"
            else f"retries in {show_duration(one.retry_in_s)}"
        )
        error = f"{one.error.type}: {one.error.text}" if one.error is not None else ""
        lines.append(f"  {one.task} {one.job_id}, attempt {one.attempt}, {what}: {error}")
    lines += [f"  and {len(failures) - 10} more"] if len(failures) > 10 else []
    for one in failures[:_TRACES]:
        if one.error is not None and one.error.traceback:
            lines += ["", f"{one.task} {one.job_id}:", one.error.traceback.rstrip()]
    return "\n".join(lines)
