"""Say why the job that a command waits for has not started."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

from jetjobs.app import JetJobs
from jetjobs.cli.state import state
from jetjobs.cli.terminal.progress import CLEAR
from jetjobs.define.handle import JobHandle
from jetjobs.model.errors import JetJobsError

EXPLAIN_S = 1.0
"""How long to wait before the first explanation, and between two looks at the server."""


@contextlib.asynccontextmanager
async def explaining(app: JetJobs, handle: JobHandle[Any]) -> AsyncIterator[None]:
    """While the block runs, print a line to standard error when the job has not started after a second, and again
    when the reason changes."""
    if state.timeout_s:
        state.out.note("--timeout limits the connection, not the wait: that is --wait-timeout")
    looking = asyncio.create_task(_explain(app, handle))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _explain(app: JetJobs, handle: JobHandle[Any]) -> None:
    shown: tuple[object, ...] = ("running",)
    while True:
        await asyncio.sleep(EXPLAIN_S)
        reason = None
        with contextlib.suppress(JetJobsError):  # the block that waits for the result gets the error
            reason = await app.jetstream.waiting_reason(handle)
        if reason is None or reason.key == shown:
            continue
        shown = reason.key
        if shown[0] != "running":  # its progress is shown, if it reports any
            clear = CLEAR if sys.stderr.isatty() else ""
            hint = f"; {reason.hint}" if reason.hint else ""
            print(clear, end="", file=sys.stderr)
            state.out.note(f"job {handle.id} waits: {reason.text}{hint}")
