"""Flow handles: the id, status and result of a stored flow. The app injects the access to the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.flow_status import FlowCancelAnswer, FlowRetryAnswer, FlowStatus
from jetjobs.model.public import public

R = TypeVar("R")

_DEFAULT_TIMEOUT = timedelta(hours=1)


class FlowLookup(Protocol):
    """What a handle needs from the server."""

    def result(
        self, handle: FlowHandle[Any], decode: Callable[[Completed | None], Any], timeout_s: float
    ) -> Awaitable[Any]: ...

    def status(self, flow_id: str, /) -> Awaitable[FlowStatus]: ...

    def follow(self, flow_id: str, /) -> AsyncIterator[FlowStatus]: ...

    def cancel(
        self, flow_id: str, /, *, by: str, reason: str, timeout: Duration
    ) -> Awaitable[FlowCancelAnswer]: ...

    def retry(self, flow_id: str, /, *, step: str, by: str, reason: str) -> Awaitable[FlowRetryAnswer]: ...


@public("jetjobs")
class FlowHandle(Generic[R]):
    """A stored flow. `duplicate` is True if it had been stored before: this is then the handle of that flow.

    `await handle` waits for its result.
    """

    __slots__ = ("_decode", "_lookup", "duplicate", "id", "name")

    def __init__(self, flow_id: str, name: str, *, duplicate: bool) -> None:
        self.id = flow_id
        self.name = name
        self.duplicate = duplicate
        self._lookup: FlowLookup | None = None
        self._decode: Callable[[Completed | None], Any] | None = None

    def attach(self, lookup: FlowLookup, decode: Callable[[Completed | None], Any]) -> FlowHandle[R]:
        """Connect the handle to the server. Called by the app."""
        self._lookup = lookup
        self._decode = decode
        return self

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result().__await__()

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the flow has ended and return the result of the step given to `flow.returns`, or None.

        Raises FlowFailed if a job that others wait for is dead or the deadline has passed, FlowCancelled if the
        flow was cancelled, and ResultNotReady, which is also a TimeoutError, after `timeout` (default: one hour).
        """
        seconds = to_duration("timeout", _DEFAULT_TIMEOUT if timeout is None else timeout).total_seconds()
        assert self._decode is not None
        return cast(R, await self._attached.result(self, self._decode, seconds))

    async def status(self) -> FlowStatus:
        """The state of the flow and the progress of its steps."""
        return await self._attached.status(self.id)

    def follow(self) -> AsyncIterator[FlowStatus]:
        """The status now and after each change, until the flow has ended: `async for status in flow.follow()`."""
        return self._attached.follow(self.id)

    async def cancel(self, *, reason: str = "", by: str = "", timeout: Duration = "10s") -> FlowCancelAnswer:
        """Cancel the flow: no job of it starts any more, and those that run are stopped."""
        return await self._attached.cancel(self.id, by=by, reason=reason, timeout=timeout)

    async def retry(self, step: str = "", *, reason: str = "", by: str = "") -> FlowRetryAnswer:
        """Replay the dead jobs of the flow, or of one step. The flow continues from there."""
        return await self._attached.retry(self.id, step=step, by=by, reason=reason)

    @property
    def _attached(self) -> FlowLookup:
        assert self._lookup is not None
        return self._lookup

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id} {self.name}{' duplicate' if self.duplicate else ''}>"
