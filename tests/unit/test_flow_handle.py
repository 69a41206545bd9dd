"""Flow handles: each call goes to the server with the id of the flow, and durations are checked before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from jetjobs import FlowHandle, FlowState, FlowStatus
from jetjobs.admin import FlowCancelAnswer, FlowCancelOutcome, FlowRetryAnswer
from jetjobs.errors import DefinitionError
from jetjobs.model.flow.entries import Completed, Entry
from jetjobs.model.flow.steps import Position

STATUS = FlowStatus("f-1", "upload", FlowState.RUNNING, None, None, ())


class Lookup:
    """Answers as the server would, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def result(self, handle: FlowHandle[Any], decode: Callable[[Completed], Any], timeout_s: float) -> Any:
        self.asked.append((handle.id, timeout_s))
        return decode(Completed("n", (Entry(Position("n"), result=7),)))

    async def status(self, flow_id: str, /) -> FlowStatus:
        self.asked.append(flow_id)
        return STATUS

    async def follow(self, flow_id: str, /) -> AsyncIterator[FlowStatus]:
        self.asked.append(flow_id)
        yield STATUS

    async def cancel(self, flow_id: str, /, **options: Any) -> FlowCancelAnswer:
        self.asked.append((flow_id, options))
        return FlowCancelAnswer(flow_id, FlowCancelOutcome.CANCELLED)

    async def retry(self, flow_id: str, /, **options: Any) -> FlowRetryAnswer:
        self.asked.append((flow_id, options))
        return FlowRetryAnswer(flow_id, ("a",))


@pytest.fixture
def lookup() -> Lookup:
    return Lookup()


@pytest.fixture
def handle(lookup: Lookup) -> FlowHandle[int]:
    made: FlowHandle[int] = FlowHandle("f-1", "upload", duplicate=True)
    return made.attach(lookup, lambda completed: completed and completed.results[0])


async def test_the_result_is_decoded_by_the_flow(handle: FlowHandle[int], lookup: Lookup) -> None:
    assert await handle == 7
    assert await handle.result("2m") == 7
    assert lookup.asked == [("f-1", 3600.0), ("f-1", 120.0)]
    with pytest.raises(DefinitionError, match="invalid timeout"):
        await handle.result("soon")
    assert repr(handle) == "<FlowHandle f-1 upload duplicate>"


async def test_the_status_is_that_of_the_flow(handle: FlowHandle[int], lookup: Lookup) -> None:
    assert await handle.status() == STATUS
    assert [status async for status in handle.follow()] == [STATUS]
    assert lookup.asked == ["f-1", "f-1"]
    assert STATUS.as_dict()["state"] == "running"


async def test_a_flow_is_cancelled_and_retried(handle: FlowHandle[int], lookup: Lookup) -> None:
    assert (await handle.cancel(reason="wrong", by="ada")).outcome == "cancelled"
    assert (await handle.retry("resize", by="ada")).replayed == ("a",)
    assert lookup.asked == [
        ("f-1", {"by": "ada", "reason": "wrong", "timeout": "10s"}),
        ("f-1", {"step": "resize", "by": "ada", "reason": ""}),
    ]
