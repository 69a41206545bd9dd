"""The reference pages name what the code has, all of it and nothing else."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import jetjobs
from jetjobs.observe.logs import _LINES, _OUTCOMES
from tests.unit.test_metrics import AWorker, metrics_of

CODE = Path(jetjobs.__file__).parent
DOCS = CODE.parent / "docs" / "reference"
PHASES = ("started", "ready", "recycling", "quiet", "stopped")
MADE_UP = {
    "job.{event.outcome}": {f"job.{outcome}" for outcome in _OUTCOMES},
    "worker.{event.phase}": {f"worker.{phase}" for phase in PHASES},
    "{kind}": {"job.record_dropped", "job.webhook_dropped", *(kind for _, kind, _ in _LINES.values())},
}
"""Events whose names are put together, and what they can be."""


def first_column(page: str) -> set[str]:
    text = (DOCS / page).read_text()
    return {match[1] for match in re.finditer(r"^\| `([^`]+)` \|", text, re.MULTILINE)}


def extras() -> Iterator[tuple[str, ast.expr, list[str]]]:
    """Every dict in the code with an `event` in it: where, the event, and the other keys that are literal."""
    for path in sorted(CODE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield f"{path.name}:{node.lineno}", value, [str(k) for k in keys]


def events_in_code() -> set[str]:
    found: set[str] = set()
    for where, value, _ in extras():
        if isinstance(value, ast.Constant):
            found.add(str(value.value))
        else:
            text = ast.unparse(value).removeprefix("f").strip("'\"")
            text = text if isinstance(value, ast.JoinedStr) else f"{{{text}}}"
            assert text in MADE_UP, f"{where}: what can {text} be?"
            found |= MADE_UP[text]
    return found


def test_every_event_of_the_logs_is_in_the_table_and_no_other() -> None:
    table = {name for name in first_column("logs.md") if "." in name}
    assert table == events_in_code()


def test_no_fact_of_a_line_has_a_name_that_logging_keeps_for_itself() -> None:
    reserved = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    assert [(where, key) for where, _, keys in extras() for key in keys if key in reserved] == []


def test_every_metric_is_in_the_table_and_no_other() -> None:
    page = set()
    for family in metrics_of(AWorker()).collect():
        page.add(f"{family.name}_{suffix}" if (suffix := _suffix(family.type)) else family.name)
    assert page == {name for name in first_column("metrics.md") if name.startswith("jetjobs_")}


def _suffix(kind: str) -> str:
    return {"counter": "total", "info": "info"}.get(kind, "")
