"""docs/explanation/faults.md promises tests: every one it names must exist, and every row must name one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "explanation" / "faults.md").read_text()
NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_named_on_the_page_of_faults_exists() -> None:
    named = NAMED.findall(PAGE)
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or name not in functions_of(ROOT / file)
    ]
    assert missing == []


def test_every_row_of_the_page_of_faults_names_its_tests() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    assert rows
    without = [row for row in rows if not NAMED.search(row.rsplit(" | ", 1)[1])]
    assert without == []


def test_nothing_in_backquotes_that_looks_like_a_test_escapes_the_check() -> None:
    assert PAGE.count("::") == len(NAMED.findall(PAGE))
