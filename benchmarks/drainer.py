"""Run one worker in its own process and report start times of its jobs and its memory as JSON."""

from __future__ import annotations

import json
import sys

import uvloop

from benchmarks.bench import log_as_workers_do, opened
from benchmarks.processes import rss_mb
from benchmarks.tasks import app, stamps

EARLY = 900
"""Number of jobs for the early rate: a queue of 1,000 can supply that many."""


async def _main(url: str, slots: int, max_jobs: int) -> None:
    log_as_workers_do()
    async with opened(url):
        rss_before = rss_mb()
        await app.worker(slots=slots, max_jobs=max_jobs).run()
    report = {
        "first_at": stamps[0],
        "rate": _rate(len(stamps)),
        "early_rate": _rate(min(EARLY, len(stamps))),
        "rss_before": rss_before,
        "rss_after": rss_mb(),
    }
    sys.stdout.write(json.dumps(report) + "\n")


def _rate(jobs: int) -> float:
    """The rate over the first `jobs` jobs, from the start of the first to the start of the last."""
    return (jobs - 1) / (stamps[jobs - 1] - stamps[0])


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
