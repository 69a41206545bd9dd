"""One job -> one outcome: find, check, run, decide. Touches nothing on the server but reads."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetjobs.define.context import Context, enter_job
from jetjobs.define.dependencies import Scope
from jetjobs.define.middleware import Middleware, compose
from jetjobs.define.router import Router
from jetjobs.define.task import Task
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.payloads import MAX_OBJECT
from jetjobs.model.error_classification import Classifier, classify
from jetjobs.model.errors import (
    BrokerError,
    ChildDied,
    DeliveryError,
    JobTimeout,
    MalformedJob,
    UnstorableValue,
)
from jetjobs.model.events import JobStarted, Observer
from jetjobs.model.job import Job
from jetjobs.model.outcome import (
    Abandoned,
    Cancelled,
    DeadLettered,
    DeadReason,
    ErrorInfo,
    Outcome,
    Released,
    Retried,
    Snoozed,
    Succeeded,
    Suspected,
    decide,
    refuse,
)
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.wire import headers as h
from jetjobs.worker.attempt import Attempt, Interrupt
from jetjobs.worker.execution.attempt_services import WorkerDesk
from jetjobs.worker.execution.thread_pool import Threads
from jetjobs.worker.isolation.pool import EncodedResult, ProcessPool
from jetjobs.worker.isolation.rpc import handle_request
from jetjobs.worker.leases.lease_table import Leases

FETCH_AGAIN_S = 5.0

_log = logging.getLogger("jetjobs.worker")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What the runner needs to know of its worker."""

    worker: str
    slots: int
    timeout_s: float
    classifiers: Mapping[type[BaseException], Classifier]


class Runner:
    """Runs attempts. One for the worker's life."""

    def __init__(
        self,
        registry: Router,
        middlewares: Sequence[Middleware],
        leases: Leases,
        jetstream: JetStreamClient,
        observe: Observer,
        config: RunConfig,
    ) -> None:
        self._tasks = registry.tasks
        self._registry = registry
        self._middlewares = tuple(middlewares)
        self._leases = leases
        self._places = jetstream.locator
        self._payloads = jetstream.payloads
        self._marks = jetstream.cancel_marks
        self._ticks = jetstream.ticks
        self._observe = observe
        self._config = config
        self.threads = Threads(config.slots, observe)
        self._children = ProcessPool(config.slots, registry, config.classifiers)
        self._desk = WorkerDesk(jetstream.checkpoints, config.worker)
        self.scope = Scope()
        """Dependencies that live as long as the worker."""

    async def open(self, queues: Collection[str]) -> None:
        """Where jobs of these queues run in child processes, start the first. DefinitionError when that fails."""
        if any(task.isolated and task.queue in queues for task in self._tasks.values()):
            await self._children.check()

    async def run(self, attempt: Attempt, job: Job) -> Outcome:
        """What became of the job of this delivery. Never raises for what a job or task does."""
        now = time.time()
        if job.deadline and now >= job.deadline:
            late = ErrorInfo("Expired", f"not started by its deadline, {now - job.deadline:.1f} s ago")
            return DeadLettered(DeadReason.EXPIRED, late)
        task = self._tasks.get(job.task)
        try:
            if task is None:
                task = self._registry.find(job.task)
            body = job.body
            if job.payload:
                fetched = await self._fetch(attempt, job)
                if not isinstance(fetched, bytes):
                    return fetched
                body = fetched
            arguments = task.signature.decode(body)
        except DeliveryError as error:
            return refuse(error)
        if self._marks and self._marks.find(job.id, job.run) is not None:
            return self._cancelled(job)
        if h.OVERLAP in job.headers and await self._gives_way(attempt, job):
            return Cancelled("schedule", "an earlier tick of the schedule is still alive")
        wait_s = max(0.0, now - (job.due_at or job.enqueued_at))
        self._observe(JobStarted(job.queue, job.task, job.id, job.attempt, attempt.delivery.delivered, wait_s))
        return await self._attempt(attempt, job, task, arguments, body)

    async def _gives_way(self, attempt: Attempt, job: Job) -> bool:
        """Whether a tick must give way to an earlier one. Asked of ticks that have not begun: those that have are
        moved without the header. What a worker took with it when it died is asked of again: it may not have begun,
        and two must not run at once."""
        return job.attempt == 1 and await attempt.patiently(lambda: self._ticks.earlier(job))

    async def _fetch(self, attempt: Attempt, job: Job) -> bytes | Outcome:
        """The body from the object store. Gone with a job that has ended is no fault, and a store that does not
        answer is none of the job's: it comes again later, no attempt spent."""
        try:
            try:
                body = await attempt.patiently(lambda: self._payloads.get(job.payload))
            except MalformedJob:
                if await attempt.patiently(lambda: self._places.was_settled(job)):
                    return Abandoned(ack=True)
                raise
        except BrokerError as error:
            extra = {"event": "job.body_unreadable", "job_id": job.id, "task": job.task, "error": str(error)}
            _log.warning("the body of a job cannot be read now; it comes again later", extra=extra)
            return Snoozed(FETCH_AGAIN_S)
        return body if attempt.owned() else Abandoned(ack=False)

    def if_cancelled(self, job: Job, outcome: Outcome) -> Outcome:
        """A job that was marked while it ran does not run again. A success stays one."""
        goes_on = isinstance(outcome, Retried | Snoozed | Released | Suspected)
        if self._marks and goes_on and self._marks.find(job.id, job.run) is not None:
            return self._cancelled(job)
        return outcome

    def _cancelled(self, job: Job, how: str = "") -> Cancelled:
        mark = self._marks.find(job.id, job.run)
        return Cancelled(mark.by, mark.why, how) if mark is not None else Cancelled("", "", how)

    def most_attempts(self, job: Job) -> int:
        """How many attempts the job may have; 0 of a task that nobody knows."""
        task = self._tasks.get(job.task)
        return job.max_attempts or (_policy(job, task).max_attempts if task is not None else 0)

    async def _attempt(
        self, attempt: Attempt, job: Job, task: Task[Any, Any], arguments: dict[str, Any], body: bytes
    ) -> Outcome:
        now = time.monotonic()
        limit_s = task.timeout.total_seconds() if task.timeout else self._config.timeout_s
        if job.deadline:
            limit_s = min(limit_s, job.deadline - time.time())
        attempt.started_at = now
        self._leases.limit(attempt, now + limit_s)
        delivery = attempt.delivery
        worker, desk = self._config.worker, self._desk
        context = Context(job, worker, delivery.fence, delivery.delivered, now + limit_s, desk, attempt)
        enter_job(context)
        error: BaseException
        attempt.running = True
        try:
            if task.direct and not self._middlewares:
                value = await task.function(**arguments)  # nothing in between: the usual case
            elif task.isolated:
                value = await self._in_child(attempt, context, task, body)
            else:
                value = await call(context, task, arguments, self._middlewares, self.threads, self.scope)
        except asyncio.CancelledError as cancelled:
            attempt.running = False
            if (ended := self._interrupted(attempt, job)) is not None:
                return ended
            out_of_time = attempt.interrupt is Interrupt.TIMEOUT
            error = JobTimeout(f"task {task.name!r} ran longer than {limit_s:g} s") if out_of_time else cancelled
        except BaseException as raised:  # SystemExit too: sys.exit() in a task ends the attempt, not the worker
            attempt.running = False
            if isinstance(raised, GeneratorExit) and not _in_step_of(attempt):
                raise  # the loop is being taken down, and this coroutine with it
            if not attempt.owned():
                if attempt.interrupt is not Interrupt.LEASE_LOST:
                    self._leases.lose(attempt)
                return Abandoned(ack=False)
            if attempt.interrupt is Interrupt.CANCEL:
                how = "killed" if isinstance(raised, ChildDied) else "stopped"
                return self._cancelled(job, how)  # whatever it raised on its way out
            error = raised
        else:
            attempt.running = False
            if not task.store_result:
                return Succeeded(None)
            try:
                return Succeeded(encode(task, value))
            except Exception as unusable:
                error = unusable
        verdict = classify(error, self._config.classifiers)
        return decide(job, error, _policy(job, task), verdict, time.time(), random.random())

    def _interrupted(self, attempt: Attempt, job: Job) -> Outcome | None:
        """What follows when a task was cancelled; None for a failure: by its time limit, or by its own doing, for
        nothing but attempts is cancelled here."""
        current, why = asyncio.current_task(), attempt.interrupt
        assert current is not None
        while current.uncancel():
            pass
        if why is Interrupt.LEASE_LOST:
            return Abandoned(ack=False)
        if why is Interrupt.STOP:
            return Released()
        if why is Interrupt.CANCEL:
            return self._cancelled(job, "killed" if attempt.ask_child is not None else "stopped")
        return None

    async def _in_child(self, attempt: Attempt, context: Context, task: Task[Any, Any], body: bytes) -> Any:
        """Middleware stays on this side and sees the value. Unless it returns another, the bytes are kept."""
        asked = functools.partial(handle_request, self._desk, attempt)

        def begun(ask: Callable[[], None] | None) -> None:
            attempt.ask_child = ask

        if not self._middlewares:
            return await self._children.run(context, task, body, asked, begun)
        encoded: EncodedResult | None = None
        seen: Any = None

        async def innermost() -> Any:
            nonlocal encoded, seen
            encoded = await self._children.run(context, task, body, asked, begun)
            seen = encoded.value(task)
            return seen

        value = await compose(self._middlewares, context, innermost)()
        return encoded if encoded is not None and value is seen else value

    async def close(self) -> None:
        try:
            await self._children.close()
            await self.scope.__aexit__(None, None, None)
        finally:
            self.threads.close()


async def call(
    context: Context,
    task: Task[Any, Any],
    arguments: dict[str, Any],
    middlewares: Sequence[Middleware],
    threads: Threads,
    of_worker: Scope,
    given: Mapping[str, Any] = {},
) -> Any:
    """The function in the loop or a thread, inside of middleware, inside of its dependencies. Those in `given` are
    not made: a test has brought them."""

    async def innermost() -> Any:
        if task.is_async:
            return await task.function(**arguments)
        return await threads.run(context, task, arguments)

    dependencies = task.signature.dependencies
    if not dependencies:
        return await compose(middlewares, context, innermost)()
    async with Scope(of_worker) as scope:
        for name, dependency in dependencies.items():
            arguments[name] = given[name] if name in given else await scope.get(dependency)
        return await compose(middlewares, context, innermost)()


def encode(task: Task[Any, Any], value: Any) -> bytes:
    """A result as it is kept. UnstorableValue when it cannot be."""
    result = value.data if isinstance(value, EncodedResult) else task.signature.encode_result(value)
    if len(result) > MAX_OBJECT:
        raise UnstorableValue(
            f"task {task.name!r} returned {len(result):,} bytes, too large to keep (limit {MAX_OBJECT:,})"
        )
    return result


def _in_step_of(attempt: Attempt) -> bool:
    """Whether the attempt's own task runs now. It does not when its coroutine is closed from outside."""
    try:
        return asyncio.current_task() is attempt.runner
    except RuntimeError:
        return False


def _policy(job: Job, task: Task[Any, Any]) -> RetryPolicy:
    """The task's policy, with what the job says of its own. One that cannot be read does not cost the job."""
    text = job.headers.get(h.RETRY_POLICY)
    if text is None:
        return task.retry
    try:
        return task.retry.with_header(text)
    except (ValueError, RecursionError):
        return task.retry
