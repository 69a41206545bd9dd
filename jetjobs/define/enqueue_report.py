"""The report of `enqueue_many`: one outcome per request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from jetjobs.define.handle import JobHandle
from jetjobs.define.task import JobRequest
from jetjobs.model.errors import JetJobsError
from jetjobs.model.public import public


@public("jetjobs")
@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not stored, or not confirmed, with the reason."""

    index: int
    request: JobRequest[Any] = field(repr=False)
    error: JetJobsError


@public("jetjobs")
class Entry(NamedTuple):
    """A stored request: what its handle needs."""

    job_id: str
    run: str
    duplicate: bool


@public("jetjobs")
class EnqueueReport:
    """One outcome per request. Handles are created on access, because a million jobs rarely need theirs."""

    def __init__(
        self,
        requests: int,
        make_handle: Callable[[int, Entry], JobHandle[Any]],
    ) -> None:
        self.entries: list[Entry | None] = [None] * requests
        self.refused: list[Refusal] = []
        """The requests that were not stored or not confirmed, in the order given."""
        self._make_handle = make_handle

    @cached_property
    def handles(self) -> list[JobHandle[Any] | None]:
        """Handles in the order of the requests; None for a refused one."""
        return [
            None if entry is None else self._make_handle(index, entry) for index, entry in enumerate(self.entries)
        ]

    @property
    def stored(self) -> list[JobHandle[Any]]:
        """Handles of the newly stored jobs."""
        return [handle for handle in self.handles if handle is not None and not handle.duplicate]

    @property
    def duplicates(self) -> list[JobHandle[Any]]:
        """Handles of live jobs that already had the key or id of a request."""
        return [handle for handle in self.handles if handle is not None and handle.duplicate]

    def raise_for_refused(self) -> EnqueueReport:
        """Return the report if all requests are stored; otherwise raise the error of the first refusal."""
        if self.refused:
            raise self.refused[0].error
        return self

    def __repr__(self) -> str:
        duplicates = sum(1 for entry in self.entries if entry is not None and entry.duplicate)
        stored = len(self.entries) - self.entries.count(None) - duplicates
        return f"<EnqueueReport stored={stored} duplicates={duplicates} refused={len(self.refused)}>"
