"""What became of each request of `enqueue_many`."""

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
    """A request that is not known to be stored, and why."""

    index: int
    request: JobRequest[Any] = field(repr=False)
    error: JetJobsError


@public("jetjobs")
class Entry(NamedTuple):
    """A request that is stored: enough to make its handle."""

    job_id: str
    run: str
    duplicate: bool


@public("jetjobs")
class EnqueueReport:
    """One answer for each request. Handles are made when asked for: a million jobs rarely need theirs."""

    def __init__(
        self,
        requests: int,
        make_handle: Callable[[int, Entry], JobHandle[Any]],
    ) -> None:
        self.entries: list[Entry | None] = [None] * requests
        self.refused: list[Refusal] = []
        """The requests that are not known to be stored, in their order."""
        self._make_handle = make_handle

    @cached_property
    def handles(self) -> list[JobHandle[Any] | None]:
        """In the order of the requests, with None for the refused."""
        return [
            None if entry is None else self._make_handle(index, entry) for index, entry in enumerate(self.entries)
        ]

    @property
    def stored(self) -> list[JobHandle[Any]]:
        """Jobs that are stored now and were not before."""
        return [handle for handle in self.handles if handle is not None and not handle.duplicate]

    @property
    def duplicates(self) -> list[JobHandle[Any]]:
        """Live jobs that were there before, for requests whose key or id they hold."""
        return [handle for handle in self.handles if handle is not None and handle.duplicate]

    def raise_for_refused(self) -> EnqueueReport:
        """The report itself when all is stored; else the first refusal's error."""
        if self.refused:
            raise self.refused[0].error
        return self

    def __repr__(self) -> str:
        duplicates = sum(1 for entry in self.entries if entry is not None and entry.duplicate)
        stored = len(self.entries) - self.entries.count(None) - duplicates
        return f"<EnqueueReport stored={stored} duplicates={duplicates} refused={len(self.refused)}>"
