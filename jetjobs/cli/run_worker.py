"""A worker in its own process: logs, signals, health port and exit code around `Worker.run`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from jetjobs import __version__
from jetjobs.app import JetJobs
from jetjobs.cli.output import DONE, FAILED, RECYCLED, exit_code
from jetjobs.cli.state import state
from jetjobs.define.context import running_job
from jetjobs.model.errors import JetJobsError
from jetjobs.observe.health import Health
from jetjobs.observe.logs import log_event, set_up
from jetjobs.observe.metrics import Metrics
from jetjobs.worker.worker import Worker


async def run_worker(app: JetJobs, options: dict[str, Any]) -> int:
    """Provision, run, serve health; the exit code."""

    def job_fields() -> Mapping[str, Any]:
        job = running_job()
        return (
            {} if job is None else {"job_id": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}
        )

    settings = app.settings
    set_up(settings.observe.log_level, settings.observe.log_format, job_fields)
    app.observe(log_event)
    async with app:
        queues = options["queues"]
        names = list(queues) if queues else app.task_queues
        if settings.worker.provision == "apply":
            await app.provision(names)
        elif settings.worker.provision == "verify":
            await app.verify(names)
        worker = app.worker(**options)
        with _serving(app, worker, settings.worker.http) as health, _signals(worker):
            beat = asyncio.create_task(_tick(health)) if health is not None else None
            try:
                await worker.run()
                code = RECYCLED if worker.recycling else FAILED if worker.cut_short else DONE
            except JetJobsError as error:
                code = exit_code(error)
                state.out.error(str(error), error.hint, code)
            finally:
                if beat is not None:
                    beat.cancel()
    if left := worker.running_threads + worker.unfinished:
        # Python would wait for them; their jobs were given back, and would be done twice.
        extra = {"event": "worker.left_behind", "tasks": left}
        logging.getLogger("jetjobs.worker").warning("left behind: tasks that did not end", extra=extra)
        logging.shutdown()
        os._exit(code)
    return code


@contextlib.contextmanager
def _serving(app: JetJobs, worker: Worker, address: str) -> Iterator[Health | None]:
    if address == "off":
        yield None
        return
    metrics = Metrics(
        app.tasks.keys(),
        __version__,
        lambda: (worker.slots.busy, worker.slots.total),
        lambda: worker.stuck_threads,
    )
    app.observe(metrics.observe)
    health = Health(metrics.registry, lambda: worker.ready)
    health.start(_own_address(address))
    try:
        yield health
    finally:
        health.stop()


def _own_address(address: str) -> str:
    """With --processes each process serves a port of its own: the one given, the next, and so on."""
    host, colon, port = address.rpartition(":")
    number = os.environ.get("JETJOBS_CHILD", "1")
    return f"{host}{colon}{int(port) + int(number) - 1}" if port.isdigit() and port != "0" else address


async def _tick(health: Health) -> None:
    while True:
        health.tick()
        await asyncio.sleep(1)


@contextlib.contextmanager
def _signals(worker: Worker) -> Iterator[None]:
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
