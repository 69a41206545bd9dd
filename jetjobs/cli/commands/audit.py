"""`jetjobs audit`: list who changed what."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.state import state
from jetjobs.cli.terminal.empty import next_step, or_empty
from jetjobs.cli.terminal.options import Cursor, Limit, optional, read_duration
from jetjobs.cli.terminal.palette import faint, late_style
from jetjobs.cli.terminal.table import Look
from jetjobs.model.views.audit import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    UNREADABLE,
    AuditEntry,
    AuditFilter,
    AuditPage,
)

commands = typer.Typer()

_BAD = (FAILED, INTERRUPTED, REFUSED, UNREADABLE)
_LOOK = Look(styles={0: faint, 5: lambda text: late_style(text) if text.startswith(_BAD) else ""})
_NO_ENTRIES = "no entries yet: operators have changed nothing"
_NO_MATCH = "no entries match; `jetjobs audit list` without options lists all"


@commands.command("list")
async def list_entries(
    since: Annotated[
        str | None, typer.Option(help="Only entries within this time: 1h, 30d.", metavar="DURATION")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(help="Only this action, or a pattern: queue.pause, queue.*, *.delete.", metavar="ACTION"),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Only entries with this text in who did it.", metavar="TEXT")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Only entries with this text in the target: an id, a name.", metavar="TEXT"),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List what operators did, newest first. Prints who, where from, why, and with what outcome."""
    lasting = optional(read_duration, "--since", since)
    wanted = AuditFilter(None, action, by, target)
    async with state.reader() as app:
        if lasting is not None:  # entries have the server's time
            wanted = AuditFilter(await app.jetstream.server_clock.now() - lasting, action, by, target)
        page = await or_empty(app, app.audit.page(wanted, limit=limit, cursor=cursor), AuditPage([], None, 0))
        found = page.items or page.cursor or cursor
        empty = "" if found else await next_step(app, _NO_ENTRIES if wanted == AuditFilter() else _NO_MATCH)
    out = state.out
    if out.as_json:
        out.json(page.as_dict())
    else:
        head = ["WHEN", "ACTION", "TARGET", "BY", "VIA", "OUTCOME", "REASON"]
        out.table(head, [_row(entry) for entry in page.items], shrink=(6, 2, 3, 5), name=2, look=_LOOK)
        if empty:
            out.note(empty)
    if page.cursor is not None:
        looked = f"looked at {page.scanned:,} entries so far; " if len(page.items) < limit else ""
        out.note(f"{looked}more: --cursor {page.cursor}")


def _row(entry: AuditEntry) -> list[str]:
    counts = ", ".join(f"{number:,} {outcome}" for outcome, number in entry.counts.items())
    detail = counts or entry.detail
    outcome = f"{entry.outcome}: {detail}" if detail else entry.outcome
    cells = [entry.action, entry.target, entry.by, entry.via, outcome, entry.reason]
    return [f"{entry.at:%Y-%m-%d %H:%M:%SZ}", *(cell or "-" for cell in cells)]
