"""`jetjobs worker`: run the tasks of an app until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetjobs.cli.output import DONE, FAILED
from jetjobs.cli.state import run_async, state

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.observe.health import Health
    from jetjobs.worker.worker import Worker


def add_to(tree: typer.Typer) -> None:
    tree.command("worker")(worker)


def worker(
    app: Annotated[str | None, typer.Argument(help="MODULE:NAME of the app; found by itself when there is one.")] = None,
    queues: Annotated[str | None, typer.Option("-q", "--queues", help="Queues, each with an optional slot limit: mail,reports:5.")] = None,
    slots: Annotated[int | None, typer.Option("-c", "--slots", help="Jobs to run at once. [default: 10]")] = None,
    processes: Annotated[int | None, typer.Option("-p", "--processes", help="Processes to run. [default: 1]")] = None,
    name: Annotated[str, typer.Option(help="Name of this worker. [default: HOST-PID]")] = "",
    burst: Annotated[bool, typer.Option("--burst", help="Exit when the queues are empty.")] = False,
    max_jobs: Annotated[int, typer.Option(help="Exit after this many jobs.", min=0)] = 0,
    stop_timeout: Annotated[str | None, typer.Option(help="How long running jobs may finish on stop. [default: 30s]")] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT of /livez, /readyz, /metrics, or off. [default: off]")] = None,
    provision: Annotated[str | None, typer.Option(help="apply: create what is missing; verify: refuse if it is; off. [default: apply]")] = None,
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
    options: dict[str, Any] = {"queues": parse_queues(queues), "name": name, "burst": burst, "max_jobs": max_jobs}
    raise typer.Exit(run_async(lambda: _run(target, options)))


async def _run(app: JetJobs, options: dict[str, Any]) -> int:
    from jetjobs.define.context import running_job
    from jetjobs.observe.logs import log_event, set_up

    def job_fields() -> Mapping[str, Any]:
        job = running_job()
        return {} if job is None else {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}

    settings = app.settings
    set_up(settings.observe.log_level, settings.observe.log_format, job_fields)
    app.observe(log_event)
    async with app:
        queues = options["queues"]
        names = list(queues) if queues else app.queues
        if settings.worker.provision == "apply":
            await app.provision(names)
        elif settings.worker.provision == "verify":
            await app.verify(names)
        worker = app.worker(**options)
        with _serving(app, worker, settings.worker.http) as health, _signals(worker):
            beat = asyncio.create_task(_tick(health)) if health is not None else None
            try:
                await worker.run()
            finally:
                if beat is not None:
                    beat.cancel()
    return FAILED if worker.cut_short else DONE


@contextlib.contextmanager
def _serving(app: JetJobs, worker: Worker, address: str) -> Any:
    if address == "off":
        yield None
        return
    from jetjobs import __version__
    from jetjobs.observe.health import Health
    from jetjobs.observe.metrics import Metrics

    metrics = Metrics(app.tasks.keys(), __version__, lambda: (worker.slots.busy, worker.slots.total))
    app.observe(metrics.observe)
    health = Health(metrics.registry, lambda: worker.ready)
    health.start(address)
    try:
        yield health
    finally:
        health.stop()


async def _tick(health: Health) -> None:
    while True:
        health.tick()
        await asyncio.sleep(1)


@contextlib.contextmanager
def _signals(worker: Worker) -> Any:
    """First signal: quiet. Second: stop now. Third: gone."""
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

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def parse_queues(text: str | None) -> dict[str, int | None] | None:
    """`mail,reports:5` -> {"mail": None, "reports": 5}"""
    from jetjobs.model.errors import ConfigError
    from jetjobs.model.names import check_token

    if text is None:
        return None
    queues: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        if colon and (not limit.isdigit() or int(limit) < 1):
            raise ConfigError(f"--queues {part!r}: the limit must be a number above 0")
        queues[check_token("queue", name)] = int(limit) if colon else None
    return queues
