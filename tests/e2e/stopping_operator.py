"""Change the priority of a job and stop after a step: `python -m tests.e2e.stopping_operator ID PRIORITY STEP`.

The process prints `stopped` and sends SIGSTOP to itself. A test kills it, or continues it and reads its answer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from jetjobs.admin.changes import reschedule
from jetjobs.jetstream.jobs.locator import JobLocator
from tests.e2e.journal_tasks import app

STEPS = ("looked", "copied", "looked again", "deleted", "looked at last")


def stopping(step: Callable[..., Awaitable[Any]], done: Any, last: int) -> Callable[..., Awaitable[Any]]:
    async def stepped(*args: Any, **kwargs: Any) -> Any:
        answer = await step(*args, **kwargs)
        if next(done) == last:
            print("stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    return stepped


async def main(job_id: str, priority: str, last: int) -> None:
    done = itertools.count(1)
    for owner, name in (
        (JobLocator, "was_delivered"),
        (reschedule.Rescheduler, "_stored"),
        (reschedule, "delete_message"),
    ):
        setattr(owner, name, stopping(getattr(owner, name), done, last))
    async with app:
        answer = await app.jobs.set_priority(job_id, priority)
    print(f"answer: {answer.outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
