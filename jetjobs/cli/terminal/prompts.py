"""Confirmation by the user before a command changes many things or deletes them."""

from __future__ import annotations

import asyncio
import sys

from jetjobs.cli.exit_codes import REFUSED
from jetjobs.cli.state import state
from jetjobs.cli.terminal.text import printable


async def confirmed(what: str, *, yes: bool, word: str | None = None) -> bool:
    """Whether to proceed: `yes` was given, or the user answers yes (or types `word`, if given)."""
    if yes:
        return True
    if not sys.stdin.isatty():
        state.out.error(f"this would {what}; nothing was changed", "confirm with --yes", REFUSED)
        return False
    try:
        if word is not None:
            agreed = await _ask(f"This will {what}. Type {word} to continue: ") == word
        else:
            agreed = (await _ask(f"{what}? [y/N] ")).lower() in ("y", "yes")
    except asyncio.CancelledError:
        state.out.note("\nInterrupted. Nothing changed.")
        raise
    if not agreed:
        state.out.note("Nothing changed.")
    return agreed


async def _ask(question: str) -> str:
    """Ask on the terminal. The event loop keeps running: the connection stays alive and Ctrl-C works."""
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
