"""A long job with a thousand steps: each writes a line to a file and a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from pydantic import BaseModel

from jetjobs import JetJobs, current_job

app = JetJobs("stepping")


class Sum(BaseModel):
    step: int = 0
    total: int = 0


def journal(line: str) -> None:
    """Append one line atomically."""
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def kills() -> int:
    return Path(os.environ["JOURNAL"]).read_text().count("kill")


def kill_soon(after_s: float) -> None:
    """End this process as `kill -9` does, at a random time."""

    def kill() -> None:
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGKILL)

    journal("kill")
    threading.Thread(target=kill, daemon=True).start()


@app.task
async def add_up(steps: int, kill_at: list[int], after_s: list[float]) -> int:
    """Add all numbers below `steps`. The worker is killed during or shortly after each step in `kill_at`."""
    job = current_job()
    state = await job.resume(Sum) or Sum()
    killed = kills()
    journal(f"resume {state.step}")
    for n in range(state.step, steps):
        if killed < len(kill_at) and n == kill_at[killed]:
            kill_soon(after_s[killed])
        journal(f"step {n}")
        state = Sum(step=n + 1, total=state.total + n)
        await job.checkpoint(state)
        job.progress(state.step / steps)
    return state.total
