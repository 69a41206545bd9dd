"""`app.sync`: enqueue and manage jobs from code without an event loop, on one background loop per process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import copy
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar, Unpack, overload

from jetjobs.admin.dead_letters import DeadLetters
from jetjobs.admin.jobs import Jobs
from jetjobs.define.enqueue_report import EnqueueReport
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions
from jetjobs.define.task import JobRequest
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import JetJobsError, JobNotFound
from jetjobs.model.job import JobStatus
from jetjobs.model.public import public
from jetjobs.model.settings import Settings
from jetjobs.model.views.dead_letter import ReplayAnswer
from jetjobs.model.views.job_changes import CancelAnswer

R = TypeVar("R")
T = TypeVar("T")

CLOSE_S = 3.0
"""How long the end of the process may wait for the connections to close."""


class App(Protocol):
    """The calls of an app that are used here."""

    _session: Any

    @property
    def settings(self) -> Settings: ...
    @property
    def jetstream(self) -> JetStreamClient: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def dead(self) -> DeadLetters: ...

    async def open(self) -> Self: ...
    async def close(self) -> None: ...
    async def send(self, request: JobRequest[Any]) -> JobHandle[Any]: ...
    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]: ...
    async def enqueue_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport: ...
    async def job(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> JobHandle[Any]: ...


# The background loop


class _Background:
    """An event loop in a daemon thread, and the connections that are open on it."""

    def __init__(self) -> None:
        # Not the loop of a policy: the program may have chosen one with other rules for threads and forks.
        self.loop = asyncio.SelectorEventLoop()
        self.pid = os.getpid()
        self._clients: set[JetStreamClient] = set()
        self._closing: set[asyncio.Task[None]] = set()
        running = threading.Event()
        self.loop.call_soon(running.set)
        self._thread = threading.Thread(target=self.loop.run_forever, name="jetjobs-sync", daemon=True)
        self._thread.start()
        running.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop, in the contextvars of this thread, and wait for its result."""
        calling = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return calling.result()
        finally:
            calling.cancel()  # if this thread was interrupted, by Ctrl-C for example

    async def open(self, app: App) -> App:
        await app.open()
        self._clients.add(app.jetstream)
        return app

    def close_later(self, client: JetStreamClient) -> None:
        """Close one connection without waiting for it. May be called in any thread and process."""
        if self is _background:  # in a forked process, the loop of the parent must not be touched
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._close_now, client)

    def _close_now(self, client: JetStreamClient) -> None:
        if client in self._clients:
            self._clients.remove(client)
            closing = self.loop.create_task(client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def end(self) -> None:
        """Close all connections and end the thread. Returns after a few seconds even if no server answers."""
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        with contextlib.suppress(Exception):
            ending.result(CLOSE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self.loop.close()

    async def _end(self) -> None:
        for client in list(self._clients):
            self._close_now(client)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_S * 0.8)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


_background: _Background | None = None
_lock = threading.RLock()
"""Held while the background loop starts. It is also held during a fork: a child never sees half of a start."""
_of_parents: list[_Background] = []
"""Kept in a forked process: collecting a loop would change the set of sockets that it shares with the parent."""


def _current() -> _Background:
    global _background
    if _background is not None and _background.pid != os.getpid():
        _forked()  # by a server in C, such as uWSGI, which does not call the hooks of Python
    with _lock:
        if _background is None:
            # In an empty context: the loop would keep that of the first call, for example of a web request.
            _background = contextvars.Context().run(_Background)
        return _background


def run_in_background(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the background loop and wait for its result, even if this thread runs a loop of its own."""
    return _current().run(work)


def _forked() -> None:
    """In a new process the thread is missing, and the sockets belong to the parent: start again on first use."""
    global _background, _lock
    _lock = threading.RLock()
    if _background is not None:
        _of_parents.append(_background)
        _background = None


@atexit.register
def _exit() -> None:
    global _background
    with _lock:
        ended, _background = _background, None
    if ended is not None:
        ended.end()


os.register_at_fork(
    before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_forked
)


# The calls


class _Opened(NamedTuple):
    """A copy of the app that is open, or being opened, on a background loop."""

    background: _Background
    app: asyncio.Task[App]

    @property
    def usable(self) -> bool:
        """False after a failure, and when the server has ended the connection for good."""
        if self.background is not _background:
            return False
        if not self.app.done():
            return True
        failed = self.app.cancelled() or self.app.exception() is not None
        return not failed and not self.app.result().jetstream.connection.closed.is_set()


@public("jetjobs")
class SyncClient:
    """`app.sync`: the calls for code without an event loop. They may be used in any number of threads.

    The first call of a process opens a connection of its own for the app, in a background thread. It is closed at
    the end of the process. A forked process opens another one. JetJobsError inside a running event loop, which a
    call would block.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._opened: _Opened | None = None

    @overload
    def enqueue(self, task: JobRequest[R], /) -> JobHandle[R]: ...
    @overload
    def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]: ...
    def enqueue(
        self,
        task: JobRequest[Any] | str,
        args: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[Any]:
        """Store one job, of a request or by the name of its task: `app.sync.enqueue(greet.bind("Ada"))`,
        `app.sync.enqueue("greet", {"name": "Ada"})`. Returns once the server has confirmed it."""
        if isinstance(task, JobRequest):
            return self._run(f"{task.task.name}.enqueue(...)", lambda app: app.send(task))
        return self._run("app.enqueue(...)", lambda app: app.enqueue(task, args, **options))

    def enqueue_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """Store many jobs; see `app.enqueue_many`."""
        return self._run("app.enqueue_many(...)", lambda app: app.enqueue_many(requests))

    def get(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> JobStatus:
        """The status of the job with that id. JobNotFound if there is none."""
        return self._run("app.jobs.get(...)", lambda app: app.jobs.get(job_id, queue=queue, task=task))

    def result(
        self,
        job_id: str,
        timeout: Duration | None = None,
        *,
        queue: str | None = None,
        task: str | None = None,
    ) -> Any:
        """Wait for the result of the job with that id; see `JobHandle.result`."""
        handle = self._run("handle.result(...)", lambda app: app.job(job_id, queue=queue, task=task))
        return handle.result_sync(timeout)

    def cancel(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        task: str | None = None,
        by: str = "",
        reason: str = "",
        timeout: Duration = 10,
    ) -> CancelAnswer:
        """Cancel a job in any state and report the outcome. Waits up to `timeout` for a running job to end."""
        limit = to_duration("timeout", timeout)
        return self._run(
            "app.jobs.cancel(...)",
            lambda app: app.jobs.cancel(job_id, queue=queue, task=task, by=by, reason=reason, timeout=limit),
        )

    def replay(
        self, job_id: str, *, queue: str | None = None, task: str | None = None, by: str = "", reason: str = ""
    ) -> ReplayAnswer:
        """Enqueue the job of a dead letter again. JobNotFound if no dead letter has that id."""

        async def replay(app: App) -> ReplayAnswer:
            letter = await app.dead.get(job_id, queue=queue, task=task)
            if letter is None:
                raise JobNotFound(f"no dead letter with id {job_id}")
            return await app.dead.replay(letter, by=by, reason=reason)

        return self._run("app.dead.replay(...)", replay)

    # Not for users: called by the app and its handles

    def wait(self, handle: JobHandle[Any], decode: Callable[[bytes], Any], timeout_s: float) -> Any:
        """The result of a handle's job: `JobHandle.result_sync`."""
        return self._run(
            "handle.result(...)", lambda app: app.jetstream.result_waiter.result(handle, decode, timeout_s)
        )

    def reset(self) -> None:
        """Close the connection. The next call opens another one, with the settings of that time."""
        opened, self._opened = self._opened, None
        if opened is None or opened.background is not _background:
            return

        def close(opening: asyncio.Task[App]) -> None:
            if not opening.cancelled() and opening.exception() is None:
                opened.background.close_later(opening.result().jetstream)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            opened.background.loop.call_soon_threadsafe(opened.app.add_done_callback, close)

    @property
    def connected(self) -> bool:
        opened = self._opened
        return (
            opened is not None
            and opened.usable
            and opened.app.done()
            and opened.app.result().jetstream.connection.connected
        )

    def _run(self, instead: str, work: Callable[[App], Awaitable[T]]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise JetJobsError("this call would block the running event loop", hint=f"use `await {instead}`")
        _ = self._app.settings  # loaded here, so that the app keeps them
        background = _current()
        return background.run(self._work(background, work))

    async def _work(self, background: _Background, work: Callable[[App], Awaitable[T]]) -> T:
        if self._opened is None or not self._opened.usable:
            self.reset()
            self._opened = self._open(background)
        # Shielded: the call may be cancelled, and others wait for the same connection.
        return await work(await asyncio.shield(self._opened.app))

    def _open(self, background: _Background) -> _Opened:
        app = copy.copy(self._app)  # shares tasks and observers
        app._session = None
        # In an empty context, too: the connection does not belong to the job that opens it.
        opening = background.loop.create_task(background.open(app), context=contextvars.Context())
        opening.add_done_callback(lambda done: self._close_with_app(background, done))
        return _Opened(background, opening)

    def _close_with_app(self, background: _Background, opening: asyncio.Task[App]) -> None:
        """Close the connection when the app is garbage-collected."""
        if not opening.cancelled() and opening.exception() is None:
            weakref.finalize(self._app, background.close_later, opening.result().jetstream).atexit = False
