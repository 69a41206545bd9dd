"""A child process: imports the app, then runs one job after another as its worker sends them."""

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
import traceback
from collections.abc import Iterator
from typing import Any

from jetjobs.define.context import enter_job
from jetjobs.define.task import Task
from jetjobs.worker.isolation.app_locator import Address, load
from jetjobs.worker.isolation.channel import Channel, Frame
from jetjobs.worker.isolation.log_forwarding import Forward
from jetjobs.worker.isolation.messages import context_from, error_data
from jetjobs.worker.isolation.rpc import ChildDesk
from jetjobs.worker.isolation.stop_signal import StopSignal

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, worker: int) -> None:
    """Until the worker closes the channel, or is gone."""
    _die_with(worker)
    stop = StopSignal()
    with contextlib.suppress(Exception):  # there may be no standard error
        faulthandler.enable()
    with contextlib.suppress(Exception):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor), stop)
    setup = channel.receive()
    if setup is not None and (child := Child.load(channel, setup.head, stop)) is not None:
        child.serve()


def _die_with(worker: int) -> None:
    """Let the system kill us when the worker is gone, however that comes about."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:
        os._exit(0)  # it went before we could say so


class Child:
    """The app, loaded, and the channel to the worker."""

    def __init__(self, app: Any, channel: Channel, stop: StopSignal) -> None:
        self._app = app
        self._channel = channel
        self._stop = stop
        self._pid = os.getpid()
        self._runner = asyncio.Runner()
        """One loop for the child's life: clients that tasks keep between jobs belong to it."""
        self._desk: ChildDesk | None = None
        self._idle_memory = _address_space()

    @classmethod
    def load(cls, channel: Channel, setup: dict[str, Any], stop: StopSignal) -> Child | None:
        """Import the app and tell the worker; None when that failed."""
        sys.argv[:] = setup["argv"]
        logs = Forward(lambda data: channel.send(Frame({"kind": "log", "record": data})))
        logs.install(setup["levels"])
        try:
            app = load(Address(**setup["address"]))
            missing = [name for name in setup["tasks"] if name not in app.tasks]
        except BaseException as error:  # sys.exit() in a module too
            text = "".join(traceback.format_exception_only(error)).strip()
            shown = traceback.format_exc()[-8_000:]
            channel.send(Frame({"kind": "failed", "text": text[:1_000], "traceback": shown}))
            return None
        logs.install(setup["levels"])  # the app's modules may have set up logging of their own
        channel.send(Frame({"kind": "ready", "missing": missing}))
        return cls(app, channel, stop)

    def serve(self) -> None:
        """Run jobs until the channel is closed."""
        with self._runner:
            while (request := self._channel.receive()) is not None:
                answer = self._answer(request)
                with contextlib.suppress(Exception):  # a task may have closed or replaced them
                    sys.stdout.flush()
                    sys.stderr.flush()
                if os.getpid() != self._pid:
                    # A copy that the task forked came back here. It must not answer, and not wait for jobs.
                    os._exit(0 if answer.head["kind"] == "returned" else 1)
                if self._desk is not None:
                    self._desk.close()
                answer.head["n"] = request.head["n"]
                self._channel.send(answer)

    def _answer(self, request: Frame) -> Frame:
        name = request.head["task"]
        task: Task[Any, Any] | None = self._app.tasks.get(name)
        if task is None:
            error = {"type": "UnknownTask", "text": f"the child has no task named {name!r}", "trace": ""}
            return Frame({"kind": "raised", "error": {**error, "transient": False, "after_s": None}})
        try:
            with self._limited(task.memory_limit):
                return Frame({"kind": "returned"}, self._run(task, request))
        except (
            BaseException
        ) as raised:  # SystemExit and KeyboardInterrupt too: they end the attempt, not the child
            told = error_data(raised, task, self._app.classifiers)
            # After a MemoryError nobody knows what is still held, and by whom.
            return Frame({"kind": "raised", "error": told, "retire": isinstance(raised, MemoryError)})

    def _run(self, task: Task[Any, Any], request: Frame) -> bytes:
        """In a context of its own, as every job."""
        context = contextvars.copy_context()
        self._desk = ChildDesk(self._channel)
        context.run(enter_job, context_from(request.head["context"], request.body, self._desk))
        arguments = task.signature.decode(request.body)
        try:
            self._stop.begin()
            value = context.run(task.function, **arguments)
            if inspect.iscoroutine(value):
                value = self._runner.run(self._stop.around(value), context=context)
        finally:
            self._stop.end()
        return task.signature.encode_result(value) if task.store_result else b""

    @contextlib.contextmanager
    def _limited(self, limit: int | None) -> Iterator[None]:
        """Let the task take so much more address space than an idle child. Errors are told without the limit."""
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
    """Bytes of address space in use, where the system says it; else 0, and a limit is absolute."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
