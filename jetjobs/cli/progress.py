"""What a command shows and asks while it works through many things: a bar on a terminal, and a question."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator

from jetjobs.cli.output import printable

WIDTH = 30


@contextlib.contextmanager
def progress(word: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere. What is yielded is called for each thing done."""
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


async def ask(question: str) -> bool:
    """Ask on the terminal, yes or no."""
    return (await ask_text(f"{question} [y/N] ")).lower() in ("y", "yes")


async def ask_text(question: str) -> str:
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
