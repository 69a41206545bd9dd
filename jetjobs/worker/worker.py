"""The life of a worker: start, quiet, stop. Wires its parts together; jobs do not pass through here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.workers.control_client import SHORTEN_LEASE
from jetjobs.model.errors import BrokerError, BrokerUnavailable, ConfigError
from jetjobs.model.events import Observer, WorkerChanged
from jetjobs.model.public import public
from jetjobs.model.settings import Settings
from jetjobs.model.views.live_events import WATCH
from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.views.worker_info import QueueSlots
from jetjobs.worker.fleet.control import handle_cancel, stop_flow
from jetjobs.worker.fleet.event_publisher import EventPublisher
from jetjobs.worker.fleet.registration import Registration, queue_slots
from jetjobs.worker.job_runner import JobRunner
from jetjobs.worker.leader.leadership import Leadership
from jetjobs.worker.leader.overdue_jobs import OverdueRequest
from jetjobs.worker.options import Phase, WorkerOptions, default_name
from jetjobs.worker.scheduling.declared import sync_declared

MAX_STUCK_THREADS = 10
"""With this many stuck threads the worker stops, so that a new process can take its place."""


@public("jetjobs")
class Worker:
    """Runs the tasks of an app. Created by the app; `run` returns when the worker has stopped."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        registry: Router,
        settings: Settings,
        options: WorkerOptions,
        observe: Observer,
    ) -> None:
        if not options.slots and not options.schedules:
            raise ConfigError("a worker with 0 slots and without schedules has nothing to do")
        if options.slots and not options.queues:
            raise ConfigError("no queues to work on", hint="declare a task, or name queues with --queue")
        self.name = options.name or default_name()
        self.phase = Phase.STARTING
        self.registry = registry
        self.options = options
        self._jetstream = jetstream
        self._clock = jetstream.server_clock
        self._clock_stream = jetstream.names.work_stream(min(options.queues)) if options.slots else ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._opening: asyncio.Task[Any] | None = None
        self.cut_short = 0
        """Jobs that were cancelled and released when the stop timeout was up."""
        self.count_queues = False
        """Whether to count all queues while this worker is the leader. Set it before `run`."""
        self.recycling = False
        """Whether the worker stops because of stuck threads. Start another one in its place."""
        self._observe = self.event_publisher = EventPublisher(jetstream, self.name, observe)
        lease_s = settings.queues.lease.total_seconds()
        sync = functools.partial(sync_declared, jetstream, options.app, registry.declared_schedules)
        self._leadership = Leadership(jetstream, self.name, lease_s, self._observe, sync)
        self._overdue = OverdueRequest(jetstream)
        self._jobs = JobRunner(
            jetstream, registry, settings, options, self.name, self._observe, self._spawn, self._overdue.on_full
        )
        self._jobs.dispatcher.limit(options.max_jobs, self.stop)
        self.leases = self._jobs.leases
        self.loop_monitor = self._jobs.monitor
        self.slots = self._jobs.slots
        self._registration = Registration(
            jetstream, self.name, self.leases, self._jobs.records, self.loop_monitor, self._spawn
        )
        self.control = self._registration.control
        """Answers control requests. `control.on` adds a request."""
        self.control.on("ping", self._on_ping)
        self.control.on("quiet", self._on_quiet)
        self.control.on("stop", self._on_stop)
        self.control.on("cancel", self._on_cancel)
        self.control.on(SHORTEN_LEASE, self._jobs.lease.on_request)
        self.control.on(WATCH, self.event_publisher.on_watch)

    # Life

    async def run(self) -> None:
        """Work until the worker is stopped. BrokerError if the server closes the connection for good."""
        self._observe(WorkerChanged("started", ", ".join(sorted(self.options.queues))))
        async with contextlib.AsyncExitStack() as stack:
            if await self._start(stack):
                await self._work()
        self.phase = Phase.STOPPED
        self._observe(WorkerChanged("stopped"))

    def quiet(self) -> None:
        """Take no new work, and stay. Running jobs may take as long as they need. `stop` ends the worker.

        A worker that is not ready yet, or that is stopping, is left as it is.
        """
        if self.phase is Phase.READY:
            self._jobs.dispatcher.close()
            self._enter(Phase.QUIET, f"{self.slots.busy} running")
            self._spawn(self._jobs.lanes.close())

    def stop(self, *, now: bool = False) -> None:
        """Take no new work, and end once the running jobs have ended or the stop timeout is up.

        With `now`, cancel the running jobs at once and release them. Jobs that are cut short spend no attempt.
        """
        self._jobs.dispatcher.close()
        first = not self._stop.is_set()
        self._stop.set()
        if first and self._opening is not None:
            self._opening.cancel()  # the worker is still starting, perhaps in a slow lifespan
        if now:
            self._stop_now.set()

    async def _start(self, stack: contextlib.AsyncExitStack) -> bool:
        """Open all parts. False if the worker was stopped in the meantime."""
        if self._stop.is_set():
            return False
        self._opening = asyncio.current_task()
        try:
            await self._open(stack)
        except asyncio.CancelledError:
            if not self._stop.is_set() or self._opening is None:
                raise
            self._opening.uncancel()
            return False
        finally:
            self._opening = None
        return not self._stop.is_set()

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        await self._clock.refresh(self._clock_stream)
        if self.slots.total:
            on_flow = self._jetstream.cancel_marks.on_flow
            on_flow.append(self._on_flow_cancelled)
            stack.callback(on_flow.remove, self._on_flow_cancelled)
            await self._jobs.open(stack)
        await self._registration.open(
            stack, self.registry, self.options.queues, self.slots, lambda: str(self.phase)
        )
        if self.slots.total:
            await self._jobs.lease.read_again()
        if self.options.schedules:
            await self._leadership.sync()
            await stack.enter_async_context(self._leadership.campaign(count_queues=self.count_queues))

    async def _work(self) -> None:
        self._enter(Phase.READY, f"{self.slots.total} slots")
        ticking = self.loop_monitor.run(self._jobs.tick_interval_s, self._tick, self._jobs.lanes.on_stall)
        background = [asyncio.create_task(ticking), asyncio.create_task(self._jobs.lease.run())]
        pulling = asyncio.create_task(self._jobs.dispatcher.run())
        if self.options.burst:
            background.append(asyncio.create_task(self._stop_when_empty()))
        try:
            await self._until_stopped([pulling, *background])
            if self.phase is not Phase.QUIET:
                self._enter(Phase.QUIET, f"{self.slots.busy} running")
            await _cancel([pulling])
            self.cut_short = await self._jobs.finish(self._stop_now)
            await self._jobs.clean_up(self._tasks)
        finally:
            await _cancel([pulling, *background])
            self._jobs.close()

    async def _until_stopped(self, background: list[asyncio.Task[None]]) -> None:
        stopped = asyncio.create_task(self._stop.wait())
        closed = asyncio.create_task(self._jetstream.connection.closed.wait())
        try:
            await asyncio.wait({stopped, closed, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done():
                    task.result()  # background tasks end only by an error: raise it
            if closed.done() and not stopped.done():
                raise BrokerUnavailable("the server closed the connection for good")
        finally:
            await _cancel([stopped, closed])

    async def _stop_when_empty(self) -> None:
        """Burst: stop once no job is left that is due."""
        await self._jobs.until_empty()
        self.stop()
        await asyncio.Event().wait()

    def _enter(self, phase: Phase, detail: str) -> None:
        self.phase = phase
        self._registration.changed()
        self._observe(WorkerChanged(str(phase), detail))

    # Ticks and callbacks

    def _tick(self, now: float) -> None:
        self._jobs.tick(now)
        self._overdue.tick()
        if self._clock.stale and self._jetstream.connection.connected:
            self._spawn(self._refresh_clock())
        self._recycle()

    async def _refresh_clock(self) -> None:
        with contextlib.suppress(BrokerError):  # the last reading is kept
            await self._clock.refresh(self._clock_stream)

    def _recycle(self) -> None:
        """Stop if too many threads are stuck: a thread ends only with its process."""
        stuck = self.stuck_threads
        if stuck >= MAX_STUCK_THREADS and not self._stop.is_set():
            self.recycling = True
            self._observe(WorkerChanged("recycling", f"{stuck} stuck threads"))
            self.stop()

    def _on_ping(self, request: Mapping[str, Any]) -> dict[str, Any]:
        # The record in the registry has this too, but the server may not store that either.
        refused = self._jetstream.publisher.refused.reasons()
        return {"phase": str(self.phase), **({"refused": refused} if refused else {})}

    def _on_quiet(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.phase is Phase.STARTING:
            return {"ok": False, "error": "the worker is still starting"}
        self.quiet()
        return {"phase": str(self.phase)}

    def _on_stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.stop(now=request.get("now") is True)
        return {"phase": str(Phase.QUIET)}

    def _on_cancel(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._jetstream.cancel_marks.on_request(request)
        return handle_cancel(self.leases, self.registry, request)

    def _on_flow_cancelled(self, fkey: str) -> None:
        stop_flow(self.leases, self.registry, self._jetstream.cancel_marks, fkey)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Status, read by metrics and health checks from any thread

    @property
    def ready(self) -> bool:
        return not self.problem

    @property
    def problem(self) -> str:
        """Why the worker is not ready; empty if it is."""
        connection = self._jetstream.connection
        if self.phase is not Phase.READY:
            return f"the worker is {self.phase}"
        if not connection.connected:
            return "not connected to NATS"
        if denied := connection.denials.subscription(*self.control.subjects, self._jetstream.cancel_marks.subject):
            return f'permissions violation for subscription to "{denied}"'
        return "; ".join(self._jetstream.publisher.refused.reasons()) or self._jobs.trouble

    @property
    def left_behind(self) -> int:
        """Tasks and threads that still run after the worker has stopped."""
        return self._jobs.left_behind

    @property
    def stuck_threads(self) -> int:
        """Threads that were cancelled and still run."""
        return self._jobs.executor.threads.stuck

    @property
    def loop_lag_s(self) -> float:
        """The longest delay of the event loop within the last ten seconds."""
        return self.loop_monitor.lag_s

    @property
    def queue_slots(self) -> Mapping[str, QueueSlots]:
        return queue_slots(self.options.queues, self.slots, self.leases)

    @property
    def queue_states(self) -> list[QueueState]:
        """The state of every queue while this worker is the leader and `count_queues` is set, else none."""
        return self._leadership.queue_counter.states

    @property
    def count_errors(self) -> int:
        return self._leadership.queue_counter.errors

    @property
    def schedule_lateness(self) -> Mapping[str, float]:
        """By schedule, how late its next run is in seconds, while this worker is the leader."""
        return self._leadership.planner.lateness()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker while the block runs, and stop it gracefully afterwards. For tests and embedding."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task
