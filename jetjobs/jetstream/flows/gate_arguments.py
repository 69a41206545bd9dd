"""The arguments of gates: put the results of steps into them, also those that are in the object store."""

from __future__ import annotations

from collections.abc import Mapping

from jetjobs.jetstream.messages.payloads import MAX_OBJECT, Payloads
from jetjobs.model.errors import MalformedJob
from jetjobs.model.flow.binding import Expanded, bind, expand
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.steps import After, FlowHeaders
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_json

WITHOUT_AFTER = After({})


class GateArguments:
    """Binds the arguments of gates."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    async def bound(self, job: Job, flow: FlowHeaders, known: Mapping[str, Completed]) -> Job:
        """The job of a gate with results of `known` nodes in its arguments. MalformedJob if one does not fit."""
        body, loaded = await self._inputs(job, flow, known)
        bound = bind(body, job.headers.get(h.SECRET, ""), flow.after or WITHOUT_AFTER, loaded)
        _check_size(bound.body)
        return with_arguments(job._replace(body=bound.body, payload=""), bound.secret)

    async def expanded(self, job: Job, flow: FlowHeaders, known: Mapping[str, Completed]) -> Expanded:
        """The jobs of a map. MalformedJob if a result does not fit, or is not a list."""
        body, loaded = await self._inputs(job, flow, known)
        return expand(flow, job.uid, body, job.headers.get(h.SECRET, ""), loaded)

    async def _inputs(
        self, job: Job, flow: FlowHeaders, known: Mapping[str, Completed]
    ) -> tuple[bytes, dict[str, Completed]]:
        """The arguments of a gate, and the nodes whose results it takes, with those in the object store."""
        body = await self._payloads.get(job.payload) if job.payload else job.body
        taken = {source.node for source in (flow.after or WITHOUT_AFTER).values.values()}
        left = MAX_OBJECT - len(body)
        loaded: dict[str, Completed] = {}
        for node in taken:
            loaded[node] = await self.loaded(known[node], left)
        return body, loaded

    async def loaded(self, done: Completed, most: int = MAX_OBJECT) -> Completed:
        """The node with its results from the object store. MalformedJob if one is missing, or if all of them are
        larger than `most`."""
        entries = []
        size = 0
        for entry in done.entries:
            if entry.result_object:
                data = await self._payloads.get(entry.result_object)
                size += len(data)
                _check_size(data, most - size + len(data))
                entry = entry._replace(result=read_json(data), result_object="")
            entries.append(entry)
        return Completed(done.node, tuple(entries))


def with_arguments(job: Job, secret: str = "") -> Job:
    """The job of a gate that has all its arguments. `secret` names those that are secret."""
    headers = {**job.headers, h.BOUND: "1"}
    if secret:
        headers[h.SECRET] = secret
    return job._replace(headers=headers)


def _check_size(data: bytes, most: int = MAX_OBJECT) -> None:
    if len(data) > most:
        raise MalformedJob(
            f"the results that it takes are larger than {MAX_OBJECT:,} bytes",
            hint="store large results elsewhere and return references",
        )
