"""Wiring and life of a worker: start, run, quiet, stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.errors import BrokerUnavailable, ConfigError
from jetjobs.model.events import Event, Observer, SettleFailed, WorkerChanged
from jetjobs.model.public import public
from jetjobs.model.settings import Settings
from jetjobs.model.views.live_events import WATCH
from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.views.worker_info import QueueSlots
from jetjobs.worker.attempt import Attempt, Interrupt
from jetjobs.worker.execution.executor import RunConfig, Runner
from jetjobs.worker.execution.pipeline import Processing
from jetjobs.worker.execution.settlement import Settlement
from jetjobs.worker.fleet.control import handle_cancel
from jetjobs.worker.fleet.event_publisher import EventPublisher
from jetjobs.worker.fleet.registration import Registration, queue_slots
from jetjobs.worker.intake.dispatcher import Dispatcher
from jetjobs.worker.intake.lanes import Lanes
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leader.leadership import Leadership
from jetjobs.worker.leader.overdue_jobs import OverdueRequest
from jetjobs.worker.leases.lease_table import Leases
from jetjobs.worker.options import Phase, WorkerOptions, default_name
from jetjobs.worker.scheduling.declared import sync_declared

MAX_STUCK_THREADS = 10
"""With so many threads that a timeout gave up on and that still run, the worker ends to be started again."""
RELEASE_GRACE_S = 5.0
"""How long cancelled tasks may take to clean up before we exit without them."""


@public("jetjobs")
class Worker:
    """Runs the tasks of a registry. Made by the app; `run` returns when it has stopped."""

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
            raise ConfigError("there is no queue to work on", hint="declare a task, or name queues with --queue")
        self.name = options.name or default_name()
        self.phase = Phase.STARTING
        self.registry = registry
        self.options = options
        self._jetstream = jetstream
        self._settings = settings
        self._observe = observe = self.event_publisher = EventPublisher(jetstream, self.name, observe)
        lease_s = settings.queues.lease.total_seconds()
        self.slots = Slots(options.slots, options.queues)
        self.leases = Leases(jetstream, self.name, lease_s, observe)
        max_crashes = settings.queues.max_crashes
        self._dispatcher = Dispatcher(self.slots, self.leases, self._start, self._release, max_crashes, observe)
        self._settlement = Settlement(jetstream, registry, self.name, max(lease_s, 15.0), self._tell)
        self._lanes = Lanes(jetstream, options.queues, settings, self.leases, self._spawn)
        self._overdue = OverdueRequest(jetstream)
        self._runner: Runner | None = None
        self._processing: Processing | None = None
        sync = functools.partial(sync_declared, jetstream, options.app, registry.declared_schedules)
        self._leadership = Leadership(jetstream, self.name, lease_s, observe, sync)
        self._registration = Registration(jetstream, self.name, self.leases, self._spawn)
        self.control = self._registration.control
        """What others may ask of this worker; `control.on` adds a word."""
        self.control.on("ping", lambda request: {"phase": str(self.phase)})
        self.control.on("quiet", lambda request: self.hush())
        self.control.on("stop", self._asked_to_stop)
        self.control.on("cancel", lambda request: handle_cancel(self.leases, self.registry, request))
        self.control.on(WATCH, self.event_publisher.on_watch)
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._opening: asyncio.Task[Any] | None = None
        self._started = 0
        self.cut_short = 0
        """Jobs that were cancelled and released when the stop deadline passed."""
        self.count_queues = False
        """Whether to count all queues while it leads. Set before `run`, where somebody asks for the counts."""
        self.recycling = False
        """Whether it stops by itself, because of threads that do not end: start another in its place."""

    # Life

    async def run(self) -> None:
        """Work until `quiet` or `stop`. BrokerError when the connection is gone for good."""
        self._create_task = asyncio.get_running_loop().create_task
        self._observe(WorkerChanged("started", ", ".join(sorted(self.options.queues))))
        async with contextlib.AsyncExitStack() as stack:
            if await self._started_up(stack):
                await self._work()
        self.phase = Phase.STOPPED
        self._observe(WorkerChanged("stopped"))

    async def _work(self) -> None:
        self._enter(Phase.READY, f"{self.slots.total} slots")
        background = [asyncio.create_task(self.leases.tend(self._tick, self._lanes.doubt))]
        asking = asyncio.create_task(self._dispatcher.ask_for_ever())
        if self.options.burst:
            background.append(asyncio.create_task(self._quiet_when_empty()))
        try:
            await self._until_quiet([asking, *background])
            if self.phase is not Phase.QUIET:
                self._enter(Phase.QUIET, f"{self.slots.busy} running")
            await _cancel([asking])
            await self._finish()
        finally:
            await _cancel([asking, *background])

    async def _started_up(self, stack: contextlib.AsyncExitStack) -> bool:
        """Open everything. False when the worker was told to stop meanwhile: it has nothing to finish."""
        if self._quiet.is_set():
            return False
        self._opening = asyncio.current_task()
        try:
            await self._open(stack)
        except asyncio.CancelledError:
            if not self._quiet.is_set() or self._opening is None:
                raise
            self._opening.uncancel()
            return False
        finally:
            self._opening = None
        return not self._quiet.is_set()

    def _enter(self, phase: Phase, detail: str) -> None:
        self.phase = phase
        self._registration.changed()
        self._observe(WorkerChanged(str(phase), detail))

    def hush(self) -> dict[str, Any]:
        """Take no new work, and stay: what runs may take its time. `quiet` or `stop` ends the worker."""
        if self.phase is Phase.STARTING:
            return {"ok": False, "error": "the worker is still starting"}
        if self.phase is Phase.READY:
            self._dispatcher.stop_intake()
            self._enter(Phase.QUIET, f"{self.slots.busy} running")
            self._spawn(self._lanes.close())
        return {"phase": str(self.phase)}

    def _asked_to_stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """As by a signal: in order, or at once."""
        end = self.stop if request.get("now") is True else self.quiet
        end()
        return {"phase": str(Phase.QUIET)}

    def quiet(self) -> None:
        """Take no new work; what runs may finish until the stop timeout."""
        self._dispatcher.stop_intake()
        first = not self._quiet.is_set()
        self._quiet.set()
        if first and self._opening is not None:
            self._opening.cancel()  # still starting, perhaps in a slow lifespan

    def stop(self) -> None:
        """Stop at once: cancel what runs and give it back."""
        self.quiet()
        self._stop_now.set()

    @property
    def left_behind(self) -> int:
        """Tasks and threads of a worker that has stopped which would not end."""
        threads = self._runner.threads.running if self._runner is not None else 0
        return threads + sum(a.runner is not None and not a.runner.done() for a in self.leases.held)

    @property
    def stuck_threads(self) -> int:
        """Threads that a time limit or a lost lease gave up on, and that still run."""
        return self._runner.threads.stuck if self._runner is not None else 0

    # Asked by the metrics, from another thread

    @property
    def queue_slots(self) -> Mapping[str, QueueSlots]:
        return queue_slots(self.options.queues, self.slots, self.leases)

    @property
    def queue_states(self) -> list[QueueState]:
        """How all queues stand, while this worker leads and `count_queues` is set; else none."""
        return self._leadership.queue_counter.states

    @property
    def count_errors(self) -> int:
        return self._leadership.queue_counter.errors

    @property
    def schedule_lateness(self) -> Mapping[str, float]:
        """By schedule, while this worker leads: how late its next slot is, in seconds."""
        return self._leadership.planner.lateness()

    @property
    def loop_lag_s(self) -> float:
        """The longest time in the last ten seconds that the event loop was late."""
        return self.leases.lag_s

    @property
    def ready(self) -> bool:
        return self.phase is Phase.READY and self._jetstream.connection.connected and self._dispatcher.healthy

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        if self.slots.total:
            await self._open_intake(stack)
        await self._registration.open(
            stack, self.registry, self.options.queues, self.slots, lambda: str(self.phase)
        )
        if self.options.schedules:
            await self._leadership.sync()
            await stack.enter_async_context(self._leadership.campaign(count_queues=self.count_queues))

    async def _open_intake(self, stack: contextlib.AsyncExitStack) -> None:
        """All that taking and running jobs needs."""
        await self._lanes.learn()
        timeout_s = self._settings.worker.timeout.total_seconds()
        config = RunConfig(self.name, self.slots.total, timeout_s, self.options.classifiers)
        self._runner = Runner(
            self.registry, self.options.middlewares, self.leases, self._jetstream, self._observe, config
        )
        max_crashes, observe = self._settings.queues.max_crashes, self._observe
        self._processing = Processing(
            self._jetstream, self._runner, self._settlement, self.leases, observe, self._on_stuck, max_crashes
        )
        stack.push_async_callback(self._runner.close)
        await self._runner.open(self.options.queues)
        for lifespan in self.options.lifespans:
            await stack.enter_async_context(lifespan())
        await self._jetstream.cancel_marks.listen()
        stack.push_async_callback(self._lanes.close)
        await self._lanes.open(self._dispatcher)
        stack.callback(self._jetstream.connection.on_reconnect(lambda: self._spawn(self._lanes.reconnected())))

    async def _until_quiet(self, background: list[asyncio.Task[None]]) -> None:
        quiet = asyncio.create_task(self._quiet.wait())
        closed = asyncio.create_task(self._jetstream.connection.closed.wait())
        try:
            await asyncio.wait({quiet, closed, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done():
                    task.result()  # raises what ended it; they end only by an error
            if closed.done() and not quiet.done():
                raise BrokerUnavailable("the server closed the connection for good")
        finally:
            await _cancel([quiet, closed])

    async def _finish(self) -> None:
        """What runs may end until the deadline; what does not is cancelled and given back."""
        await self._lanes.close()
        idle = asyncio.create_task(self.slots.idle())
        now = asyncio.create_task(self._stop_now.wait())
        timeout = self._settings.worker.stop_timeout.total_seconds()
        await asyncio.wait({idle, now}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        await _cancel([idle, now])
        for attempt in self.leases.held:
            if attempt.running:
                self.cut_short += 1
                attempt.stop_running(Interrupt.STOP)
        unfinished = {a.runner for a in self.leases.held if a.runner is not None} | self._tasks
        if unfinished:
            await asyncio.wait(unfinished, timeout=RELEASE_GRACE_S)

    async def _quiet_when_empty(self) -> None:
        """Burst: stop once nothing runs and every lane is empty. Jobs for later are not waited for."""
        while True:
            await self.slots.idle()
            # What is being given back is in no lane for a moment.
            if not self.leases.held and await self._lanes.empty() and not self.leases.held:
                self.quiet()
                await asyncio.Event().wait()
            await asyncio.sleep(0.05)

    # One delivery

    def _start(self, attempt: Attempt) -> None:
        self._started += 1
        if self._started == self.options.max_jobs:
            self.quiet()
        # Held by the attempt, which the leases hold: no further reference is needed.
        attempt.runner = self._create_task(self._attempt(attempt))

    async def _attempt(self, attempt: Attempt) -> None:
        assert self._processing is not None
        try:
            await self._processing.process(attempt)
        finally:
            # The task knows its context, and that the attempt: left as a ring, each job would wait for the
            # garbage collector, which costs a fifth of the throughput.
            attempt.runner = None
            self.slots.give_back(attempt.queue)
            self._dispatcher.slot_freed(attempt, time.monotonic() - attempt.received_at)

    def _release(self, attempt: Attempt) -> None:
        """Give back a delivery that never started."""
        assert self._processing is not None
        self._spawn(self._processing.give_back(attempt))

    def _tick(self) -> None:
        self._dispatcher.tick()
        self._overdue.tick()
        if self._runner is not None:
            self._runner.threads.look()
            self._recycle()

    def _recycle(self) -> None:
        """A thread can only be ended with its process: past a limit, end in order and let another begin."""
        stuck = self.stuck_threads
        if stuck >= MAX_STUCK_THREADS and not self._quiet.is_set():
            self.recycling = True
            self._observe(WorkerChanged("recycling", f"{stuck} threads do not end"))
            self.quiet()

    def _on_stuck(self, stuck: int, full: int) -> None:
        self._overdue.was_full |= full > 0
        self._dispatcher.on_stuck(stuck, full)

    def _tell(self, event: Event) -> None:
        if isinstance(event, SettleFailed) and event.kind == "record":
            self._overdue.was_full = True
        self._observe(event)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """The worker at work while the block runs; stopped in order afterwards. For tests and embedding."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.quiet()
        await task
