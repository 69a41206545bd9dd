"""Routers: collect the tasks and schedules of a module under their names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from typing_extensions import ParamSpec

from jetjobs.define.flows.flow import Flow
from jetjobs.define.flows.flow_handle import FlowHandle
from jetjobs.define.flows.flow_task import AsyncFlowTask, SyncFlowTask
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import ScheduleOptions, TaskOptions
from jetjobs.define.result_type import returns_flow
from jetjobs.define.schedule import schedule_of
from jetjobs.define.task import AsyncTask, Chain, JobRequest, SyncTask, Task
from jetjobs.model.durations import Duration
from jetjobs.model.errors import DefinitionError, UnknownTask
from jetjobs.model.public import public
from jetjobs.model.schedule.schedule import Schedule
from jetjobs.model.wire.validation import WEBHOOKS, check_queue, check_task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Task[Any, Any])
F = TypeVar("F")

_KNOWN = frozenset(TaskOptions.__annotations__)


@public("jetjobs")
class TaskDecorator(Protocol):
    """What `@app.task(...)` returns. The type of the task keeps the parameters and result of the function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, Flow[R]]], /) -> AsyncFlowTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Flow[R]], /) -> SyncFlowTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


@public("jetjobs")
class Router:
    """The tasks of one module, with a default queue. It opens no connection and reads no settings."""

    def __init__(self, *, queue: str = "default") -> None:
        self.default_queue = check_queue(queue)
        self.tasks: dict[str, Task[Any, Any]] = {}
        """By name. A task with aliases is here under each of its names."""
        self.declared_schedules: dict[str, Schedule] = {}
        self._parents: list[Router] = []

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, Flow[R]]], /) -> AsyncFlowTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, Flow[R]], /) -> SyncFlowTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(  # type: ignore[misc]
        self, function: Callable[..., Any] | None = None, /, **given: Any
    ) -> Any:
        """Register a function: `@app.task` or `@app.task(queue="mail", timeout=...)`."""
        options = cast("TaskOptions", given)
        if unknown := sorted(options.keys() - _KNOWN):
            near = difflib.get_close_matches(unknown[0], _KNOWN, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise DefinitionError(
                f"unknown task option {unknown[0]!r}", hint=f"{hint}known: {', '.join(sorted(_KNOWN))}"
            )
        options.setdefault("queue", self.default_queue)

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(function) or isinstance(function, Task):
                raise DefinitionError(f"a task must be a function, not {function!r}")
            kinds = (AsyncFlowTask, SyncFlowTask) if returns_flow(function) else (AsyncTask, SyncTask)
            kind = kinds[0] if inspect.iscoroutinefunction(function) else kinds[1]
            made = kind(function, self.send, self.send_sync, options, self._declare, self._send_chain)  # type: ignore[var-annotated]
            task = cast("Task[Any, Any]", made)
            check_queue(task.queue)
            for name in task.names:
                check_task(name)
            self._add(task)
            return task

        return register if function is None else register(function)

    def cron(self, expression: str, /, **options: Unpack[ScheduleOptions]) -> Callable[[T], T]:
        """Run a task on a cron schedule, as a decorator above `@app.task`: `@app.cron("0 9 * * 1-5", tz=...)`."""
        return self._scheduling("cron", expression, lambda task: task.cron(expression, **options))

    def every(self, interval: Duration, /, **options: Unpack[ScheduleOptions]) -> Callable[[T], T]:
        """Run a task at a fixed interval, as a decorator above `@app.task`: `@app.every("5m")`."""
        return self._scheduling("every", interval, lambda task: task.every(interval, **options))

    def _scheduling(self, what: str, rule: object, declare: Callable[[T], T]) -> Callable[[T], T]:
        form = f"write @app.{what}({'...' if callable(rule) else repr(rule)}) above @app.task, not below it"
        if callable(rule):
            raise DefinitionError(f"@app.{what} needs its rule", hint=form)

        def decorate(task: T) -> T:
            if not isinstance(task, Task):
                name = getattr(task, "__name__", repr(task))
                raise DefinitionError(f"@app.{what} was used on {name!r}, which is not a task yet", hint=form)
            if self.tasks.get(task.name) is not task:
                raise DefinitionError(
                    f"task {task.name!r} belongs to another app or router", hint=f"use {task.name}.{what}(...)"
                )
            return declare(task)

        return decorate

    def include(self, router: Router) -> None:
        """Add the tasks and schedules of `router`, all or none, including those declared on it later.

        They are enqueued through this router's app and run by its workers.
        """
        if router in self._upward():
            raise DefinitionError("a router cannot include itself or a router that includes it")
        self._check_schedules(*router.declared_schedules)
        self._add(*dict.fromkeys(router.tasks.values()))
        for each in self._upward():
            each.declared_schedules.update(router.declared_schedules)
        router._parents.append(self)

    def find(self, name: str) -> Task[Any, Any]:
        """The task of that name or alias. UnknownTask if there is none; the hint names a similar one."""
        task = self.tasks.get(name)
        if task is None:
            near = [self.tasks[close].name for close in difflib.get_close_matches(name, self.tasks, 1)]
            raise UnknownTask(f"no task named {name!r}", hint=f"did you mean {near[0]!r}?" if near else None)
        return task

    @property
    def task_queues(self) -> list[str]:
        """The queues that the tasks and their schedules are declared for. A worker must name that of webhooks."""
        schedules = self.declared_schedules.values()
        queues = {task.queue for task in self.tasks.values()} | {schedule.queue for schedule in schedules}
        return sorted(queues - {WEBHOOKS})

    def _add(self, *tasks: Task[Any, Any]) -> None:
        """Add the tasks here and to all routers that include this one; none of them if one name is taken."""
        routers = self._upward()
        for task in tasks:
            for name in task.names:
                taken = next((router.tasks[name] for router in routers if name in router.tasks), None)
                if taken is not None:
                    raise _name_taken(task, name, taken)
        for router in routers:
            router.tasks.update((name, task) for task in tasks for name in task.names)

    def _declare(self, task: Task[Any, Any], options: Mapping[str, Any]) -> None:
        """Add a schedule of one of the tasks. Its name defaults to the name of the task."""
        schedule = schedule_of(task, task.name, options)
        self._check_schedules(schedule.name)
        for router in self._upward():
            router.declared_schedules[schedule.name] = schedule

    def _check_schedules(self, *names: str) -> None:
        for name in names:
            if any(name in router.declared_schedules for router in self._upward()):
                raise DefinitionError(
                    f"schedule {name!r} is declared twice",
                    hint="give one of them another name: cron(..., name=...)",
                )

    def _upward(self) -> set[Router]:
        """This router and all routers that include it, directly or indirectly."""
        return {self}.union(*(parent._upward() for parent in self._parents))

    async def send(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """Store one request through the app that includes this router."""
        return await self._parent_for(request).send(request)

    def send_sync(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """`send` for code without an event loop."""
        return self._parent_for(request).send_sync(request)

    async def enqueue_flow(self, flow: Flow[F]) -> FlowHandle[F]:
        """Store a flow through the app that includes this router."""
        return await self._parent(f"flow {flow.name!r}").enqueue_flow(flow)

    async def _send_chain(self, chain: Chain[Any]) -> FlowHandle[Any]:
        return await self.enqueue_flow(Flow.of(chain))

    def _parent_for(self, request: JobRequest[Any]) -> Router:
        return self._parent(f"task {request.task.name!r}")

    def _parent(self, what: str) -> Router:
        if not self._parents:
            raise DefinitionError(f"{what} belongs to a router that no app includes", hint="app.include(router)")
        return self._parents[-1]


def _name_taken(task: Task[Any, Any], name: str, taken: Task[Any, Any]) -> DefinitionError:
    if name == task.name == taken.name:
        return DefinitionError(
            f"task {name!r} is declared twice", hint="give one of them another name: @app.task(name=...)"
        )
    if name == task.name:
        return DefinitionError(
            f"task {name!r} has the name of an alias of task {taken.name!r}",
            hint="an alias is for a name that no task has any more: remove it, or rename this task",
        )
    what = "the name" if name == taken.name else "also an alias"
    return DefinitionError(
        f"task {task.name!r}: alias {name!r} is {what} of task {taken.name!r}",
        hint="an alias is for a name that no task has any more: remove it, or rename the other task",
    )
