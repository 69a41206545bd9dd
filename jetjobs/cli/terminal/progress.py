"""What a command shows and asks while it works: bars on a terminal, redrawn in place, and questions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TextIO

from jetjobs.cli.state import state
from jetjobs.cli.terminal.output import REFUSED, printable
from jetjobs.define.handle import JobHandle
from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import FINAL, JobStatus

WIDTH = 30
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


@contextlib.contextmanager
def progress(word: str, total: int) -> Iterator[Callable[[], None]]:
    """How many are done: a bar on a terminal, nothing elsewhere. What is yielded is called for each thing done."""
    done = 0
    shown = total > 1 and sys.stderr.isatty()

    def step() -> None:
        nonlocal done
        done += 1
        if shown and (done % 20 == 0 or done >= total):
            filled = min(WIDTH, WIDTH * done // total)
            bar = "█" * filled + "·" * (WIDTH - filled)
            print(f"\r{bar} {done}/{total} {word}", end="", file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        if shown:
            print(file=sys.stderr)


async def confirmed(what: str, *, yes: bool, word: str | None = None) -> bool:
    """Whether to go on: `yes`, or the answer on the terminal is yes (or `word`, where one is given)."""
    if yes:
        return True
    if not sys.stdin.isatty():
        state.out.error(f"this would {what}; nothing was changed", "say --yes", REFUSED)
        return False
    try:
        if word is not None:
            agreed = await _ask(f"This will {what}. Type {word} to go on: ") == word
        else:
            agreed = (await _ask(f"{what}? [y/N] ")).lower() in ("y", "yes")
    except asyncio.CancelledError:
        state.out.note("\nInterrupted. Nothing changed.")
        raise
    if not agreed:
        state.out.note("Nothing changed.")
    return agreed


async def _ask(question: str) -> str:
    """Ask on the terminal. The event loop goes on meanwhile: the connection lives, and Ctrl-C is heard."""
    print(printable(question), end="", file=sys.stderr, flush=True)
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not answered.done():
            answered.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin.fileno(), read)
    try:
        return (await answered).strip()
    finally:
        loop.remove_reader(sys.stdin.fileno())
