"""Entry point of a child process: import the app, then run jobs one at a time as the worker sends them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import faulthandler
import inspect
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from jetjobs.define.context import enter_job
from jetjobs.define.result_type import Returnable
from jetjobs.define.task import Task
from jetjobs.model.settings import build_settings
from jetjobs.model.views.error_text import describe
from jetjobs.worker.isolation.app_locator import AppLocation, load_app
from jetjobs.worker.isolation.channel import Channel, Frame
from jetjobs.worker.isolation.log_forwarding import ForwardingHandler
from jetjobs.worker.isolation.messages import context_from, error_data
from jetjobs.worker.isolation.rpc import ChildServices
from jetjobs.worker.isolation.stop_signal import StopSignal
from jetjobs.worker.unawaited import watch_coroutines

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, worker: int) -> None:
    """Run until the worker closes the channel or dies."""
    _die_with(worker)
    stop = StopSignal()
    with contextlib.suppress(Exception):  # standard error may be closed
        faulthandler.enable()
    with contextlib.suppress(Exception):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor), stop)
    setup = channel.receive()
    if setup is not None and (child := Child.load(channel, setup.head, stop)) is not None:
        child.serve()


def _die_with(worker: int) -> None:
    """Let the system kill this process when the worker ends for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(0)  # it ended before prctl took effect


class Child:
    """The loaded app and the channel to the worker."""

    def __init__(self, app: Any, channel: Channel, stop: StopSignal) -> None:
        self._app = app
        self._channel = channel
        self._stop = stop
        self._pid = os.getpid()
        self._runner = asyncio.Runner()
        """One event loop for all jobs, because clients that tasks keep between jobs are bound to it."""
        self._services: ChildServices | None = None
        self._idle_memory = _address_space()

    @classmethod
    def load(cls, channel: Channel, setup: dict[str, Any], stop: StopSignal) -> Child | None:
        """Import the app and report to the worker; None if the import failed."""
        sys.argv[:] = setup["argv"]
        logs = ForwardingHandler(lambda data: channel.send(Frame({"kind": "log", "record": data})))
        logs.install(setup["levels"])
        try:
            app = load_app(AppLocation(**setup["location"]))
            if setup["settings"] is not None:
                app.configure(build_settings(setup["settings"]))  # for tasks that enqueue
            missing = [name for name in setup["tasks"] if name not in app.tasks]
        except BaseException as error:  # including sys.exit() in a module
            info = describe(error)
            text = f"{info.type}: {info.text}"
            channel.send(Frame({"kind": "failed", "text": text, "traceback": info.traceback}))
            return None
        logs.install(setup["levels"])  # the app's modules may have configured logging
        watch_coroutines()
        channel.send(Frame({"kind": "ready", "missing": missing}))
        return cls(app, channel, stop)

    def serve(self) -> None:
        """Run jobs until the worker closes the channel."""
        with self._runner:
            while (request := self._channel.receive()) is not None:
                answer = self._run_job(request)
                with contextlib.suppress(Exception):  # a task may have closed or replaced them
                    sys.stdout.flush()
                    sys.stderr.flush()
                if os.getpid() != self._pid:
                    # A process that the task forked returned here. It must neither answer nor wait for jobs.
                    os._exit(0 if answer.head["kind"] == "returned" else 1)
                if self._services is not None:
                    self._services.close()
                answer.head["n"] = request.head["n"]
                self._channel.send(answer)

    def _run_job(self, request: Frame) -> Frame:
        name = request.head["task"]
        task: Task[Any, Any] | None = self._app.tasks.get(name)
        if task is None:
            text = f"task {name!r} has isolation='process' but is missing in a process that imports the app"
            hint = "declare it at the top level of a module that the app's module imports"
            error = {"type": "jetjobs.errors.DefinitionError", "text": f"{text}: {hint}", "trace": ""}
            # To be retried: the next deployment may have the task.
            return Frame({"kind": "raised", "error": {**error, "transient": True, "after_s": None}})
        try:
            with self._limited(task.memory_limit):
                return Frame({"kind": "returned"}, self._run(task, request))
        except BaseException as raised:
            # SystemExit and KeyboardInterrupt included: they end the attempt, not the child.
            data = error_data(raised, task, self._app.classifiers)
            # After a MemoryError, memory that the task allocated may never be freed.
            return Frame({"kind": "raised", "error": data, "retire": isinstance(raised, MemoryError)})

    def _run(self, task: Task[Any, Any], request: Frame) -> bytes:
        """Each job runs in its own contextvars context."""
        context = contextvars.copy_context()
        self._services = ChildServices(self._channel)
        job = context_from(request.head["context"], request.body, self._services)
        context.run(enter_job, job)
        arguments = task.signature.decode(request.body) | dict.fromkeys(task.signature.contexts, job)
        try:
            self._stop.begin()
            value = context.run(task.function, **arguments)
            if inspect.iscoroutine(value):
                value = self._runner.run(self._stop.interruptible(value), context=context)
        finally:
            self._stop.end()
        if job._unawaited is not None:
            raise job._unawaited
        if task.store_result or isinstance(value, Returnable):
            return task.signature.result.encode(value)
        task.signature.result.check_awaited(value)
        return b""

    @contextlib.contextmanager
    def _limited(self, limit: int | None) -> Iterator[None]:
        """Limit the address space to that of an idle child plus `limit`. The limit is lifted to report errors."""
        if limit is None:
            yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = self._idle_memory + limit
        resource.setrlimit(
            resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Bytes of address space in use, or 0 where the system does not report it; then limits are absolute."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
