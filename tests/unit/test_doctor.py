"""The doctor's page names every check, and its lines say what they should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jetjobs.admin import Finding
from jetjobs.cli.commands.doctor import lines_of, summary
from jetjobs.doctor.checks import topology
from jetjobs.doctor.finding import count
from jetjobs.doctor.runner import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "doctor.md"
LONG = Finding("warn", "topology", "lane default/normal: " + "so it is " * 20, "jetjobs setup apply", "plan")


def test_the_page_names_every_check() -> None:
    listed = PAGE.read_text()
    names = {check.__name__ for checks in CHECKS.values() for check in checks}
    names |= {*topology.CHECK_OF_KEY.values(), "reach", "import", "dev_server", "queues"}
    assert [name for name in sorted(names) if f"`{name}` |" not in listed] == []


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_line_that_does_not_fit_is_wrapped_and_nothing_is_lost(columns: int) -> None:
    lines = lines_of(LONG, columns)
    assert max(map(len, lines)) <= columns
    words = " ".join(" ".join(lines).split())
    assert words == f"warn topology {LONG.text.strip()} → jetjobs setup apply"


def test_off_a_terminal_a_finding_is_one_line() -> None:
    assert len(lines_of(LONG, None)) == 1
    assert len(lines_of(replace(LONG, text="two\nlines"), None)) == 1


def test_the_closing_line_counts() -> None:
    counts = count([LONG, replace(LONG, level="fail"), replace(LONG, level="ok"), replace(LONG, level="warn")])
    assert counts == {"failed": 1, "warnings": 2, "ok": 1, "left_out": 0}
    assert summary(counts) == "1 failed, 2 warnings, 1 ok"
