"""Everything a worker needs to pull and run jobs: leases, execution and intake, wired together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.events import Event, Observer, SettleFailed
from jetjobs.model.settings import Settings
from jetjobs.worker.attempt import Interrupt
from jetjobs.worker.execution.admission import Admission
from jetjobs.worker.execution.attempt_services import WorkerServices
from jetjobs.worker.execution.executor import Executor, ExecutorConfig
from jetjobs.worker.execution.pipeline import Pipeline
from jetjobs.worker.execution.quarantine import Quarantine
from jetjobs.worker.execution.redelivery import RedeliveryCheck
from jetjobs.worker.execution.settlement import Settlement
from jetjobs.worker.intake.dispatcher import Dispatcher
from jetjobs.worker.intake.lanes import Lanes
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.lane_lease import LaneLease
from jetjobs.worker.leases.lease_check import LeaseCheck
from jetjobs.worker.leases.lease_table import Heartbeats, LeaseTable
from jetjobs.worker.leases.loop_monitor import TICK_S, LoopMonitor
from jetjobs.worker.leases.running_records import RunningRecords
from jetjobs.worker.leases.time_limits import TimeLimits
from jetjobs.worker.options import Spawn, WorkerOptions

MIN_SETTLE_S = 15.0
"""The least time to store an outcome, however short the lease is."""
CLEANUP_S = 5.0
"""How long cancelled tasks may take to clean up before the worker stops without them."""
BURST_CHECK_S = 0.05


class JobRunner:
    """Wires the parts of one worker that jobs pass through. No job passes through this class itself."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        registry: Router,
        settings: Settings,
        options: WorkerOptions,
        name: str,
        observe: Observer,
        spawn: Spawn,
        on_full: Callable[[], None],
    ) -> None:
        """`on_full` is called when storage was full for an outcome or a record."""
        self._jetstream = jetstream
        self._options = options
        self._stop_timeout_s = settings.worker.stop_timeout.total_seconds()
        self._spawn = spawn
        self._observe = observe
        self._on_full = on_full
        lease_s, max_crashes = settings.queues.lease.total_seconds(), settings.queues.max_crashes
        self.monitor = LoopMonitor()
        self.leases = LeaseTable(lease_s, observe, jetstream.server_clock)
        self.records = RunningRecords(jetstream, name, self.leases, self.monitor)
        self._heartbeats = Heartbeats(self.leases)
        self._check = LeaseCheck(jetstream, self.leases, spawn)
        self._limits = TimeLimits(self.leases)
        timeout_s = settings.worker.timeout.total_seconds()
        config = ExecutorConfig(name, options.slots, timeout_s, options.middlewares, options.classifiers)
        self._services = WorkerServices(jetstream.checkpoints, name)
        self.executor = Executor(registry, self._services, self._limits, observe, config, jetstream.server_clock)
        grace_s = settings.queues.unknown_task_grace.total_seconds()
        admission = Admission(jetstream, registry, RedeliveryCheck(jetstream.locator, max_crashes), grace_s)
        settle_s = max(lease_s, MIN_SETTLE_S)
        settlement = Settlement(jetstream, registry, self.leases, name, settle_s, self._on_settle_event)
        self.pipeline = Pipeline(
            jetstream,
            registry,
            options.classifiers,
            admission,
            self.executor,
            settlement,
            self.leases,
            self.records,
            observe,
            spawn,
        )
        self.slots = Slots(options.slots, options.queues)
        quarantine, start, release = Quarantine(max_crashes), self.pipeline.start, self.pipeline.release
        self.dispatcher = Dispatcher(self.slots, self.leases, self.monitor, quarantine, start, release, observe)
        self.lanes = Lanes(jetstream, options.queues, settings, spawn)
        self.lease = LaneLease(jetstream, options.queues, self.leases, self._heartbeats)

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Start to receive jobs, until the stack closes."""
        await self.lease.read()
        self.pipeline.open(self.dispatcher.on_end, self._on_stuck)
        self._services.open()
        stack.push_async_callback(self.executor.close)
        await self.executor.open(self._options.queues)
        for lifespan in self._options.lifespans:
            await stack.enter_async_context(lifespan())
        await self._jetstream.cancel_marks.listen()
        self._check.open()
        stack.callback(self._jetstream.connection.on_disconnect(self._check.doubt_all))
        stack.push_async_callback(self.lanes.close)
        await self.lanes.open(self.dispatcher, self._check.doubt_queue)
        stack.callback(self._jetstream.connection.on_reconnect(self._reconnected))

    def _reconnected(self) -> None:
        self._check.start()
        self._spawn(self.lanes.reconnected())

    def tick_interval_s(self) -> float:
        return min(TICK_S, self.leases.lease_s / 6)

    def tick(self, now: float) -> None:
        """What time alone requires: lost leases, late heartbeats, running records, jobs that wait too long."""
        self.leases.lose_expired(now)
        self._check.tick(now)
        if self._jetstream.connection.connected:
            # The heartbeat thread extends leases earlier. This is for those that it has not reached.
            self._heartbeats.send(now, self._jetstream.connection, 1 / 2)
            self.records.write_due(now)
        self.dispatcher.tick()
        self.executor.threads.report_stuck()

    async def until_empty(self) -> None:
        """Wait until nothing runs and every lane is empty. Jobs that are due later do not count."""
        while True:
            await self.slots.idle()
            # A job that is being released is in no lane for a moment.
            if not self.leases.held and await self.lanes.empty() and not self.leases.held:
                return
            await asyncio.sleep(BURST_CHECK_S)

    async def finish(self, stop_now: asyncio.Event) -> int:
        """Let running jobs end until the stop timeout is up or `stop_now` is set. Then cancel and release them,
        and return how many those are."""
        await self.lanes.close()
        idle = asyncio.create_task(self.slots.idle())
        now = asyncio.create_task(stop_now.wait())
        await asyncio.wait({idle, now}, timeout=self._stop_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (idle, now):
            waiting.cancel()
        await asyncio.gather(idle, now, return_exceptions=True)
        cut_short = [attempt for attempt in self.leases.held if attempt.running]
        for attempt in cut_short:
            attempt.stop_running(Interrupt.STOP)
        return len(cut_short)

    async def clean_up(self, others: set[asyncio.Task[None]]) -> None:
        """Wait for cancelled tasks and for `others`, but not indefinitely."""
        unfinished = {a.asyncio_task for a in self.leases.held if a.asyncio_task is not None} | others
        if unfinished:
            await asyncio.wait(unfinished, timeout=CLEANUP_S)

    def close(self) -> None:
        self._limits.close()

    @property
    def left_behind(self) -> int:
        """Tasks and threads that still run after the worker has stopped."""
        unfinished = (a.asyncio_task is not None and not a.asyncio_task.done() for a in self.leases.held)
        return self.executor.threads.running + sum(unfinished)

    @property
    def trouble(self) -> str:
        """What keeps the worker from pulling jobs or storing their outcomes; empty if nothing does."""
        if error := self.pipeline.settle_error:
            return f"outcomes cannot be stored: {error}"
        denied = (f"a job is held: {attempt.denied}" for attempt in self.leases.held if attempt.denied)
        return self.dispatcher.trouble or next(denied, "")

    def _on_stuck(self, stuck: int, full: int) -> None:
        if full:
            self._on_full()
        self.dispatcher.on_stuck(stuck, full)

    def _on_settle_event(self, event: Event) -> None:
        if isinstance(event, SettleFailed) and event.kind == "record":
            self._on_full()
        self._observe(event)
