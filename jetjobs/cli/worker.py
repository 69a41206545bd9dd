"""`jetjobs worker`: run the tasks of an app until told to stop."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from jetjobs.cli.state import run_async, state


def add_to(tree: typer.Typer) -> None:
    tree.command("worker")(worker)


def worker(
    app: Annotated[
        str | None, typer.Argument(help="MODULE:NAME of the app; found by itself when there is one.")
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option("-q", "--queues", help="Queues, each with an optional slot limit: mail,reports:5."),
    ] = None,
    slots: Annotated[int | None, typer.Option("-c", "--slots", help="Jobs to run at once. [default: 10]")] = None,
    processes: Annotated[
        int | None, typer.Option("-p", "--processes", help="Processes to run. [default: 1]")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of this worker. [default: HOST-PID]")] = "",
    burst: Annotated[bool, typer.Option("--burst", help="Exit when the queues are empty.")] = False,
    max_jobs: Annotated[int, typer.Option(help="Exit after this many jobs.", min=0)] = 0,
    no_schedules: Annotated[
        bool, typer.Option("--no-schedules", help="Leave schedules and sweeps to other workers.")
    ] = False,
    stop_timeout: Annotated[
        str | None, typer.Option(help="How long running jobs may finish on stop. [default: 30s]")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT of /livez, /readyz, /metrics, or off. [default: off]")
    ] = None,
    provision: Annotated[
        str | None,
        typer.Option(help="apply: create what is missing; verify: refuse if it is; off. [default: apply]"),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, console or json. [default: auto]")] = None,
) -> None:
    """Run the tasks of an app until SIGTERM or Ctrl-C.

    The first signal takes no new work and lets running jobs finish; the second stops at once, and what
    still runs is given back. Exit code 0 after a clean stop, 1 when jobs were cut short.
    """
    flags = {
        "worker.slots": slots,
        "worker.processes": processes,
        "worker.stop_timeout": stop_timeout,
        "worker.http": http,
        "worker.provision": provision,
        "observe.log_level": log_level,
        "observe.log_format": log_format,
    }
    loaded = state.settings(flags)
    if loaded.settings.worker.processes > 1 and not os.environ.get("JETJOBS_CHILD"):
        from jetjobs.cli.processes import supervise

        raise typer.Exit(supervise(sys.argv[1:], loaded.settings.worker.processes, loaded.settings))
    target = state.load_app(app, loaded)
    options: dict[str, Any] = {
        "queues": parse_queues(queues),
        "name": name,
        "burst": burst,
        "max_jobs": max_jobs,
        "schedules": not no_schedules,
    }
    from jetjobs.cli.run_worker import run_worker

    raise typer.Exit(run_async(lambda: run_worker(target, options)))


def parse_queues(text: str | None) -> dict[str, int | None] | None:
    """`mail,reports:5` -> {"mail": None, "reports": 5}"""
    from jetjobs.model.errors import ConfigError
    from jetjobs.model.names import check_token

    if text is None:
        return None
    queues: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        # Not isdigit(): that holds for '²' too, which int() cannot read.
        if colon and (not limit.isdecimal() or int(limit) < 1):
            raise ConfigError(f"--queues {part!r}: the limit must be a number above 0")
        queues[check_token("queue", name)] = int(limit) if colon else None
    return queues
