"""Tasks that return a flow: enqueueing one gives the result of the flow, calling it gives the flow."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ParamSpec, TypeVar

from jetjobs.define.flows.flow import Flow
from jetjobs.define.task import Task
from jetjobs.model.public import public

P = ParamSpec("P")
R = TypeVar("R")


@public("jetjobs")
class AsyncFlowTask(Task[P, R]):
    """A task over `async def f(...) -> Flow[R]`. Its job ends with the result of the flow."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Flow[R]]:
        self._check_call(args, kwargs)
        call: Coroutine[Any, Any, Flow[R]] = self.function(*args, **kwargs)
        return call


@public("jetjobs")
class SyncFlowTask(Task[P, R]):
    """A task over `def f(...) -> Flow[R]`. Its job ends with the result of the flow."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
        self._check_call(args, kwargs)
        value: Flow[R] = self.function(*args, **kwargs)
        return value
