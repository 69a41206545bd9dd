"""`jetjobs doctor`: check the installation and say how to fix what is wrong."""

from __future__ import annotations

import functools
import shutil
import sys
import textwrap
from typing import Annotated

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.exit_codes import DONE, FAILED, AppImportError
from jetjobs.cli.state import namespaces_on, only_one, state
from jetjobs.cli.terminal.options import App
from jetjobs.cli.terminal.text import printable
from jetjobs.doctor.finding import Finding, count
from jetjobs.doctor.runner import areas, run_checks
from jetjobs.model.errors import BrokerError, ConfigError, JetJobsError
from jetjobs.model.settings import Settings
from jetjobs.model.wire.subjects import Names

commands = typer.Typer()

COLOURS = {"ok": "32", "warn": "33", "fail": "31", "skip": "2"}
INDENT = 18
"""Column at which the text of a finding begins, after level and area."""


@commands.command()
async def doctor(
    app: App = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Check only these areas: nats, topology, queues, schedules, workers, app.", metavar="AREAS"
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings as well.")] = False,
) -> int:
    """Check server, streams, queues, schedules, workers and app. Changes nothing. Exit code 1 if a check fails."""
    wanted = None if only is None else [area.strip() for area in only.split(",") if area.strip()]
    areas(wanted)  # an unknown area is reported before any check runs
    examined, trouble = _find(app)
    if examined is not None:
        settings, namespace = examined.settings, examined.namespace
    else:
        loaded = state.settings()
        state.note_dev_server(loaded)
        settings, namespace = loaded.settings, await _find_namespace(loaded.settings)
    names = Names(namespace) if namespace else None
    found = await run_checks(settings, names, examined, only=wanted, trouble=trouble)
    counts = count(found)
    if state.out.as_json:
        state.out.json({"items": [finding.as_dict() for finding in found], **counts})
    else:
        for finding in found:
            for line in lines_of(finding, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
                state.out.data(_painted(printable(line), finding.level), painted=True)
        state.out.data(summary(counts))
    return FAILED if counts["failed"] or (strict and counts["warnings"]) else DONE


async def _find_namespace(settings: Settings) -> str:
    """Without an app; empty if it is not known. ConfigError if the server has several."""
    if settings.queues.namespace is not None:
        return settings.queues.namespace
    try:
        found = await namespaces_on(settings)
    except (BrokerError, ConfigError):
        return ""  # the first check reports why the server is unreachable
    return only_one(found) if found else ""


def _find(name: str | None) -> tuple[JetJobs | None, Finding | None]:
    """The app, or a finding that says why there is none. The server can be checked without it."""
    try:
        return state.load_app(name), None
    except AppImportError as error:
        cause = error.__cause__
        text = f"{error}: {type(cause).__name__}: {cause}"
        return None, Finding("fail", "app", text, "`jetjobs worker` shows the traceback", "import")
    except ConfigError as error:
        if name or state.settings().settings.app:
            return None, Finding("fail", "app", str(error), error.hint or "", "import")
        return None, Finding("skip", "app", f"tasks: {error}", error.hint or "", "import")
    except JetJobsError as error:
        return None, Finding("fail", "app", f"the app cannot be imported: {error}", error.hint or "", "import")


def lines_of(finding: Finding, columns: int | None) -> list[str]:
    """One line, or several on a terminal that is too narrow for it.

    >>> lines_of(Finding("warn", "topology", "lane a/high is missing", "jetjobs setup apply"), None)
    ['warn  topology    lane a/high is missing  → jetjobs setup apply']
    """
    head = f"{finding.level:<6}{finding.area:<12}"
    hint = f"→ {finding.hint}" if finding.hint else ""
    whole = f"{head}{finding.text}  {hint}".rstrip()
    if columns is None or len(whole) <= columns:
        return [whole.replace("\n", " ")]
    room = max(20, columns - INDENT)
    # Not at hyphens: an option must stay whole to be copied.
    wrap = functools.partial(textwrap.wrap, width=room, break_on_hyphens=False)
    parts = [*wrap(finding.text), *(wrap(hint, subsequent_indent="  ") if hint else [])]
    return [head + parts[0], *(" " * INDENT + part for part in parts[1:])]


def summary(counts: dict[str, int]) -> str:
    """The closing line.

    >>> summary({"failed": 1, "warnings": 2, "ok": 14, "left_out": 1})
    '1 failed, 2 warnings, 14 ok, 1 skipped'
    """
    warnings = "1 warning" if counts["warnings"] == 1 else f"{counts['warnings']} warnings"
    skipped = f", {counts['left_out']} skipped" if counts["left_out"] else ""
    return f"{counts['failed']} failed, {warnings}, {counts['ok']} ok{skipped}"


def _painted(line: str, level: str) -> str:
    return state.out.paint(level, COLOURS[level]) + line[len(level) :] if line.startswith(level) else line
