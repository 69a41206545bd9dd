"""What the `jobs` commands do."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from jetjobs.app import JetJobs
from jetjobs.cancel import CancelAnswer, CancelOutcome
from jetjobs.cli.output import DONE, FAILED, json_line, one_line, user_name
from jetjobs.cli.state import state
from jetjobs.define.options import check_delay, check_moment
from jetjobs.jobs import check_priority
from jetjobs.model.durations import parse_duration, show_duration
from jetjobs.model.errors import ConfigError, JobCancelled, JobFailed
from jetjobs.model.ids import is_id
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.listing import JobQuery, Listed
from jetjobs.model.names import check_token
from jetjobs.moving import MoveAnswer, MoveOutcome

_SHOWN = (
    "id", "state", "queue", "task", "lane", "attempt", "crashes", "worker", "enqueued_at", "due_at", "started_at",
    "ended_at", "reason", "how", "error", "schedule", "slot", "parent", "root",
)  # fmt: skip


class Selection(NamedTuple):
    """As the options say it."""

    state: str | None = None
    queue: str | None = None
    task: str | None = None
    since: str | None = None
    where: tuple[str, ...] = ()

    def query(self) -> JobQuery:
        check_names([], self.queue, self.task)
        pairs = []
        for text in self.where:
            path, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"--where {text!r}: say args.NAME=VALUE")
            pairs.append((path, value))
        return JobQuery(_state(self.state), self.queue, self.task, _since(self.since), tuple(pairs))


async def list_command(chosen: Selection, limit: int, cursor: str | None) -> None:
    query = chosen.query()
    async with _reader() as app:
        page = await app.jobs.page(query, limit=limit, cursor=cursor)
    out = state.out
    if out.as_json:
        out.json({"items": [_item(item) for item in page.items], "cursor": page.cursor, "scanned": page.scanned})
    else:
        # By a name with a number sign no command finds it: that is only to be read.
        items = [item for item in page.items if not out.quiet or is_id(item.status.id)]
        rows = [_row(item.status) for item in items]
        out.table(["ID", "STATE", "QUEUE", "TASK", "ATTEMPT", "AGE", "WORKER"], rows, shrink=(6, 3, 2))
    for path in page.unknown:
        out.note(f"none of the {page.scanned:,} jobs looked at has {path}")
    for path in page.secret:
        out.note(f"{path} is secret: it is not looked at, and jobs that have it are not listed")
    if page.cursor is not None:
        short = len(page.items) < limit
        looked = f"looked at {page.scanned:,} messages so far; " if short else ""
        out.note(f"{looked}more: --cursor {page.cursor}")


async def show_command(job_id: str, queue: str | None, task: str | None) -> None:
    check_names([job_id], queue, task)
    async with _reader() as app:
        status = await app.jobs.get(job_id, queue=queue, task=task)
    out = state.out
    if out.as_json:
        out.json(status.as_dict())
        return
    details = status.as_dict()
    for name in _SHOWN:
        if details[name] not in (None, "", 0):
            out.data(f"{name:<13}{one_line(str(details[name]), None)}")
    if status.progress is not None or status.message:
        share = f"{status.progress:.0%}" if status.progress is not None else ""
        told = " ".join(filter(None, (share, status.message)))
        out.data(f"{'progress':<13}{one_line(told, None)}")
    if status.priority not in (None, status.lane):
        out.data(f"{'priority':<13}{status.priority}")
    if status.cancel is not None:
        asked = "" if status.state is JobState.CANCELLED else "asked for "
        why = f"{asked}by {status.cancel['by'] or '-'}: {status.cancel['reason'] or '-'}"
        out.data(f"{'cancel':<13}{one_line(why, None)}")
    if status.state is JobState.SUCCEEDED:
        out.data(f"{'result':<13}{json_line(status.result)}")
    for entry in status.history:
        what = f"attempt {entry.get('attempt')}: {entry.get('type')}: {entry.get('text', '')}"
        out.data(f"{'failed':<13}{one_line(what, None)}")
    for entry in status.replays:
        what = f"by {entry.get('by') or '-'}: {entry.get('why') or '-'}"
        out.data(f"{'replayed':<13}{one_line(what, None)}")


async def wait_command(job_id: str, queue: str | None, task: str | None, limit: str) -> int:
    check_names([job_id], queue, task)
    lasting = _duration("--for", limit)
    async with _reader() as app:
        handle = await app.job(job_id, queue=queue, task=task)
        try:
            result = await handle.shown_result(lasting)
        except (JobFailed, JobCancelled) as error:
            state.out.error(str(error), None, FAILED)
            return FAILED
    if state.out.as_json:
        state.out.json({"id": job_id, "state": "succeeded", "result": result})
    else:
        state.out.data(json_line(result))
    return DONE


async def cancel_command(ids: list[str], queue: str | None, task: str | None, reason: str, limit: str) -> int:
    check_names(ids, queue, task)
    timeout = _duration("--for", limit)
    by = f"{user_name()}@{socket.gethostname()}"
    async with _reader() as app:
        for job_id in dict.fromkeys(ids):
            await app.jobs.locate(job_id, queue, task)  # all of them are there, or nothing is changed
        answers = [
            await app.jobs.cancel(job_id, queue=queue, task=task, by=by, reason=reason, timeout=timeout)
            for job_id in dict.fromkeys(ids)
        ]
    return _print([(a, a.outcome is CancelOutcome.CANCELLED) for a in answers])


async def run_command(ids: list[str], queue: str | None, task: str | None) -> int:
    async def move(app: JetJobs, job_id: str) -> MoveAnswer:
        return await app.jobs.run_now(job_id, queue=queue, task=task)

    return await _move(ids, queue, task, move)


async def reschedule_command(
    job_id: str, queue: str | None, task: str | None, at: str | None, delay: str | None
) -> int:
    run_at = _moment(at, delay)

    async def move(app: JetJobs, job_id: str) -> MoveAnswer:
        return await app.jobs.reschedule(job_id, run_at, queue=queue, task=task)

    return await _move([job_id], queue, task, move)


async def priority_command(job_id: str, lane: str, queue: str | None, task: str | None) -> int:
    check_priority(lane)

    async def move(app: JetJobs, job_id: str) -> MoveAnswer:
        return await app.jobs.set_priority(job_id, lane, queue=queue, task=task)

    return await _move([job_id], queue, task, move)


# Parts


async def _move(
    ids: list[str], queue: str | None, task: str | None, move: Callable[[JetJobs, str], Awaitable[MoveAnswer]]
) -> int:
    check_names(ids, queue, task)
    async with _reader() as app:
        for job_id in dict.fromkeys(ids):
            await app.jobs.locate(job_id, queue, task)
        answers = [await move(app, job_id) for job_id in dict.fromkeys(ids)]
    return _print([(a, a.outcome in (MoveOutcome.MOVED, MoveOutcome.UNCHANGED)) for a in answers])


def _print(answers: Sequence[tuple[CancelAnswer | MoveAnswer, bool]]) -> int:
    """Say what became of each, and whether that is what was asked for; the exit code."""
    out = state.out
    if out.as_json:
        items = [
            {"id": a.job_id, "outcome": str(a.outcome), "state": a.state, "detail": a.detail} for a, _ in answers
        ]
        out.json({"items": items, "cursor": None})
    for answer, done in answers:
        line = f"{answer.job_id} {answer.outcome}" + (f": {answer.detail}" if answer.detail else "")
        if out.quiet:
            (out.data if done else out.note)(answer.job_id if done else line)
        elif not out.as_json:
            out.data(line)
    return DONE if all(done for _, done in answers) else FAILED


def check_names(ids: list[str], queue: str | None, task: str | None) -> None:
    """ConfigError for what no job can be called."""
    for job_id in ids:
        if not is_id(job_id):
            raise ConfigError(f"{job_id!r} is no job id", hint="an id is 1 to 128 letters, digits, '-' or '_'")
    for what, token in (("queue", queue), ("task", task)):
        if token is not None:
            check_token(what, token)


def _reader() -> JetJobs:
    """An app without tasks: reading and moving need the server only."""
    return JetJobs("jetjobs-cli", settings=state.settings().settings)


def _item(item: Listed) -> dict[str, Any]:
    return {**item.status.as_dict(), "arguments": item.arguments}


def _row(status: JobStatus) -> list[str]:
    since = status.ended_at or status.enqueued_at
    age = "-" if since is None else show_duration(max(0.0, (datetime.now(UTC) - since).total_seconds()))
    return [
        status.id,
        str(status.state),
        status.queue,
        status.task,
        str(status.attempt),
        age,
        status.worker or "-",
    ]


def _state(text: str | None) -> JobState | None:
    if text is None:
        return None
    try:
        return JobState(text)
    except ValueError:
        raise ConfigError(f"--state {text!r} is none of {', '.join(JobState)}") from None


def _since(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.now(UTC) - _duration("--since", text)
    except OverflowError:
        raise ConfigError(f"--since {text}: there was no such time") from None


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option}: {error}") from None


def _moment(at: str | None, delay: str | None) -> datetime:
    if (at is None) == (delay is None):
        raise ConfigError("give --at or --delay")
    if delay is not None:
        lasting = _duration("--delay", delay)
        check_delay(lasting)
        return datetime.now(UTC) + lasting
    assert at is not None
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise ConfigError(f"--at {at!r} is no ISO 8601 time") from None
    if moment.utcoffset() is None:
        raise ConfigError("--at has no time zone", hint="write 2027-01-31T09:00:00+01:00 or …Z")
    check_moment("--at", moment)
    return moment
