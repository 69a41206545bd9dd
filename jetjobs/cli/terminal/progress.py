"""Progress bars on a terminal, redrawn in place."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TextIO

from jetjobs.cli.state import state
from jetjobs.cli.terminal.screen import terminal_size
from jetjobs.cli.terminal.text import cut
from jetjobs.define.handle import JobHandle
from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import FINAL, JobStatus

WIDTH = 30
WIDEST = 24
CLEAR = "\r\x1b[K"


@contextlib.asynccontextmanager
async def showing(handle: JobHandle[Any], to: TextIO | None = None) -> AsyncIterator[None]:
    """Show the progress of a job while the block runs, then clear the line. Does nothing without a terminal."""
    to = to or sys.stderr
    if not to.isatty():
        yield
        return
    drawing = asyncio.create_task(_draw(handle, to))
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        to.write(CLEAR)
        to.flush()


async def _draw(handle: JobHandle[Any], to: TextIO) -> None:
    with contextlib.suppress(JetJobsError):  # the block that waits for the result gets the error
        async for status in handle.follow():
            if status.state not in FINAL:
                to.write(CLEAR + line(status, terminal_size(to)[0]))
                to.flush()


def line(status: JobStatus, columns: int) -> str:
    """Bar, percentage and message within `columns`; the state if the job reports no progress."""
    if status.progress is None:
        return cut(str(status.state or ""), columns - 1)
    width = max(4, min(WIDEST, columns // 3))
    full = int(status.progress * width)
    bar = f"[{'#' * full}{'·' * (width - full)}]"
    return cut(f"{bar} {int(status.progress * 100):3} %  {status.message or ''}".rstrip(), columns - 1)


@contextlib.contextmanager
def progress(word: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar that counts things done. Call the yielded function with each number done. Needs a terminal."""
    if total <= 1 or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not state.out.coloured(sys.stderr))
    columns = (BarColumn(WIDTH), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(word, total=total)
        yield lambda count: bar.advance(task, count)
