"""Progress bars on a terminal, redrawn in place."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TextIO

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
    done = drawn = 0
    shown = total > 1 and sys.stderr.isatty()

    def step(count: int = 1) -> None:
        nonlocal done, drawn
        done += count
        if shown and (done - drawn >= 20 or done >= total):
            drawn = done
            filled = min(WIDTH, WIDTH * done // total)
            bar = "█" * filled + "·" * (WIDTH - filled)
            print(f"\r{bar} {done}/{total} {word}", end="", file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        if shown:
            print(file=sys.stderr)
