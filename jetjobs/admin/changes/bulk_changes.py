"""Change all jobs that match a query: find them, change them some at a time, and count the outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jetjobs.admin.jobs import Jobs
from jetjobs.model.errors import BrokerError, ConfigError, JetJobsError, JobNotFound
from jetjobs.model.job import JobState
from jetjobs.model.views.job_changes import CancelAnswer, CancelOutcome, MoveAnswer, MoveOutcome
from jetjobs.model.views.job_query import LIVE, JobQuery
from jetjobs.model.wire.ids import is_id

AT_ONCE = 16
MAX_MATCHES = 100_000
SHOWN = 5
"""Jobs that a dry run names."""
SUCCESS = (CancelOutcome.CANCELLED, MoveOutcome.MOVED, MoveOutcome.UNCHANGED, MoveOutcome.MAY_RUN_TWICE)


class MatchingJob(NamedTuple):
    """A job that matches."""

    id: str
    queue: str
    task: str
    state: JobState | None


ChangeOne = Callable[[MatchingJob], Awaitable[CancelAnswer | MoveAnswer]]


class Matches:
    """The jobs that matched when they were read. Jobs that match later are not included."""

    def __init__(self, query: JobQuery) -> None:
        self.jobs: list[MatchingJob] = []
        self.nameless = 0
        """Jobs published without jetjobs that cannot be named yet; they are left out."""
        self.unknown = {path for path, _ in query.where}
        """Arguments in `where` that no job has."""
        self.secret: set[str] = set()
        """Arguments in `where` that are secret in some jobs, which are left out."""

    def dry_run(self) -> dict[str, Any]:
        """What would be changed, as JSON."""
        states = Counter(str(one.state) for one in self.jobs)
        first = [one.id for one in self.jobs[:SHOWN]]
        return {
            "dry_run": True,
            "matching": len(self.jobs),
            "states": dict(sorted(states.items())),
            "first": first,
        }


async def find_matches(
    jobs: Jobs, query: JobQuery, possible: Sequence[JobState], within: Collection[str] | None = None
) -> Matches:
    """The jobs of the query in the possible states; `within` limits their queues.

    ConfigError if the query is for another state, or if more than 100,000 match.
    """
    if query.state is not None and query.state not in possible:
        raise ConfigError(f"cannot change {query.state} jobs", hint=f"the state is one of {', '.join(possible)}")
    matches = Matches(query)
    found: dict[tuple[str, str, str], MatchingJob] = {}
    for one in _by_state(query, possible):
        cursor: str | None = None
        while True:
            page = await jobs.page(one, limit=1000, cursor=cursor, within=within)
            for status in (item.status for item in page.items):
                if is_id(status.id):
                    where = (status.queue, status.task, status.id)
                    found[where] = MatchingJob(status.id, status.queue, status.task, status.state)
                else:
                    matches.nameless += 1
            if page.scanned:
                matches.unknown &= set(page.unknown)
            matches.secret |= set(page.secret)
            if len(found) > MAX_MATCHES:
                hint = "narrow the filters; `jetjobs queues purge QUEUE` removes all waiting jobs of a queue"
                raise ConfigError(f"more than {MAX_MATCHES:,} jobs match; nothing was changed", hint=hint)
            cursor = page.cursor
            if cursor is None:
                break
    matches.jobs = list(found.values())
    return matches


def _by_state(query: JobQuery, possible: Sequence[JobState]) -> list[JobQuery]:
    """The query, or one for each possible state: reading every queued job to find the scheduled ones is slow."""
    if query.state is not None or set(possible) == set(LIVE):
        return [query]
    return [replace(query, state=one) for one in possible]


class Tally:
    """Changes jobs and counts the outcomes, which are there even after an interruption."""

    def __init__(self, matching: int) -> None:
        self.matching = matching
        self.started = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[dict[str, Any]] = []

    def as_dict(self, *, complete: bool) -> dict[str, Any]:
        counts = dict(sorted(self.counts.items()))
        return {"matching": self.matching, "counts": counts, "failed": self.failed, "complete": complete}

    async def change_all(
        self,
        jobs: Sequence[MatchingJob],
        change: ChangeOne,
        changed: Callable[[dict[str, Any]], None] = lambda answer: None,
    ) -> None:
        """Change the jobs, 16 at a time. `changed` is called with each answer. BrokerError ends it."""
        left = iter(jobs)

        async def work() -> None:
            for one in left:
                self.started += 1
                answer = await _change_one(one, change)
                self.counts[answer["outcome"]] += 1
                if answer["outcome"] not in SUCCESS:
                    self.failed.append(answer)
                changed(answer)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(jobs))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _change_one(one: MatchingJob, change: ChangeOne) -> dict[str, Any]:
    try:
        answer = await change(one)
    except JobNotFound:
        return {"id": one.id, "outcome": "ended", "state": None, "detail": "it has ended and left no record"}
    except BrokerError:
        raise
    except JetJobsError as error:
        return {"id": one.id, "outcome": "refused", "state": str(one.state), "detail": str(error)}
    return answer.as_dict()
