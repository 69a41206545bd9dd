"""A worker or a scheduler in its own process: logs, signals, health port and exit code around its `run`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jetjobs.app import JetJobs
from jetjobs.cli.hangup import heeds_hangup
from jetjobs.cli.links import Answer, Reporter
from jetjobs.cli.output import DONE, FAILED, RECYCLED, exit_code
from jetjobs.cli.state import state
from jetjobs.define.context import running_job
from jetjobs.jetstream.topology import Change
from jetjobs.model.errors import JetJobsError
from jetjobs.observe.health import Health
from jetjobs.observe.logs import log_event, set_up
from jetjobs.observe.loop_watch import LoopWatch
from jetjobs.observe.pages import write_page
from jetjobs.worker.options import default_name
from jetjobs.worker.scheduler import Scheduler
from jetjobs.worker.worker import Worker


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
    if left := worker.running_threads + worker.unfinished:
        # Python would wait for them; their jobs were given back, and would be done twice.
        extra = {"event": "worker.left_behind", "tasks": left}
        logging.getLogger("jetjobs.worker").warning("left behind: tasks that did not end", extra=extra)
        logging.shutdown()
        os._exit(code)
    return code


async def run_scheduler(app: JetJobs, name: str) -> int:
    """The same for a scheduler."""
    settings, name = app.settings, name or default_name()
    set_up(settings.observe.log_level, settings.observe.log_format, dict, {"app": app.name, "worker_id": name})
    app.observe(log_event)
    async with app:
        await _prepare(app, app.task_queues)
        scheduler = app.scheduler(name=name)
        with _serving(app, scheduler, settings.worker.http), _signals(scheduler):
            try:
                await scheduler.run()
            except JetJobsError as error:
                code = exit_code(error)
                state.out.error(str(error), error.hint, code)
                return code
    return DONE


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
def _serving(app: JetJobs, worker: Worker | Scheduler, address: str) -> Iterator[None]:
    """Metrics and health, on a port of our own or, as one of several processes, by way of the supervisor."""
    if address == "off":
        yield
        return
    watch = LoopWatch(asyncio.get_running_loop())
    metrics = app.metrics(worker, lambda: watch.lag_s)
    worker.count_queues = True
    reporter = Reporter.from_environment(
        lambda: Answer(write_page(metrics.collect()), worker.ready, watch.silent_s)
    )
    serving: Health | Reporter
    if reporter is not None:
        reporter.start()
        serving = reporter
    else:
        serving = Health(metrics.registry, lambda: worker.ready, lambda: watch.silent_s)
        serving.start(address)
    watch.start()
    try:
        yield
    finally:
        serving.stop()
        watch.stop()


@contextlib.contextmanager
def _signals(worker: Worker | Scheduler) -> Iterator[None]:
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
