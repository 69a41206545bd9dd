"""Tasks for flows. Worker processes import this module, and kill themselves where `KILL_AT` says so.

KILL_AT is `{point} {task} {number}`: at the number-th time that the point is reached for a job of that task, the
process ends by SIGKILL. The points are between the steps of a job's end; nothing in jetjobs knows of them.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetjobs import Flow, JetJobs, RetryPolicy, current_job
from jetjobs.jetstream.flows.gates import Gates
from jetjobs.jetstream.flows.ledger import Ledger
from jetjobs.jetstream.jobs.results import Results
from jetjobs.jetstream.messages.batch import BatchPublisher
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.model.flow import chunks
from jetjobs.model.wire.ids import nested_node
from jetjobs.worker.execution.settlement import Settlement

app = JetJobs("flows")


def note() -> None:
    """Write the run of a job to the journal."""
    if path := os.environ.get("JOURNAL"):
        context = current_job()
        job, sequence = context.job, context._attempt.delivery.sequence
        with Path(path).open("a") as file:
            file.write(f"{job.task} {job.id}.{job.hop} {sequence}\n")


@app.task
async def one(n: int) -> int:
    note()
    return n


@app.task
async def double(n: int) -> int:
    note()
    return 2 * n


@app.task
async def numbers(n: int) -> list[int]:
    note()
    return list(range(n))


@app.task
async def total(ns: list[int]) -> int:
    note()
    return sum(ns)


@app.task
async def nested(n: int) -> Flow[int]:
    note()
    flow = Flow("inner")
    return flow.returns(flow.add(total, flow.map(double, flow.add(numbers, n))))


@app.task(retry=RetryPolicy(max_attempts=1))
async def broken(n: int) -> int:
    note()
    if os.environ.get("FIXED") is None:
        raise ValueError(f"no {n}")
    return n


def join_of_three() -> Flow[int]:
    flow = Flow("join")
    return flow.returns(flow.add(total, flow.map(double, [1, 2, 3])))


def map_of_eight() -> Flow[int]:
    flow = Flow("map")
    return flow.returns(flow.add(total, flow.map(double, flow.add(numbers, 8))))


def returned_flow() -> Flow[int]:
    flow = Flow("returned")
    return flow.returns(flow.add(one, flow.add(nested, 5)))


def nested_name(name: str) -> str:
    """The name of a mark of the flow that the job of `nested` returns in `returned_flow`."""
    return nested_node("nested", name if name == "double" else f"~{name}")


# The points


class _Points:
    def __init__(self, spec: str) -> None:
        self._point, self._task, number = spec.split()
        self._left = int(number)

    def reached(self, point: str, task: str) -> None:
        if (point, task) == (self._point, self._task):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def _before(kind: type, method: str, reached: Callable[..., None]) -> None:
    original = getattr(kind, method)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reached(*args)
        return original(*args, **kwargs)

    setattr(kind, method, wrapped)


def _after(kind: type, method: str, reached: Callable[..., None]) -> None:
    original = getattr(kind, method)

    @functools.wraps(original)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = await original(*args, **kwargs)
        reached(*args)
        return result

    setattr(kind, method, wrapped)


def _chunk(messages: Any) -> str:
    """The name and number in the mark of a chunk, such as `double.3`; empty for another batch."""
    tokens = messages[0].subject.split(".")
    return ".".join(tokens[6:]) if tokens[3:5] == ["mark", "flow"] else ""


def _place_points(points: _Points) -> None:
    at = points.reached
    _before(Settlement, "_succeed", lambda self, attempt, job, outcome: at("ran", job.task))
    _after(Results, "put", lambda self, job, *rest: at("record", job.task))
    _after(Ledger, "add", lambda self, fkey, position, *rest: at("entry", position.node))
    _before(Gates, "fire", lambda self, gate, job, owned: at("fire", job.task))
    _after(Gates, "fire", lambda self, gate, job, owned: at("fired", job.task))
    _before(BatchPublisher, "store", lambda self, stream, messages: at("chunk", _chunk(messages)))
    _after(BatchPublisher, "store", lambda self, stream, messages: at("chunked", _chunk(messages)))
    _before(Delivery, "ack", lambda self: at("ack", self.subject.split(".")[4]))
    _before(Delivery, "ack_confirmed", lambda self: at("ack", self.subject.split(".")[4]))


if kill_at := os.environ.get("KILL_AT"):
    _place_points(_Points(kill_at))
if size := os.environ.get("CHUNK_SIZE"):
    chunks.CHUNK_SIZE = int(size)  # type: ignore[misc]
