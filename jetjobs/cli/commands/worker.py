"""`jetjobs worker`: run the tasks of an app, in one process or several."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.app_discovery import AppNotFound
from jetjobs.cli.completion import queue_names
from jetjobs.cli.process.supervisor import supervise
from jetjobs.cli.process.worker_process import run_worker
from jetjobs.cli.state import run_async, state
from jetjobs.cli.terminal.options import App
from jetjobs.model.errors import ConfigError
from jetjobs.model.wire.validation import check_token

commands = typer.Typer()

Queues = Annotated[
    str | None,
    typer.Option(
        "-q",
        "--queue",
        help="Queues to take jobs from, each with an optional slot limit: mail,reports:5."
        " [default: those of the tasks]",
        metavar="QUEUE",
        autocompletion=queue_names,
    ),
]
Slots = Annotated[
    int | None,
    typer.Option("-c", "--slots", help="Jobs to run at once; 0 only plans schedules. [default: 10]", metavar="N"),
]
Processes = Annotated[
    int | None, typer.Option("-p", "--processes", help="Number of processes. [default: 1]", metavar="N")
]
Http = Annotated[
    str | None,
    typer.Option(help="Where to serve /livez, /readyz and /metrics, or off. [default: off]", metavar="HOST:PORT"),
]
Provision = Annotated[
    str | None,
    typer.Option(
        help="apply creates and updates streams; verify refuses to start if they differ; off checks nothing."
        " [default: apply]",
        metavar="MODE",
    ),
]


@commands.command()
def worker(
    app: App = None,
    queues: Queues = None,
    slots: Slots = None,
    processes: Processes = None,
    name: Annotated[str, typer.Option(help="Name of this worker. [default: HOST-PID]", metavar="NAME")] = "",
    burst: Annotated[bool, typer.Option("--burst", help="Exit when the queues are empty.")] = False,
    max_jobs: Annotated[
        int, typer.Option(help="Exit after this many jobs; 0 for no limit.", min=0, metavar="N")
    ] = 0,
    no_schedules: Annotated[
        bool, typer.Option("--no-schedules", help="Leave schedules and maintenance to other workers.")
    ] = False,
    stop_timeout: Annotated[
        str | None,
        typer.Option(help="How long running jobs may take to finish on stop. [default: 30s]", metavar="DURATION"),
    ] = None,
    http: Http = None,
    provision: Provision = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. [default: info]", metavar="LEVEL")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="auto, console or json. [default: auto]", metavar="FORMAT")
    ] = None,
) -> int:
    """Run the tasks of an app until SIGTERM or Ctrl-C.

    On the first signal the worker takes no new jobs and lets running jobs finish. On the second it
    stops at once and releases running jobs to other workers. The exit code is 0 after a graceful stop
    and 1 if jobs were released. With --slots 0 it runs no jobs and only plans schedules; that needs
    no app.
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
    options: dict[str, Any] = {
        "queues": queues,
        "name": name,
        "burst": burst,
        "max_jobs": max_jobs,
        "schedules": not no_schedules,
    }
    return _run(app, flags, options)


def _run(app: str | None, flags: dict[str, Any], options: dict[str, Any]) -> int:
    target = _find_app(app, flags)
    settings = state.settings(flags).settings if target is None else target.settings
    if not settings.worker.slots:
        _check_runs_no_jobs(options)
    if settings.worker.processes > 1 and not os.environ.get("JETJOBS_CHILD"):
        return supervise(sys.argv[1:], settings.worker.processes, settings)

    async def work() -> int:
        found = await state.server_app(flags) if target is None else target
        return await run_worker(found, {**options, "queues": parse_queues(options["queues"])})

    return run_async(work, via="python")  # tasks may call operations


def _check_runs_no_jobs(options: dict[str, Any]) -> None:
    """ConfigError if an option has no effect on a worker with 0 slots."""
    given = {
        "--queue": options["queues"],
        "--burst": options["burst"],
        "--max-jobs": options["max_jobs"],
        "--no-schedules": not options["schedules"],
    }
    if useless := ", ".join(option for option, value in given.items() if value):
        raise ConfigError(
            "a worker with 0 slots runs no jobs and only plans schedules", hint=f"leave out {useless}"
        )


def _find_app(name: str | None, flags: dict[str, Any]) -> JetJobs | None:
    """The app; None if there is none and the worker has 0 slots."""
    try:
        return state.load_app(name, flags)
    except AppNotFound:
        if state.settings(flags).settings.worker.slots:
            raise
        return None


def parse_queues(text: str | None) -> dict[str, int | None] | None:
    """`mail,reports:5` -> {"mail": None, "reports": 5}"""
    if text is None:
        return None
    queues: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        # Not isdigit(): it is true for '²', which int() cannot read.
        if colon and (not limit.isdecimal() or int(limit) < 1):
            raise ConfigError(f"--queue: invalid slot limit in {part!r}: it must be a number above 0")
        queues[check_token("queue", name)] = int(limit) if colon else None
    return queues
