"""The children of a worker: as many as run jobs at once, started when needed, kept warm, replaced when gone."""

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
from jetjobs.worker.isolation.app_locator import address_of
from jetjobs.worker.isolation.channel import Frame, Garbled
from jetjobs.worker.isolation.log_forwarding import levels
from jetjobs.worker.isolation.messages import context_data, error_from
from jetjobs.worker.isolation.process import Asked, ChildProcess, NotImported

_log = logging.getLogger("jetjobs.worker")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A result as the child wrote it: JSON already."""

    data: bytes

    def value(self, task: Task[Any, Any]) -> Any:
        """As the task's own type, for middleware; as plain JSON where that has no way back."""
        if not self.data:
            return None
        try:
            return task.signature.decode_result(self.data)
        except Exception:  # a validator of the user's own may raise anything
            return json.loads(self.data)


class Children:
    """At most `size` of them, one for each job that runs in one. Nothing is started before it is needed."""

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
        """Start the first child, to see that the tasks are found there. DefinitionError when they are not: better
        now than with the first job. ChildDied when it did not come to that."""
        try:
            child, missing = await ChildProcess.start(self._make_setup())
        except NotImported as error:
            raise DefinitionError(
                f"isolation='process': {error}",
                hint='a program that starts a worker does so under `if __name__ == "__main__":`',
            ) from None
        if missing:
            await child.end(at_once=True)
            raise DefinitionError(
                f"task {missing[0]!r} has isolation='process', but is not there in a process that imports the app",
                hint="declare it where the import of the app's module gets to, not inside a function called later",
            )
        self._idle.append(child)

    async def run(
        self,
        context: Context,
        task: Task[Any, Any],
        body: bytes,
        asked: Asked | None = None,
        begun: Callable[[Callable[[], None] | None], None] = lambda ask: None,
    ) -> Encoded:
        """Run a job in a child; `asked` answers what it asks meanwhile, and `begun` is given a way to ask it to
        stop, and None when it has answered. Raises what the task raised, as far as that crosses; ChildDied when
        the child is gone. When this is cancelled the child is killed on the spot."""
        child = await self._take()
        begun(child.ask_to_stop)
        head = {"task": task.name, "context": context_data(context)}
        try:
            answer = await child.run(head, body, asked)
            begun(None)
            error = None if answer.head["kind"] == "returned" else _error_of(answer)
        except BaseException:  # it is gone, it talks nonsense, or we are cancelled
            self._drop(child)
            raise
        if answer.head.get("retire") or child.asked:
            self._drop(child)
        else:
            self._offer(child)
        if error is not None:
            raise error
        return Encoded(answer.body)

    async def close(self) -> None:
        """Idle ones end; whatever still runs is killed."""
        self._closed = True
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for child in list(self._busy):
            self._drop(child)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end(at_once=False) for child in idle), *self._ending, return_exceptions=True)

    # Who gets which child

    async def _take(self) -> ChildProcess:
        while self._idle:
            child = self._idle.pop()  # the one used last is the warmest
            self._busy.add(child)
            if child.alive:
                return child
            self._drop(child)
        if self._closed:
            raise ChildDied("the worker has stopped")
        place: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._start_missing()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._offer(place.result())
            raise
        finally:
            if place in self._waiting:
                self._waiting.remove(place)

    def _start_missing(self) -> None:
        """A child for each that waits, as far as there is room. A start goes on when nobody waits any more: a time
        limit shorter than it would else never be met."""
        waiting = sum(not place.done() for place in self._waiting)
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
            self._refuse(error if isinstance(error, DefinitionError) else ChildDied(str(error)))
        else:
            self._offer(child)

    def _refuse(self, error: Exception) -> None:
        for place in self._waiting:
            if not place.done():
                place.set_exception(error)
                return
        _log.warning("a child process did not start", extra={"event": "worker.child_failed", "error": str(error)})

    def _offer(self, child: ChildProcess) -> None:
        """To the first that waits; else it stays, warm, for the next."""
        self._busy.add(child)
        if self._closed:
            self._drop(child)
            return
        for place in self._waiting:
            if not place.done():
                place.set_result(child)
                return
        self._busy.discard(child)
        self._idle.append(child)

    def _drop(self, child: ChildProcess) -> None:
        """Kill it now; reap it when it is gone."""
        child.kill()
        self._busy.discard(child)
        ending = asyncio.get_running_loop().create_task(child.end(at_once=True))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if not self._closed:
            self._start_missing()

    def _make_setup(self) -> dict[str, Any]:
        """What a child must know to begin. The address is looked for once."""
        isolated = [task for task in self._registry.tasks.values() if task.isolated]
        if self._setup is None:
            functions = [*(task.function for task in isolated), *self._classifiers.values()]
            self._setup = {"address": address_of(self._registry, functions)._asdict(), "argv": sys.argv}
        return {**self._setup, "levels": levels(), "tasks": [task.name for task in isolated]}


def _error_of(answer: Frame) -> Exception:
    try:
        return error_from(answer.head["error"])
    except (Garbled, KeyError, AttributeError) as error:
        raise ChildDied(f"the child process wrote garbage into its channel: {error}") from None
