"""What became of each request of `enqueue_many`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jetjobs.define.handle import JobHandle
from jetjobs.define.task import JobRequest
from jetjobs.model.errors import JetJobsError


class Refusal(NamedTuple):
    """A request that is not known to be stored, and why."""

    index: int
    request: JobRequest[Any]
    error: JetJobsError


@dataclass(slots=True)
class EnqueueReport:
    """One answer for each request. `handles` is in their order, with None for the refused."""

    handles: list[JobHandle[Any] | None]
    refused: list[Refusal] = field(default_factory=list)

    @property
    def stored(self) -> list[JobHandle[Any]]:
        return [h for h in self.handles if h is not None and not h.duplicate]

    @property
    def duplicates(self) -> list[JobHandle[Any]]:
        return [h for h in self.handles if h is not None and h.duplicate]

    def raise_for_refused(self) -> EnqueueReport:
        """The report itself when all is stored; else the first refusal's error."""
        if self.refused:
            raise self.refused[0].error
        return self
