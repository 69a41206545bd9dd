"""Run the task of an admitted job: on the event loop, in a thread or in a child process."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetjobs.define.context import AttemptServices, Context, Middleware, compose, enter_job
from jetjobs.define.dependencies import Scope
from jetjobs.define.result_type import Returnable
from jetjobs.define.router import Router
from jetjobs.define.task import Task
from jetjobs.jetstream.messages.payloads import MAX_OBJECT
from jetjobs.model.clock import SYSTEM_CLOCK, Clock
from jetjobs.model.error_classification import Classifier
from jetjobs.model.errors import DefinitionError, JobTimeout, UnstorableValue
from jetjobs.model.events import JobStarted, Observer
from jetjobs.model.flow.flow_plan import RETURNED, read_returned
from jetjobs.model.flow.replacement import replaced
from jetjobs.model.flow.steps import FlowHeaders
from jetjobs.model.job import Job
from jetjobs.model.outcome import Outcome, Succeeded
from jetjobs.model.wire import headers as h
from jetjobs.worker.attempt import Attempt, Interrupt
from jetjobs.worker.execution.admission import Admitted, Refused
from jetjobs.worker.execution.thread_pool import ThreadPool
from jetjobs.worker.isolation.pool import EncodedResult, ProcessPool
from jetjobs.worker.isolation.rpc import handle_request
from jetjobs.worker.leases.time_limits import TimeLimits
from jetjobs.worker.unawaited import watch_coroutines

_WITHOUT_RESULT = Succeeded(None)


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """What the executor needs to know about its worker."""

    worker: str
    slots: int
    timeout_s: float
    middlewares: Sequence[Middleware]
    classifiers: Mapping[type[BaseException], Classifier]


class Executor:
    """Runs tasks. One for the life of a worker."""

    def __init__(
        self,
        registry: Router,
        services: AttemptServices,
        limits: TimeLimits,
        observe: Observer,
        config: ExecutorConfig,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        watch_coroutines()
        self._tasks = registry.tasks
        self._clock = clock
        self._limits = limits
        self._observe = observe
        self._config = config
        self._middlewares = tuple(config.middlewares)
        self._children = ProcessPool(config.slots, registry, config.classifiers)
        self._services = services
        self._scope = Scope()
        """Dependencies that live as long as the worker."""
        self.threads = ThreadPool(config.slots, observe)

    async def open(self, queues: Collection[str]) -> None:
        """DefinitionError if a task of these queues needs a child process, and that could not find the app."""
        if any(task.isolated and task.queue in queues for task in self._tasks.values()):
            await self._children.check()

    async def close(self) -> None:
        try:
            await self._children.close()
            await self._scope.__aexit__(None, None, None)
        finally:
            self.threads.close()

    async def execute(self, attempt: Attempt, admitted: Admitted | Refused) -> Outcome | BaseException:
        """Run the task. Returns `Succeeded` or what the task raised; of a refused job, its outcome."""
        if isinstance(admitted, Refused):
            return admitted.outcome
        job, task, arguments, _ = admitted
        delivery, wall = attempt.delivery, self._clock.time()
        wait_s = max(0.0, wall - (job.due_at or job.enqueued_at))
        self._observe(JobStarted(job.queue, job.task, job.id, job.attempt, delivery.delivered, wait_s))
        limit_s = task.timeout.total_seconds() if task.timeout else self._config.timeout_s
        if job.deadline:
            limit_s = min(limit_s, job.deadline - wall)
        attempt.started_at = now = time.monotonic()
        self._limits.limit(attempt, now + limit_s)
        context = Context(
            job, self._config.worker, delivery.fence, delivery.delivered, now + limit_s, self._services, attempt
        )
        enter_job(context)
        attempt.running = True
        try:
            if task.direct and not self._middlewares:
                value = await task.function(**arguments)  # the usual case, without layers in between
            else:
                value = await self._invoke(attempt, context, admitted)
        except asyncio.CancelledError as cancelled:
            _uncancel()
            if attempt.interrupt is Interrupt.TIMEOUT:
                text = f"task {task.name!r} ran longer than {limit_s:g} s"
                return JobTimeout(text).with_traceback(cancelled.__traceback__)  # where the task was
            return cancelled
        except BaseException as raised:  # SystemExit too: sys.exit() in a task ends the attempt, not the worker
            if isinstance(raised, GeneratorExit) and not _is_current(attempt):
                raise  # the event loop is being closed, and this coroutine with it
            if context._unawaited is not None:
                raised.add_note(str(context._unawaited))  # probably why
            return raised
        finally:
            attempt.running = False
        if context._unawaited is not None:
            return context._unawaited
        try:
            if not task.store_result and not is_flow(value):
                task.signature.result.check_awaited(value)
                return _WITHOUT_RESULT
            return Succeeded(encode(task, value, job))
        except Exception as error:
            return error

    def _invoke(self, attempt: Attempt, context: Context, admitted: Admitted) -> Awaitable[Any]:
        """Call the task inside its dependencies and the middleware."""
        _, task, arguments, body = admitted
        if task.isolated:
            return self._in_child(attempt, context, task, body)
        return call(context, task, arguments, self._middlewares, self.threads, self._scope)

    async def _in_child(self, attempt: Attempt, context: Context, task: Task[Any, Any], body: bytes) -> Any:
        """Run the task in a child process. Middleware runs in the worker and sees the decoded value; unless it
        returns another one, the encoded value is used as it is."""
        asked = functools.partial(handle_request, self._services, attempt)

        def begun(stop: Callable[[], None] | None) -> None:
            attempt.stop_child = stop

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


async def call(
    context: Context,
    task: Task[Any, Any],
    arguments: dict[str, Any],
    middlewares: Sequence[Middleware],
    threads: ThreadPool,
    worker_scope: Scope,
    given: Mapping[str, Any] = {},
) -> Any:
    """Call the task's function on the event loop or in a thread, inside its dependencies and the middleware.
    Injected arguments in `given` are used as they are."""

    async def innermost() -> Any:
        if task.is_async:
            return await task.function(**arguments)
        return await threads.run(context, task, arguments)

    dependencies = task.signature.dependencies
    for name in task.signature.contexts:
        arguments[name] = given.get(name, context)
    if not dependencies:
        return await compose(middlewares, context, innermost)()
    async with Scope(worker_scope) as scope:
        for name, dependency in dependencies.items():
            arguments[name] = given[name] if name in given else await scope.get(dependency)
        return await compose(middlewares, context, innermost)()


def is_flow(value: Any) -> bool:
    """Whether a task has returned a flow, also in a child process."""
    return isinstance(value, Returnable) or (isinstance(value, EncodedResult) and value.data[:1] == RETURNED)


def encode(task: Task[Any, Any], value: Any, job: Job) -> bytes:
    """A result as it is stored. UnstorableValue if it is too large, cannot be encoded, or is a flow that cannot
    take the place of the job."""
    result = value.data if isinstance(value, EncodedResult) else task.signature.result.encode(value)
    if len(result) > MAX_OBJECT:
        raise UnstorableValue(
            f"task {task.name!r} returned {len(result):,} bytes, too large to store (limit {MAX_OBJECT:,})"
        )
    if h.FLOW in job.headers and (plan := read_returned(result)) is not None:
        flow = FlowHeaders.read(job.headers)
        try:
            assert flow is not None
            replaced(plan, flow, job.uid)
        except DefinitionError as error:
            raise UnstorableValue(
                f"task {task.name!r} returned a flow that cannot run: {error}", hint=error.hint
            ) from None
    return result


def _uncancel() -> None:
    """The cancellation was meant for the task's code. The attempt goes on to settle its outcome."""
    current = asyncio.current_task()
    assert current is not None
    while current.uncancel():
        pass


def _is_current(attempt: Attempt) -> bool:
    """Whether the attempt's own asyncio task runs now. It does not when its coroutine is closed from outside."""
    try:
        return asyncio.current_task() is attempt.asyncio_task
    except RuntimeError:
        return False
