"""`jobs cancel --all` and `jobs reschedule --all`: change every job that matches the filters of `jobs list`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.completion import states
from jetjobs.cli.exit_codes import DONE, FAILED, REFUSED
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import read_since
from jetjobs.cli.terminal.progress import progress
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.cli.terminal.text import one_line
from jetjobs.doctor.finding import many
from jetjobs.model.errors import BrokerError, ConfigError, JetJobsError, JobNotFound
from jetjobs.model.job import JobState
from jetjobs.model.views.audit import filter_text
from jetjobs.model.views.job_changes import CancelAnswer, CancelOutcome, MoveAnswer, MoveOutcome
from jetjobs.model.views.job_query import LIVE, JobQuery
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.validation import check_token

State = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="queued, running, scheduled, retrying, waiting, succeeded, cancelled or dead. [default: all live]",
        metavar="STATE",
        autocompletion=states,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(help="Only jobs that entered their state within this time: 1h.", metavar="DURATION"),
]
Where = Annotated[
    list[str] | None,
    typer.Option(help="Only jobs with this argument: args.user_id=7; may be repeated.", metavar="ARG=VALUE"),
]
All = Annotated[bool, typer.Option("--all", help="All jobs that match the filters, instead of ids.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done, with --all.")]

AT_ONCE = 16
MAX_MATCHES = 100_000
SHOWN = 5
"""Jobs that a dry run lists, and jobs that are named with why they were not changed."""
SUCCESS = (CancelOutcome.CANCELLED, MoveOutcome.MOVED, MoveOutcome.UNCHANGED, MoveOutcome.MAY_RUN_TWICE)

Change = Callable[[JetJobs, str, str | None, str | None], Awaitable[CancelAnswer | MoveAnswer]]
"""Changes the job with that id, queue and task."""


class Found(NamedTuple):
    """A job that matches."""

    id: str
    queue: str
    task: str
    state: JobState | None


def read_query(
    job_state: str | None,
    queue: str | None,
    task: str | None,
    since: str | None,
    where: Sequence[str] | None,
    key: str | None = None,
) -> JobQuery:
    """The query of the filters. ConfigError for an invalid one."""
    for what, token in (("queue", queue), ("task", task)):
        if token is not None:
            check_token(what, token)
    return JobQuery(_state(job_state), queue, task, read_since(since), tuple(map(_pair, where or ())), key)


def check_choice(
    ids: Sequence[str] | None,
    all_matching: bool,
    dry_run: bool,
    job_state: str | None,
    since: str | None,
    where: Sequence[str] | None,
) -> None:
    """ConfigError unless the command names ids or has --all, and only options that go with it."""
    if ids and (all_matching or dry_run or job_state is not None or since is not None or where):
        raise ConfigError(
            "ids can be combined only with --queue and --task, which select among jobs of the same id",
            hint="--all, --state, --since, --where and --dry-run are for jobs that match, without ids",
        )
    if not ids and not all_matching:
        raise ConfigError("give ids, or --all with filters", hint="--all --dry-run prints what would be changed")


class Bulk:
    """One `--all` command: the verb, the states of jobs that it can change, and how it changes one."""

    def __init__(
        self, verb: str, past: str, possible: Sequence[JobState], change: Change, by: str, reason: str
    ) -> None:
        self._verb = verb
        self._by, self._reason = by, reason
        self._past = past
        self._possible = possible
        self._change = change

    async def run(self, query: JobQuery, *, dry_run: bool, yes: bool) -> int:
        """Count the jobs, ask, change them and print the outcomes. Returns the exit code."""
        if query.state is not None and query.state not in self._possible:
            listed = ", ".join(self._possible)
            raise ConfigError(f"cannot {self._verb} {query.state} jobs", hint=f"--state is one of {listed}")
        async with state.reader() as app:
            found = await self._find(app, query)
            by_state = Counter(str(one.state) for one in found)
            if dry_run:
                _print_dry_run(self._verb, found, by_state)
                return DONE
            if not found:
                _print_outcome(Tally(0, self._past), complete=True)
                return DONE
            listed = ", ".join(f"{count:,} {word}" for word, count in sorted(by_state.items()))
            if not await confirmed(f"{self._verb} {many(len(found))} ({listed})", yes=yes):
                return REFUSED
            tally = Tally(len(found), self._past)
            try:
                action, target = f"job.{self._verb}", filter_text(query)
                async with app.audit.together(action, target, by=self._by, reason=self._reason):
                    await self._change_all(app, found, tally)
            except (asyncio.CancelledError, JetJobsError):
                _print_outcome(tally, complete=False)
                raise
        _print_outcome(tally, complete=True)
        return FAILED if tally.failed else DONE

    async def _find(self, app: JetJobs, query: JobQuery) -> list[Found]:
        """The jobs that match now. Jobs that match later are not included."""
        found: dict[tuple[str, str, str], Found] = {}
        nameless = 0
        unknown, secret = {path for path, _ in query.where}, set[str]()
        for one in _by_state(query, self._possible):
            cursor: str | None = None
            while True:
                page = await app.jobs.page(one, limit=1000, cursor=cursor)
                for status in (item.status for item in page.items):
                    if not is_id(status.id):  # no command accepts this name
                        nameless += 1
                        continue
                    found[status.queue, status.task, status.id] = Found(
                        status.id, status.queue, status.task, status.state
                    )
                if page.scanned:
                    unknown &= set(page.unknown)
                secret |= set(page.secret)
                if len(found) > MAX_MATCHES:
                    hint = "narrow the filters; `jetjobs queues purge QUEUE` removes all waiting jobs of a queue"
                    raise ConfigError(f"more than {MAX_MATCHES:,} jobs match; nothing was changed", hint=hint)
                cursor = page.cursor
                if cursor is None:
                    break
        _print_notes(nameless, unknown if not found else set(), secret)
        return list(found.values())

    async def _change_all(self, app: JetJobs, found: Sequence[Found], tally: Tally) -> None:
        left = iter(found)

        async def work() -> None:
            for one in left:
                tally.started += 1
                tally.add(await self._change_one(app, one))
                step(1)

        with progress(self._past, len(found)) as step:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(AT_ONCE, len(found))):
                        group.create_task(work())
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

    async def _change_one(self, app: JetJobs, one: Found) -> dict[str, Any]:
        try:
            answer = await self._change(app, one.id, one.queue, one.task)
        except JobNotFound:
            return {"id": one.id, "outcome": "ended", "state": None, "detail": "it has ended and left no record"}
        except BrokerError:
            raise
        except JetJobsError as error:
            return {"id": one.id, "outcome": "refused", "state": str(one.state), "detail": str(error)}
        return answer.as_dict()


class Tally:
    """Counts outcomes, to be printed at the end even after an interruption."""

    def __init__(self, matching: int, past: str) -> None:
        self.matching = matching
        self.past = past
        self.started = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[dict[str, Any]] = []

    def add(self, answer: dict[str, Any]) -> None:
        self.counts[answer["outcome"]] += 1
        if answer["outcome"] not in SUCCESS:
            self.failed.append(answer)
        elif state.out.quiet:
            state.out.data(answer["id"])


def _print_outcome(tally: Tally, *, complete: bool) -> None:
    out = state.out
    if out.as_json:
        counts = dict(sorted(tally.counts.items()))
        out.json({"matching": tally.matching, "counts": counts, "failed": tally.failed, "complete": complete})
        return
    say = out.note if out.quiet else out.data  # with --quiet, standard output contains only the ids
    if not tally.matching:
        say("No jobs match. Nothing changed.")
        return
    done = ", ".join(f"{count:,} {outcome}" for outcome, count in tally.counts.most_common()) or f"0 {tally.past}"
    if not complete:
        open_ones = tally.started - tally.counts.total()
        left = tally.matching - tally.started
        done += (
            f"; interrupted: {many(left)} not reached, {open_ones} in progress. Repeat the command to continue."
        )
    say(done)
    for answer in tally.failed[:SHOWN]:
        out.note(f"{answer['id']} {answer['outcome']}: {one_line(str(answer['detail']))}")
    if len(tally.failed) > SHOWN:
        out.note(f"and {len(tally.failed) - SHOWN:,} more; --json prints all of them")


def _print_dry_run(verb: str, found: Sequence[Found], by_state: Counter[str]) -> None:
    out = state.out
    if out.as_json:
        first = [one.id for one in found[:SHOWN]]
        counts = dict(sorted(by_state.items()))
        out.json({"dry_run": True, "matching": len(found), "states": counts, "first": first})
        return
    out.data(f"Would {verb} {many(len(found))}. Nothing changed.")
    for one in found[:SHOWN]:
        out.data(f"  {one.id}  {one.state}  {one.queue}  {one.task}")
    if len(found) > SHOWN:
        out.data("  ...")


def _print_notes(nameless: int, unknown: set[str], secret: set[str]) -> None:
    if nameless:
        text = f"{many(nameless)} published without jetjobs cannot be named yet and will be left out"
        state.out.note(text)
    for path in sorted(unknown):
        state.out.note(f"none of the jobs scanned has {path}")
    for path in sorted(secret):
        state.out.note(f"{path} is secret: it cannot be searched, and jobs that have it are left out")


def _by_state(query: JobQuery, possible: Sequence[JobState]) -> list[JobQuery]:
    """The query, or one for each possible state: reading every queued job to find the scheduled ones is slow."""
    if query.state is not None or set(possible) == set(LIVE):
        return [query]
    return [replace(query, state=one) for one in possible]


def _state(text: str | None) -> JobState | None:
    if text is None:
        return None
    try:
        return JobState(text)
    except ValueError:
        raise ConfigError(f"--state: unknown state {text!r}", hint=f"one of {', '.join(JobState)}") from None


def _pair(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--where: invalid filter {text!r}", hint="write args.NAME=VALUE")
    return path, value
