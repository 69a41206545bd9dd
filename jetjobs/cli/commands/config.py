"""`jetjobs config`: every setting with its value and its source."""

from __future__ import annotations

from pathlib import Path

import typer

from jetjobs.cli.state import state
from jetjobs.config import find_file

commands = typer.Typer()


@commands.command()
def show() -> None:
    """Print each setting with its value and source. Names the configuration file in use; secrets are masked."""
    rows = state.discover(tolerant=True).rows()
    found = state.config or find_file(Path.cwd())
    file = None if found is None else str(found)
    if state.out.as_json:
        state.out.json({"file": file, "items": [{"key": k, "value": v, "source": s} for k, v, s in rows]})
        return
    if not state.out.quiet:
        state.out.data(f"configuration file: {file or '-'}\n")
    state.out.table(["SETTING", "VALUE", "SOURCE"], [[k, v or "-", s] for k, v, s in rows])
