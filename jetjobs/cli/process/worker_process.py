"""Run a worker in this process: logs, provisioning, health port, signals and exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from jetjobs.app import JetJobs
from jetjobs.cli.exit_codes import DONE, FAILED, RECYCLED, exit_code
from jetjobs.cli.process.signals import stop_signals
from jetjobs.cli.state import state
from jetjobs.cli.terminal.output import user_traceback
from jetjobs.cli.terminal.text import one_line
from jetjobs.define.context import running_job
from jetjobs.doctor.finding import many
from jetjobs.jetstream.topology import TopologyChange
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import JetJobsError, LifespanFailed
from jetjobs.observe.health import LISTENING, Health
from jetjobs.observe.logs import log_event, set_up
from jetjobs.worker.options import default_name
from jetjobs.worker.worker import Worker

SHORT_ID = 10
"""Characters of an id, as in tables."""
LINE = 71
"""Columns of a line of 80 that follow the time."""


async def run_worker(app: JetJobs, options: dict[str, Any]) -> int:
    """Provision, serve health and metrics, run until stopped; the exit code."""

    def job_fields() -> Mapping[str, Any]:
        job = running_job()
        return {} if job is None else job.log_fields

    settings = app.settings
    options = {**options, "name": options["name"] or default_name()}
    origin = {"app": app.name, "worker_id": options["name"]}
    colour = state.out.coloured(sys.stderr)
    set_up(settings.observe.log_level, settings.observe.log_format, job_fields, origin, colour=colour)
    app.observe(log_event)
    async with app:
        queues = options["queues"]
        await _prepare(app, list(queues) if queues else app.task_queues)
        worker = app.worker(**options)
        with _serving(app, worker, settings.worker.http), _signals(worker, settings.worker.stop_timeout):
            try:
                await worker.run()
                code = RECYCLED if worker.recycling else FAILED if worker.cut_short else DONE
            except JetJobsError as error:
                code = exit_code(error)
                if isinstance(error, LifespanFailed) and error.__cause__ is not None:
                    state.out.note(user_traceback(error.__cause__).rstrip())
                state.out.error(str(error), error.hint, code)
    if left := worker.left_behind:
        # Python would wait for these threads, but their jobs were released and would run twice.
        extra = {"event": "worker.left_behind", "tasks": left}
        logging.getLogger("jetjobs.worker").warning(
            "exiting without waiting for threads that did not end", extra=extra
        )
        logging.shutdown()
        os._exit(code)
    return code


async def _prepare(app: JetJobs, queues: Sequence[str]) -> None:
    provision = app.settings.worker.provision
    if provision == "apply":
        _log_topology(await app.provision(queues))
    elif provision == "verify":
        await app.verify(queues)


def _log_topology(changes: Sequence[TopologyChange]) -> None:
    """Log what was created, and warn about each update: it may have undone another operator's change."""
    log = logging.getLogger("jetjobs.topology")
    made = [change.wanted for change in changes if change.action == "create"]
    for change in changes:
        if change.action == "update":
            extra = {"event": "topology.drifted", "what": change.wanted.label, "keys": sorted(change.diff)}
            log.warning("differed from the wanted configuration and was updated", extra=extra)
    if made:
        queues = sorted(one.config["metadata"]["jetjobs.queue"] for one in made if one.pin)
        what = f"queues: {', '.join(queues)}" if queues else ", ".join(one.label for one in made)
        log.info(f"created {what}", extra={"event": "topology.applied"})


@contextlib.contextmanager
def _serving(app: JetJobs, worker: Worker, address: str) -> Iterator[None]:
    """Serve metrics and health on the given port; as one of several processes, on the supervisor's socket."""
    if address == "off":
        yield
        return
    metrics = app.metrics(worker)
    worker.count_queues = True
    health = Health(metrics.registry, lambda: worker.problem, lambda: worker.loop_monitor.silent_s)
    if inherited := os.environ.pop(LISTENING, ""):
        health.start_on(socket.socket(fileno=int(inherited)))
    else:
        health.start(address)
    try:
        yield
    finally:
        health.stop()


@contextlib.contextmanager
def _signals(worker: Worker, timeout: timedelta) -> Iterator[None]:
    """The first signal lets running jobs finish, the second cancels them, the third exits at once.

    A hangup counts only as the first: shell and kernel both send one when a terminal is closed.
    """
    loop = asyncio.get_running_loop()
    count = 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count == 1:
            _log_waiting(worker, timeout)
            worker.stop()
        elif count == 2:
            worker.stop(now=True)
        else:
            os._exit(FAILED)

    def on_hangup() -> None:
        if not count:
            on_signal()

    handled = stop_signals()
    for number in handled:
        loop.add_signal_handler(number, on_hangup if number == signal.SIGHUP else on_signal)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _log_waiting(worker: Worker, timeout: timedelta) -> None:
    """Say what the worker waits for and how not to wait, in two lines of 80 columns. Nothing if no job runs."""
    now = time.monotonic()
    running = [(a.started_at, a.job) for a in worker.leases.held if a.job is not None and a.started_at]
    running.sort(key=lambda one: one[0])
    if not running:
        return
    since, longest = running[0]
    head, more = f"waiting up to {show_duration(timeout)} for ", len(running) - 1
    tail = f" {longest.id[-SHORT_ID:]} ({show_duration(now - since)})"
    tail += f" and {many(more, 'more job')}" if more else ""
    text = head + one_line(longest.task, max(8, LINE - len(head) - len(tail))) + tail
    text += f"\nCtrl-C again releases {'them' if more else 'it'}, a third exits now"
    extra = {"event": "worker.stopping", "jobs": len(running), "stop_timeout_s": timeout.total_seconds()}
    logging.getLogger("jetjobs.worker").info(text, extra=extra)
