"""Run a task in the test as a worker would, without a server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast

from jetjobs.app import JetJobs
from jetjobs.define.checkpoint import encode
from jetjobs.define.context import Context
from jetjobs.define.options import EnqueueOptions
from jetjobs.define.router import Router
from jetjobs.define.task import Task, TaskCall
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.model.errors import DefinitionError
from jetjobs.model.events import Event
from jetjobs.model.job import Job
from jetjobs.model.outcome import Succeeded
from jetjobs.model.public import public
from jetjobs.model.settings import Settings
from jetjobs.model.wire.ids import new_run, new_uid
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.execution.admission import Admitted
from jetjobs.worker.execution.executor import Executor, ExecutorConfig, call
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.leases.time_limits import TimeLimits

P = ParamSpec("P")
R = TypeVar("R")


async def run_inline(task: Task[P, R] | TaskCall[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run one attempt of the task and return the result as `handle.result()` would.

    The attempt has everything a worker gives it: arguments validated and sent through JSON, a Context,
    dependencies, middleware and the time limit. Exceptions of the task are raised unchanged, signals included.
    An injected argument that is given replaces the value of its factory. Lifespans are not opened, and an isolated
    task runs in a thread. Checkpoints are kept in memory; `Inline` gives access to them.
    """
    return await Inline().run(task, *args, **kwargs)


class _MemoryServices:
    """Keeps the checkpoint of a job in memory, and discards its progress."""

    def __init__(self, value: bytes | None) -> None:
        self.value = value

    def report(self, held: Any, fraction: float, message: str | None) -> None: ...

    async def save(self, held: Any, value: bytes) -> None:
        self.value = value

    def save_sync(self, held: Any, value: bytes) -> None:
        self.value = value

    async def load(self, held: Any) -> bytes | None:
        return self.value

    def load_sync(self, held: Any) -> bytes | None:
        return self.value


class _InlineExecutor(Executor):
    """Runs isolated tasks in a thread, and takes the injected arguments in `given` as they are."""

    given: Mapping[str, Any] = {}

    def _invoke(self, attempt: Attempt, context: Context, admitted: Admitted) -> Awaitable[Any]:
        _, task, arguments, _ = admitted
        return call(context, task, arguments, self._middlewares, self.threads, self._scope, self.given)


@public("jetjobs.testing")
class Inline:
    """`run_inline` with options: `await Inline(attempt=2).run(charge, order)`.

    Further calls of `run` start from the last checkpoint, as further attempts of the job would.
    """

    def __init__(
        self, *, app: JetJobs | None = None, attempt: int = 1, delivery: int = 1, checkpoint: Any = None
    ) -> None:
        """`app` is needed only for a task of a router that several apps include. `checkpoint` is the value that an
        earlier attempt has stored."""
        self._app = app
        self._attempt = attempt
        self._delivery = delivery
        self._services = _MemoryServices(None if checkpoint is None else encode(checkpoint))

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint as plain JSON, also after a success; None when there is none."""
        return None if self._services.value is None else read_json(self._services.value)

    async def run(self, task: Task[P, R] | TaskCall[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(task, TaskCall):
            whole, options = task.task, task.options
        else:
            whole, options = task, EnqueueOptions()
        app = self._app or _app_of(whole)
        given = {name: kwargs[name] for name in whole.signature.injected if name in kwargs}
        sent = {name: value for name, value in kwargs.items() if name not in given}
        body = whole.request(options, args, sent).body
        job = self._job(whole, options, body)
        # In its own asyncio task: the job's context variable ends with it.
        return cast(R, await asyncio.create_task(self._execute(app, whole, job, given)))

    async def _execute(self, app: JetJobs, task: Task[Any, Any], job: Job, given: Mapping[str, Any]) -> Any:
        delivery = cast(Delivery, SimpleNamespace(sequence=1, fence=1, delivered=self._delivery))
        attempt = Attempt(delivery, job.queue, job.lane, time.monotonic(), math.inf)
        attempt.asyncio_task = asyncio.current_task()
        leases = LeaseTable(math.inf, _ignore)
        leases.add(attempt)
        limits = TimeLimits(leases)
        timeout_s = Settings().worker.timeout.total_seconds()
        config = ExecutorConfig("inline", 1, timeout_s, app.middlewares, {})
        executor = _InlineExecutor(app, self._services, limits, _ignore, config)
        executor.given = given
        arguments = task.signature.decode(job.body)
        try:
            ended = await executor.execute(attempt, Admitted(job, task, arguments, job.body))
        finally:
            limits.close()
            await executor.close()
        if isinstance(ended, BaseException):
            raise ended
        assert isinstance(ended, Succeeded)
        return None if ended.result is None else task.signature.result.decode(ended.result)

    def _job(self, task: Task[Any, Any], options: EnqueueOptions, body: bytes) -> Job:
        return Job(
            options.get("job_id") or new_uid(),
            task.name,
            options.get("queue", task.queue),
            options.get("priority", task.priority),
            body,
            run=new_run(),
            attempt=self._attempt,
            max_attempts=options.get("max_attempts", 0),
            enqueued_at=time.time(),
            deadline=options["deadline"].timestamp() if "deadline" in options else 0.0,
            headers=dict(options.get("headers", {})),
        )


def _app_of(task: Task[Any, Any]) -> JetJobs:
    """The app that runs the task: it declares the task, or includes the router that does."""
    router: Router = getattr(task.send, "__self__")  # noqa: B009 - typed as a callable, always a bound method
    apps = [one for one in router._upward() if isinstance(one, JetJobs)]
    if len(apps) != 1:
        found = "no app" if not apps else f"{len(apps)} apps"
        raise DefinitionError(
            f"task {task.name!r} belongs to {found}", hint="give the app: Inline(app=...).run(task, ...)"
        )
    return apps[0]


def _ignore(event: Event) -> None: ...
