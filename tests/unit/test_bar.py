"""The progress bar of a job."""

from __future__ import annotations

import io

import pytest

from jetjobs.cli.terminal.progress import line, showing
from jetjobs.define.handle import JobHandle
from jetjobs.model.job import JobState, JobStatus


def status(progress: float | None, message: str | None = None) -> JobStatus:
    return JobStatus("j", JobState.RUNNING, "q", "t", progress=progress, message=message)


def test_a_job_that_says_nothing_is_shown_by_its_state() -> None:
    assert line(status(None), 80) == "running"
    assert line(status(None), 5) == "runn"


def test_bar_per_cent_and_message() -> None:
    assert line(status(0.0), 40) == "[·············]   0 %"
    assert line(status(0.5, "half"), 40) == "[######·······]  50 %  half"
    assert line(status(1.0, "done"), 200) == "[########################] 100 %  done"
    assert line(status(0.999), 200).endswith(" 99 %")  # 100 % only when done


@pytest.mark.parametrize("columns", [1, 10, 20, 40, 80])
def test_no_line_is_wider_than_its_terminal(columns: int) -> None:
    for message in ("x" * 500, "進捗" * 100, "a\tb\nc\x1b[2J" * 20):
        shown = line(status(0.5, message), columns)
        assert sum(2 if character in "進捗" else 1 for character in shown) < max(2, columns)
        assert shown.isprintable()


async def test_nothing_is_written_without_a_terminal() -> None:
    handle: JobHandle[None] = JobHandle("j", "q", "t", run="", stores_result=True, duplicate=False)
    to = io.StringIO()
    async with showing(handle, to):
        pass
    assert to.getvalue() == ""
