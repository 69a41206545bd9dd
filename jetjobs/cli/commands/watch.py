"""`jetjobs jobs watch`: follow jobs until they end, or show the running ones."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from jetjobs.admin.partial_ids import complete_id
from jetjobs.app import JetJobs
from jetjobs.cli.commands.jobs import check_names
from jetjobs.cli.commands.top import show
from jetjobs.cli.exit_codes import DONE, FAILED
from jetjobs.cli.live.view_state import Page
from jetjobs.cli.state import run_async, state
from jetjobs.cli.terminal.options import JobQueue, JobTask, stripped
from jetjobs.cli.terminal.progress import line as bar_line
from jetjobs.cli.terminal.screen import terminal_size
from jetjobs.cli.terminal.text import cut, short_id
from jetjobs.define.handle import JobHandle
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import ConfigError
from jetjobs.model.job import FINAL, JobState, JobStatus
from jetjobs.model.wire.lenient_json import write_json

MOST = 200
"""Limited because each job is queried once a second."""
REFRESH_S = 1.0


commands = typer.Typer()


@commands.command()
def watch(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of jobs. [default: all running jobs]", callback=stripped)
    ] = None,
    queue: JobQueue = None,
    task: JobTask = None,
) -> int:
    """Follow jobs until all have ended.

    Without ids, show the running jobs live. The exit code is 0 if all succeeded, otherwise 1.
    """
    ids = list(dict.fromkeys(ids or []))
    check_names(ids, queue, task)
    if len(ids) > MOST:
        raise ConfigError(f"cannot watch {len(ids)} jobs at once; the maximum is {MOST}")
    on_terminal = sys.stdout.isatty() and not state.out.as_json
    if on_terminal and not ids:
        return show(Page("running"), REFRESH_S, queue, task)
    return run_async(lambda: _watch(ids, queue, task, on_terminal))


async def _watch(ids: list[str], queue: str | None, task: str | None, on_terminal: bool) -> int:
    async with state.reader() as app:
        if not ids:
            return await _print_running(app, queue, task)
        ids = list(dict.fromkeys([await complete_id(app.jetstream, job_id, queue, task) for job_id in ids]))
        handles = [await app.job(job_id, queue=queue, task=task) for job_id in ids]
        block = Block(ids) if on_terminal else None
        ends = await asyncio.gather(*(_follow(handle, block) for handle in handles))
    return DONE if all(end is JobState.SUCCEEDED for end in ends) else FAILED


async def _follow(handle: JobHandle[Any], block: Block | None) -> JobState | None:
    end: JobState | None = None
    async for status in handle.follow():
        end = status.state
        if block is not None:
            block.show(status)
        else:
            _print(status)
    return end


async def _print_running(app: JetJobs, queue: str | None, task: str | None) -> int:
    for status in await app.jobs.running():
        if queue in (None, status.queue) and task in (None, status.task):
            _print(status)
    return DONE


def _print(status: JobStatus) -> None:
    print(write_json(status.as_dict(), default=str), flush=True)


class Block:
    """One line per job, redrawn in place; with more jobs than terminal rows, one line per change."""

    def __init__(self, ids: list[str]) -> None:
        self._lines = dict.fromkeys(ids, "")
        self._drawn = False

    def show(self, status: JobStatus) -> None:
        columns, rows = terminal_size(sys.stdout)
        name = short_id(status.id)
        text = f"{name}  {describe(status, columns - len(name) - 2)}"
        self._lines[status.id] = text
        if len(self._lines) >= rows:
            sys.stdout.write(cut(text, columns - 1) + "\n")
        else:
            up = f"\x1b[{len(self._lines)}A" if self._drawn else ""
            sys.stdout.write(up + "".join(f"\r\x1b[K{cut(line, columns - 1)}\n" for line in self._lines.values()))
            self._drawn = True
        sys.stdout.flush()


def describe(status: JobStatus, columns: int) -> str:
    """The progress bar of a running job, or how the job ended."""
    if status.state not in FINAL:
        return bar_line(status, max(10, columns))
    took = ""
    if status.started_at is not None and status.ended_at is not None:
        took = f" in {show_duration(max(0.0, (status.ended_at - status.started_at).total_seconds()))}"
    if status.state is JobState.DEAD:
        return f"dead: {status.reason or 'unknown'}"
    return f"{status.state}{took if status.state is JobState.SUCCEEDED else ''}"
