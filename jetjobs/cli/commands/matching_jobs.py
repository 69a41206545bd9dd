"""`jobs cancel --all` and `jobs reschedule --all`: change every job that matches the filters of `jobs list`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from jetjobs.admin.changes.bulk_changes import SHOWN, SUCCESS, Matches, MatchingJob, Tally, find_matches
from jetjobs.app import JetJobs
from jetjobs.cli.completion import states
from jetjobs.cli.exit_codes import DONE, FAILED, REFUSED
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import read_since
from jetjobs.cli.terminal.progress import progress
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.cli.terminal.text import one_line
from jetjobs.doctor.finding import many
from jetjobs.model.errors import ConfigError, JetJobsError
from jetjobs.model.job import JobState
from jetjobs.model.views.audit import filter_text
from jetjobs.model.views.job_changes import CancelAnswer, MoveAnswer
from jetjobs.model.views.job_query import JobQuery
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

Change = Callable[[JetJobs, str, str | None, str | None], Awaitable[CancelAnswer | MoveAnswer]]
"""Changes the job with that id, queue and task."""


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
            matches = await find_matches(app.jobs, query, self._possible)
            _print_notes(matches)
            found = matches.jobs
            if dry_run:
                _print_dry_run(self._verb, matches)
                return DONE
            tally = Tally(len(found))
            if not found:
                self._print_outcome(tally, complete=True)
                return DONE
            by_state = Counter(str(one.state) for one in found)
            listed = ", ".join(f"{count:,} {word}" for word, count in sorted(by_state.items()))
            if not await confirmed(f"{self._verb} {many(len(found))} ({listed})", yes=yes):
                return REFUSED
            try:
                action, target = f"job.{self._verb}", filter_text(query)
                async with app.audit.together(action, target, by=self._by, reason=self._reason):
                    await self._change_all(app, found, tally)
            except (asyncio.CancelledError, JetJobsError):
                self._print_outcome(tally, complete=False)
                raise
        self._print_outcome(tally, complete=True)
        return FAILED if tally.failed else DONE

    async def _change_all(self, app: JetJobs, found: Sequence[MatchingJob], tally: Tally) -> None:
        with progress(self._past, len(found)) as step:

            def changed(answer: dict[str, Any]) -> None:
                _print_id(answer)
                step(1)

            await tally.change_all(found, lambda one: self._change(app, one.id, one.queue, one.task), changed)

    def _print_outcome(self, tally: Tally, *, complete: bool) -> None:
        out = state.out
        if out.as_json:
            out.json(tally.as_dict(complete=complete))
            return
        say = out.note if out.quiet else out.data  # with --quiet, standard output contains only the ids
        if not tally.matching:
            say("No jobs match. Nothing changed.")
            return
        done = (
            ", ".join(f"{count:,} {outcome}" for outcome, count in tally.counts.most_common()) or f"0 {self._past}"
        )
        if not complete:
            open_ones = tally.started - tally.counts.total()
            left = tally.matching - tally.started
            done += f"; interrupted: {many(left)} not reached, {open_ones} in progress."
            done += " Repeat the command to continue."
        say(done)
        for answer in tally.failed[:SHOWN]:
            out.note(f"{answer['id']} {answer['outcome']}: {one_line(str(answer['detail']))}")
        if len(tally.failed) > SHOWN:
            out.note(f"and {len(tally.failed) - SHOWN:,} more; --json prints all of them")


def _print_id(answer: dict[str, Any]) -> None:
    if state.out.quiet and answer["outcome"] in SUCCESS:
        state.out.data(answer["id"])


def _print_dry_run(verb: str, matches: Matches) -> None:
    out, found = state.out, matches.jobs
    if out.as_json:
        out.json(matches.dry_run())
        return
    out.data(f"Would {verb} {many(len(found))}. Nothing changed.")
    for one in found[:SHOWN]:
        out.data(f"  {one.id}  {one.state}  {one.queue}  {one.task}")
    if len(found) > SHOWN:
        out.data("  ...")


def _print_notes(matches: Matches) -> None:
    if matches.nameless:
        text = f"{many(matches.nameless)} published without jetjobs cannot be named yet and will be left out"
        state.out.note(text)
    for path in sorted(matches.unknown) if not matches.jobs else ():
        state.out.note(f"none of the jobs scanned has {path}")
    for path in sorted(matches.secret):
        state.out.note(f"{path} is secret: it cannot be searched, and jobs that have it are left out")


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
