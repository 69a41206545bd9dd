"""The task that the benchmark of isolation calls. Small, so that the start of a child is jetjobs' own."""

from __future__ import annotations

from jetjobs import JetJobs

app = JetJobs("bench-isolation")


@app.task(isolation="process")
def noop(text: str) -> int:
    return len(text)
