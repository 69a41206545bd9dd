"""A line on standard error that shows how far a job is, redrawn in place. Only on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import unicodedata
from collections.abc import AsyncIterator
from typing import Any, TextIO

from jetjobs.define.handle import JobHandle
from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import FINAL, JobStatus

WIDEST = 24
_CLEAR = "\r\x1b[K"


@contextlib.asynccontextmanager
async def showing(handle: JobHandle[Any], to: TextIO | None = None) -> AsyncIterator[None]:
    """Follow the job while the block runs, and leave nothing behind. Without a terminal it does nothing."""
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
        to.write(_CLEAR)
        to.flush()


async def _draw(handle: JobHandle[Any], to: TextIO) -> None:
    with contextlib.suppress(JetJobsError):  # whoever waits for the result is told
        async for status in handle.follow():
            if status.state not in FINAL:
                to.write(_CLEAR + line(status, _columns(to)))
                to.flush()


def line(status: JobStatus, columns: int) -> str:
    """The state, or bar, per cent and message, within so many columns."""
    if status.progress is None:
        return cut(str(status.state or ""), columns - 1)
    width = max(4, min(WIDEST, columns // 3))
    full = int(status.progress * width)
    bar = f"[{'#' * full}{'·' * (width - full)}]"
    return cut(f"{bar} {int(status.progress * 100):3} %  {status.message or ''}".rstrip(), columns - 1)


def cut(text: str, columns: int) -> str:
    """So much of it as fits into one line; a message may hold anything."""
    used, kept = 0, ""
    for character in text:
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > columns:
            break
        kept += character if character.isprintable() else " "
    return kept


def _columns(to: TextIO) -> int:
    try:
        return os.get_terminal_size(to.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
