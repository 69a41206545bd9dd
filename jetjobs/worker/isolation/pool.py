"""The pool of child processes of a worker: started when needed, kept warm, replaced when they die."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jetjobs.define.context import Context
from jetjobs.define.router import Router
from jetjobs.define.task import Task
from jetjobs.model.error_classification import Classifier
from jetjobs.model.errors import ChildDied, DefinitionError
from jetjobs.model.flow.flow_plan import RETURNED
from jetjobs.worker.isolation.app_locator import locate_app
from jetjobs.worker.isolation.channel import Frame, ProtocolError
from jetjobs.worker.isolation.log_forwarding import levels
from jetjobs.worker.isolation.messages import context_data, error_from, settings_data
from jetjobs.worker.isolation.process import ChildProcess, ImportFailed, RequestHandler

_log = logging.getLogger("jetjobs.worker")


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """A result as the child sent it: JSON."""

    data: bytes

    def value(self, task: Task[Any, Any]) -> Any:
        """The result as the task's own type, for middleware; as plain JSON if it cannot be decoded."""
        if not self.data or self.data[:1] == RETURNED:
            return None  # a flow has no value yet
        try:
            return task.signature.result.decode(self.data)
        except Exception:  # a user's validator may raise anything
            return json.loads(self.data)


class ProcessPool:
    """At most `size` child processes, one for each running job. Nothing is started before it is needed."""

    def __init__(self, size: int, registry: Router, classifiers: Mapping[type[BaseException], Classifier]) -> None:
        self._size = size
        self._registry = registry
        self._classifiers = classifiers
        self._setup: dict[str, Any] | None = None
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[ChildProcess]] = deque()
        self._closed = False

    async def check(self) -> None:
        """DefinitionError if a child could not find the app, or if this process is a child itself.

        Children start when jobs need them. Only if the app is in the main program, the first one starts here: a
        program without a main guard does all its work again in each child that imports it.
        """
        setup = self._make_setup()
        if setup["location"]["main_file"] is None:
            return
        try:
            child, missing = await ChildProcess.start(setup)
        except ImportFailed as error:
            raise DefinitionError(
                f"isolation='process': {error}",
                hint='start the worker under `if __name__ == "__main__":`',
            ) from None
        if missing:
            await child.end(at_once=True)
            raise DefinitionError(
                f"task {missing[0]!r} has isolation='process' but is missing in a process that imports the app",
                hint="declare it at the top level of a module that the app's module imports",
            )
        self._idle.append(child)

    async def run(
        self,
        context: Context,
        task: Task[Any, Any],
        body: bytes,
        on_request: RequestHandler | None = None,
        on_start: Callable[[Callable[[], None] | None], None] = lambda interrupt: None,
    ) -> EncodedResult:
        """Run a job in a child process.

        `on_request` answers requests of the child while it runs. `on_start` receives a function that interrupts
        the job, and None once the child has answered. Raises what the task raised, as far as it can be
        transferred, and ChildDied if the child dies. If this call is cancelled, the child is killed at once.
        """
        child = await self._take()
        on_start(child.interrupt)
        head = {"task": task.name, "context": context_data(context)}
        try:
            answer = await child.run(head, body, on_request)
            on_start(None)
            error = None if answer.head["kind"] == "returned" else _error_of(answer)
        except BaseException:  # it died, it sent garbage, or this call was cancelled
            self._drop(child)
            raise
        if answer.head.get("retire") or child.interrupted:
            self._drop(child)
        else:
            self._offer(child)
        if error is not None:
            raise error
        return EncodedResult(answer.body)

    async def close(self) -> None:
        """End idle children and kill the others."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for child in list(self._busy):
            self._drop(child)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end(at_once=False) for child in idle), *self._ending, return_exceptions=True)

    # Assigning children to jobs

    async def _take(self) -> ChildProcess:
        while self._idle:
            child = self._idle.pop()  # the most recently used one is the warmest
            self._busy.add(child)
            if child.alive:
                return child
            self._drop(child)
        if self._closed:
            raise ChildDied("the worker has stopped")
        waiter: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._start_missing()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _start_missing(self) -> None:
        """Start a child for each waiting job, up to the size of the pool.

        A start continues after its job gave up: otherwise a task with a time limit shorter than a start would
        never run.
        """
        waiting = sum(not waiter.done() for waiter in self._waiting)
        room = self._size - len(self._idle) - len(self._busy)
        while len(self._starting) < min(waiting, room):
            starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add(starting)
            starting.add_done_callback(self._started)

    def _started(self, starting: asyncio.Task[None]) -> None:
        self._starting.discard(starting)
        if not self._closed:
            self._start_missing()

    async def _start(self) -> None:
        try:
            child, _ = await ChildProcess.start(self._make_setup())
        except Exception as error:
            self._fail_next(error if isinstance(error, DefinitionError | ChildDied) else ChildDied(str(error)))
        else:
            self._offer(child)

    def _fail_next(self, error: Exception) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)
                return
        _log.warning("a child process did not start", extra={"event": "worker.child_failed", "error": str(error)})

    def _offer(self, child: ChildProcess) -> None:
        """Give the child to the first waiting job, or keep it for the next one."""
        self._busy.add(child)
        if self._closed:
            self._drop(child)
            return
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(child)
                return
        self._busy.discard(child)
        self._idle.append(child)

    def _drop(self, child: ChildProcess) -> None:
        """Kill the child now and reap it when it has ended."""
        child.kill()
        self._busy.discard(child)
        ending = asyncio.get_running_loop().create_task(child.end(at_once=True))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if not self._closed:
            self._start_missing()

    def _make_setup(self) -> dict[str, Any]:
        """What a child needs to start. The app is located once."""
        isolated = [task for task in self._registry.tasks.values() if task.isolated]
        if self._setup is None:
            functions = [*(task.function for task in isolated), *self._classifiers.values()]
            self._setup = {
                "location": locate_app(self._registry, functions)._asdict(),
                "argv": sys.argv,
                "settings": settings_data(getattr(self._registry, "settings", None)),
            }
        return {**self._setup, "levels": levels(), "tasks": [task.name for task in isolated]}


def _error_of(answer: Frame) -> Exception:
    try:
        return error_from(answer.head["error"])
    except (ProtocolError, KeyError, AttributeError) as error:
        raise ChildDied(f"the child process wrote garbage to its channel: {error}") from None
