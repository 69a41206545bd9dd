"""`jetjobs config`: every setting with its value and where it came from."""

from __future__ import annotations

import typer

from jetjobs.cli.state import state

commands = typer.Typer(help="Settings and where they come from.", no_args_is_help=True)


def add_to(tree: typer.Typer) -> None:
    tree.add_typer(commands, name="config")


@commands.command()
def show() -> None:
    """Print each setting with its value and source; secrets are masked."""
    rows = state.settings().rows()
    if state.out.as_json:
        state.out.json({"items": [{"key": k, "value": v, "source": s} for k, v, s in rows]})
    else:
        state.out.table(["SETTING", "VALUE", "SOURCE"], [[k, v or "-", s] for k, v, s in rows])


@commands.command()
def path() -> None:
    """Print the configuration file in use."""
    from pathlib import Path

    from jetjobs.config import find_file
    from jetjobs.model.errors import ConfigError

    found = state.config or find_file(Path.cwd())
    if found is None:
        raise ConfigError(
            "there is no configuration file", hint="jetjobs.toml, or [tool.jetjobs] in pyproject.toml"
        )
    if state.out.as_json:
        state.out.json({"path": str(found)})
    else:
        state.out.data(str(found))
