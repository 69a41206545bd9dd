"""`jetjobs worker`: run the tasks of an app until told to stop, with logs, signals, health port and exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.app_discovery import AppNotFound
from jetjobs.cli.process.supervisor import supervise
from jetjobs.cli.state import heeds_hangup, run_async, state
from jetjobs.cli.terminal.options import App
from jetjobs.cli.terminal.output import DONE, FAILED, RECYCLED, exit_code
from jetjobs.config import LoadedSettings
from jetjobs.define.context import running_job
from jetjobs.jetstream.topology import Change
from jetjobs.model.errors import ConfigError, JetJobsError
from jetjobs.model.wire.validation import check_token
from jetjobs.observe.health import LISTENING, Health
from jetjobs.observe.logs import log_event, set_up
from jetjobs.worker.options import default_name
from jetjobs.worker.worker import Worker

commands = typer.Typer()


@commands.command()
def worker(
    app: App = None,
    queues: Annotated[
        str | None,
        typer.Option("-q", "--queues", help="Queues, each with an optional slot limit: mail,reports:5."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("-c", "--slots", help="Jobs to run at once; 0: only plan schedules. [default: 10]"),
    ] = None,
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
) -> int:
    """Run the tasks of an app until SIGTERM or Ctrl-C.

    The first signal takes no new work and lets running jobs finish; the second stops at once, and what
    still runs is given back. Exit code 0 after a clean stop, 1 when jobs were cut short. With --slots 0
    it takes no jobs: it plans schedules, and needs no app for that.
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
    given = {"--queues": queues, "--burst": burst, "--max-jobs": max_jobs, "--no-schedules": no_schedules}
    if not loaded.settings.worker.slots and any(given.values()):
        useless = ", ".join(option for option, value in given.items() if value)
        raise ConfigError(f"a worker with 0 slots takes no jobs and only plans schedules: leave out {useless}")
    if loaded.settings.worker.processes > 1 and not os.environ.get("JETJOBS_CHILD"):
        return supervise(sys.argv[1:], loaded.settings.worker.processes, loaded.settings)
    target = _find_app(app, loaded)
    options: dict[str, Any] = {
        "queues": parse_queues(queues),
        "name": name,
        "burst": burst,
        "max_jobs": max_jobs,
        "schedules": not no_schedules,
    }
    return run_async(lambda: run_worker(target, options))


def _find_app(name: str | None, loaded: LoadedSettings) -> JetJobs:
    """The app; where none is to be found, one without tasks for a worker that takes no jobs."""
    try:
        return state.load_app(name, loaded)
    except AppNotFound:
        if loaded.settings.worker.slots:
            raise
        return JetJobs("jetjobs-cli", settings=loaded.settings)


def parse_queues(text: str | None) -> dict[str, int | None] | None:
    """`mail,reports:5` -> {"mail": None, "reports": 5}"""
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


async def run_worker(app: JetJobs, options: dict[str, Any]) -> int:
    """Provision, run, serve health; the exit code."""

    def job_fields() -> Mapping[str, Any]:
        job = running_job()
        return {} if job is None else job.log_fields

    settings = app.settings
    options = {**options, "name": options["name"] or default_name()}
    origin = {"app": app.name, "worker_id": options["name"]}
    set_up(settings.observe.log_level, settings.observe.log_format, job_fields, origin)
    app.observe(log_event)
    async with app:
        queues = options["queues"]
        await _prepare(app, list(queues) if queues else app.task_queues)
        worker = app.worker(**options)
        with _serving(app, worker, settings.worker.http), _signals(worker):
            try:
                await worker.run()
                code = RECYCLED if worker.recycling else FAILED if worker.cut_short else DONE
            except JetJobsError as error:
                code = exit_code(error)
                state.out.error(str(error), error.hint, code)
    if left := worker.left_behind:
        # Python would wait for them; their jobs were given back, and would be done twice.
        extra = {"event": "worker.left_behind", "tasks": left}
        logging.getLogger("jetjobs.worker").warning("left behind: tasks that did not end", extra=extra)
        logging.shutdown()
        os._exit(code)
    return code


async def _prepare(app: JetJobs, queues: Sequence[str]) -> None:
    provision = app.settings.worker.provision
    if provision == "apply":
        _log_topology(await app.provision(queues))
    elif provision == "verify":
        await app.verify(queues)


def _log_topology(changes: Sequence[Change]) -> None:
    """What was made, and what had to be put right: that may be somebody else's change undone."""
    log = logging.getLogger("jetjobs.topology")
    made = [change.wanted.label for change in changes if change.action == "create"]
    for change in changes:
        if change.action == "update":
            extra = {"event": "topology.drifted", "what": change.wanted.label, "keys": sorted(change.diff)}
            log.warning("was not as wanted, and was changed", extra=extra)
    if made:
        log.info("created on the server", extra={"event": "topology.applied", "what": made})


@contextlib.contextmanager
def _serving(app: JetJobs, worker: Worker, address: str) -> Iterator[None]:
    """Metrics and health, on the port that was asked for or, as one of several processes, on the supervisor's."""
    if address == "off":
        yield
        return
    metrics = app.metrics(worker)
    worker.count_queues = True
    health = Health(metrics.registry, lambda: worker.ready, lambda: worker.leases.silent_s)
    if left_for_us := os.environ.pop(LISTENING, ""):
        health.start_on(socket.socket(fileno=int(left_for_us)))
    else:
        health.start(address)
    try:
        yield
    finally:
        health.stop()


@contextlib.contextmanager
def _signals(worker: Worker) -> Iterator[None]:
    """First signal: quiet. Second: stop now. Third: gone. A hangup is a first one only: shell and kernel both send
    it when a terminal is closed."""
    loop = asyncio.get_running_loop()
    count = 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count == 1:
            worker.quiet()
        elif count == 2:
            worker.stop()
        else:
            os._exit(FAILED)

    def on_hangup() -> None:
        if not count:
            on_signal()

    handlers = {signal.SIGTERM: on_signal, signal.SIGINT: on_signal}
    if heeds_hangup():
        handlers[signal.SIGHUP] = on_hangup
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
