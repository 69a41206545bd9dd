"""`Failed`: what a flow passes on in place of the result of a step that failed."""

from __future__ import annotations

from dataclasses import dataclass

from jetjobs.model.public import Record, public


@public("jetjobs")
@dataclass(frozen=True, slots=True)
class Failed(Record):
    """The result of a step that failed, where a flow goes on without it: `flow.map(resize.settled, paths)`."""

    job_id: str
    reason: str
    """Why the job is dead, such as `exhausted`, or `cancelled`."""
    error: str
    """The last error as text."""
