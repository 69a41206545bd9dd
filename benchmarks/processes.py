"""Child processes: start them in the repository's root, read their resource use, always stop them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG_LEVEL = "warning"
_STOP_S = 10.0


@contextlib.asynccontextmanager
async def child(
    *module: str, capture: bool = False, quiet: bool = False, terminal: int | None = None
) -> AsyncIterator[Process]:
    """Run `python -m MODULE ...` while the block runs. Its standard error is inherited unless `quiet`.

    `terminal`: a file descriptor for its input and output.
    """
    output = PIPE if capture else DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *module,
        cwd=ROOT,
        stdin=DEVNULL if terminal is None else terminal,
        stdout=output if terminal is None else terminal,
        stderr=PIPE if quiet else None,
    )
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def worker_command(url: str, slots: int) -> tuple[str, ...]:
    """The worker as users start it, without --http: its metrics would be measured too."""
    options = ("--slots", str(slots), "--log-level", LOG_LEVEL)
    return ("jetjobs", "--server", url, "worker", "benchmarks.tasks:app", *options)


def bare_command(url: str, batch: int) -> tuple[str, ...]:
    return ("benchmarks.bare", url, str(batch))


def rss_mb(pid: int | str = "self") -> float:
    """Current resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no resident memory: it has ended")


def cpu_s(pid: int) -> float:
    """CPU time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
