"""The task of the isolation benchmark. The module imports little, so that only jetjobs' start is measured."""

from __future__ import annotations

from jetjobs import JetJobs

app = JetJobs("bench-isolation")


@app.task(isolation="process")
def noop(text: str) -> int:
    return len(text)
