"""JetJobs: joins the registry, the settings and the connection. The one object users make."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jetjobs.admin.dead_letters import DeadLetters
from jetjobs.admin.jobs import Jobs
from jetjobs.admin.queues import Queues
from jetjobs.admin.schedules import Schedules
from jetjobs.admin.workers import Workers
from jetjobs.bulk import enqueue_many
from jetjobs.config import load_settings
from jetjobs.define.enqueue_report import EnqueueReport
from jetjobs.define.handle import JobHandle
from jetjobs.define.middleware import Middleware
from jetjobs.define.router import Router
from jetjobs.define.task import JobRequest
from jetjobs.doctor.finding import Finding
from jetjobs.doctor.runner import run_checks
from jetjobs.enqueue import Enqueuer
from jetjobs.jetstream import topology
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.control_client import EventStream
from jetjobs.model.error_classification import Classifier
from jetjobs.model.errors import DefinitionError, JetJobsError
from jetjobs.model.events import EnqueueFailed, Event, JobEnqueued, Observer
from jetjobs.model.public import public
from jetjobs.model.settings import Settings
from jetjobs.model.views.live_events import LiveEvent, event_subjects
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import Names
from jetjobs.model.wire.validation import check_token
from jetjobs.observe.observers import Observers
from jetjobs.worker.options import Lifespan, WorkerOptions
from jetjobs.worker.worker import Worker

if TYPE_CHECKING:
    from jetjobs.observe.metrics import Metrics


@public("jetjobs")
class JetJobs(Router):
    """An app: its tasks, and a connection while it is open.

    Inert at import: nothing is read or connected before `async with app:` or `await app.open()`.
    """

    def __init__(self, name: str, *, settings: Settings | None = None, queue: str = "default") -> None:
        super().__init__(queue=queue)
        self.name = check_token("app", name)
        self._given = settings
        self._settings: Settings | None = settings
        self._observers = Observers()
        self._middlewares: list[Middleware] = []
        self._lifespans: list[Lifespan] = []
        self.classifiers: dict[type[BaseException], Classifier] = {}
        """What `classify` was told, by class."""
        self._jetstream: JetStreamClient | None = None
        self._enqueuer: Enqueuer | None = None

    # Declaring

    def middleware(self, function: Middleware) -> Middleware:
        """Add a layer around every attempt; the first added is the outermost."""
        self._middlewares.append(function)
        return function

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Add an async context manager that is open while a worker works: `@app.lifespan`."""
        self._lifespans.append(function)
        return function

    def classify(self, *kinds: type[BaseException]) -> Callable[[Classifier], Classifier]:
        """Say once for the whole app what an error means: `@app.classify(SomeError)` over a function that returns
        TRANSIENT, PERMANENT, Verdict(True, after_s), or None for no opinion. A task's own lists go before it.
        """

        def register(function: Classifier) -> Classifier:
            for kind in kinds:
                self.classifiers[kind] = function
            return function

        return register

    def observe(self, observer: Observer, *kinds: type[Event]) -> Observer:
        """Add an observer of events, of all or of some kinds. It must not block; what it raises is logged."""
        self._observers.add(observer, kinds)
        return observer

    def metrics(self, worker: Worker | None = None) -> Metrics:
        """Count from now on what this process does, for Prometheus: `REGISTRY.register(app.metrics())`.

        Call it once. `jetjobs worker --http` does it by itself; this is for producers and for workers in a program
        of your own. `worker` adds its gauges.
        """
        from jetjobs.observe.metrics import Metrics  # producers that are not scraped need no Prometheus client

        metrics = Metrics(
            self.tasks.keys(),
            getattr(sys.modules["jetjobs"], "__version__", ""),
            declared=lambda: [(task.queue, task.name) for task in tuple(self.tasks.values())],
            connected=lambda: self._jetstream is not None and self._jetstream.connection.connected,
            worker=worker,
        )
        self.observe(metrics.observe, *metrics.kinds)
        return metrics

    def forget(self, observer: Observer) -> None:
        """Take an observer away again."""
        self._observers.remove(observer)

    @property
    def middlewares(self) -> tuple[Middleware, ...]:
        """Those added so far, the outermost first."""
        return tuple(self._middlewares)

    # Life

    @property
    def settings(self) -> Settings:
        """The settings given, or else those found in the environment and files on first use."""
        if self._settings is None:
            self._settings = load_settings().settings
        return self._settings

    def configure(self, settings: Settings | None) -> Settings | None:
        """Replace the settings before the app is opened; None: look for them again. Returns what it had."""
        if self._jetstream is not None:
            raise DefinitionError("the app is open: settings are read when it opens")
        before, self._settings = self._settings, settings
        return before

    async def open(self) -> Self:
        """Connect. BrokerError within seconds when that is not possible."""
        if self._jetstream is not None:
            raise JetJobsError("the app is open already")
        jetstream = JetStreamClient(self.settings, f"jetjobs-{self.name}", self._observers.notify)
        await jetstream.open()
        self._jetstream = jetstream
        self._waiting = jetstream.result_waiter
        self._enqueuer = Enqueuer(jetstream, self._waiting, self.name)
        self._outlet = self._enqueuer.enqueue
        return self

    async def close(self) -> None:
        """Flush and disconnect. The app may be opened again."""
        jetstream, self._jetstream, self._enqueuer, self._outlet = self._jetstream, None, None, None
        if jetstream is not None:
            await jetstream.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        return self._jetstream is not None

    @property
    def jetstream(self) -> JetStreamClient:
        """The open connection and all behind it."""
        if self._jetstream is None:
            raise JetJobsError("the app is not connected", hint="use `async with app:` or `await app.open()`")
        return self._jetstream

    # Using

    @property
    def dead(self) -> DeadLetters:
        """The dead letters: list, replay, delete."""
        return DeadLetters(self.jetstream, self)

    @property
    def jobs(self) -> Jobs:
        """All jobs of the namespace: find one by its id, list them, change those that wait."""
        return Jobs(self.jetstream)

    async def job(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> JobHandle[Any]:
        """The handle of a job from its id alone. JobNotFound, or JobAmbiguous when two jobs have the id."""
        found_queue, found_task = await self.jobs.locate(job_id, queue, task)
        return self._handle(job_id, found_queue, found_task)

    def _handle(self, job_id: str, queue: str, task: str, run: str = "") -> JobHandle[Any]:
        known = self.tasks.get(task)
        handle: JobHandle[Any] = JobHandle(
            job_id,
            queue,
            task,
            run=run,
            stores_result=known.store_result if known is not None else True,
            duplicate=not run,
        )
        decode = known.signature.decode_result if known is not None else read_json
        return handle.attach(self._waiting, decode)

    @property
    def schedules(self) -> Schedules:
        """The schedules of the namespace: look, put, pause, resume, delete, run now."""
        return Schedules(self.jetstream, self, lambda job: self._handle(job.id, job.queue, job.task, job.run))

    @property
    def queues(self) -> Queues:
        """The queues on the server: look, pause, resume, purge."""
        return Queues(self.jetstream)

    @property
    def workers(self) -> Workers:
        """The workers that live: look, quiet, stop."""
        return Workers(self.jetstream)

    def events(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        kinds: Sequence[str] | str = (),
        begun: Callable[[int], None] = lambda workers: None,
    ) -> AsyncGenerator[LiveEvent, None]:
        """What happens to jobs and workers, from now on and without end: `async for event in app.events()`.

        `kinds` are patterns such as `job.*`. With a queue or a task it is of jobs only. Not stored: what happens
        during an outage is missed. `begun` is called once, with how many workers tell by then.
        """
        connection, names = self.jetstream.connection, self.jetstream.names
        return EventStream(connection, names, event_subjects(names, queue, task, kinds)).events(begun)

    async def enqueue_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """Store many jobs, 1,000 at a time, each thousand all or none. The report has an answer for each."""
        if self._enqueuer is None:
            raise JetJobsError("the app is not connected", hint="use `async with app:` or `await app.open()`")
        self.jetstream.connection.check_loop()
        started = time.perf_counter()
        report = await enqueue_many(self.jetstream, self._enqueuer, requests)
        if self._observers:
            self._tell_stored(requests, report, time.perf_counter() - started)
        return report

    def _tell_stored(self, requests: Sequence[JobRequest[Any]], report: EnqueueReport, took_s: float) -> None:
        """An event for each; the time is told once a queue."""
        untold: dict[str, float] = {}
        for request, entry in zip(requests, report.entries, strict=True):
            if entry is not None:
                queue = request.options.get("queue", request.task.queue)
                took = untold.setdefault(queue, took_s)
                self._observers.notify(JobEnqueued(queue, request.task.name, entry.job_id, entry.duplicate, took))
                untold[queue] = 0.0
        for refusal in report.refused:
            queue = refusal.request.options.get("queue", refusal.request.task.queue)
            took = untold.setdefault(queue, took_s)
            self._observers.notify(_failed(queue, refusal.request.task.name, refusal.error, took))
            untold[queue] = 0.0

    def worker(
        self,
        *,
        queues: Mapping[str, int | None] | None = None,
        slots: int | None = None,
        name: str = "",
        burst: bool = False,
        max_jobs: int = 0,
        schedules: bool = True,
    ) -> Worker:
        """A worker for this app's tasks, on its connection. `await worker.run()` works until stopped.

        With `schedules` it is also a candidate for the lead: one of all candidates plans the schedules. With 0
        slots it is only that: it takes no jobs, and is a worker of no queue."""
        slots = self.settings.worker.slots if slots is None else slots
        if slots == 0:
            queues = {}
        options = WorkerOptions(
            queues=dict.fromkeys(self.task_queues) if queues is None else queues,
            slots=slots,
            name=name,
            burst=burst,
            max_jobs=max_jobs,
            app=self.name,
            schedules=schedules,
            middlewares=self.middlewares,
            lifespans=tuple(self._lifespans),
            classifiers=dict(self.classifiers),
        )
        return Worker(self.jetstream, self, self.settings, options, self._observers.notify)

    async def plan(self, queues: Sequence[str] | None = None) -> list[topology.Change]:
        """What must change on the server for `queues` (default: those of the tasks). Changes nothing."""
        connection = self.jetstream.connection
        await connection.api(api.ACCOUNT_INFO)
        settings = self.settings.queues
        wanted = topology.plan(
            Names(settings.namespace),
            self.task_queues if queues is None else queues,
            settings,
            replicas=3 if connection.clustered else 1,
        )
        return await topology.inspect(connection, wanted, keep_replicas=settings.replicas is None)

    async def provision(self, queues: Sequence[str] | None = None) -> list[topology.Change]:
        """Create or update what is needed. Safe to run from many processes at once; returns what it found."""
        changes = await self.plan(queues)
        await topology.apply(self.jetstream.connection, self.jetstream.publisher, changes)
        return changes

    async def verify(self, queues: Sequence[str] | None = None) -> None:
        """TopologyMissing or TopologyConflict unless all stands as wanted."""
        topology.check(await self.plan(queues))

    async def doctor(self, only: Collection[str] | None = None) -> list[Finding]:
        """Look whether all is well, in all areas or those of `only`: nats, topology, queues, schedules, workers,
        app. Changes nothing. Over a connection of its own, so the app need not be open."""
        return await run_checks(self.settings, self, only=only)

    async def _send(self, request: JobRequest[Any]) -> JobHandle[Any]:
        if self._outlet is None:
            raise JetJobsError("the app is not connected", hint="use `async with app:` or `await app.open()`")
        if not self._observers:
            return await self._outlet(request)
        started = time.perf_counter()
        try:
            handle = await self._outlet(request)
        except JetJobsError as error:
            queue = request.options.get("queue", request.task.queue)
            self._observers.notify(_failed(queue, request.task.name, error, time.perf_counter() - started))
            raise
        took_s = time.perf_counter() - started
        self._observers.notify(JobEnqueued(handle.queue, handle.task, handle.id, handle.duplicate, took_s))
        return handle


def _failed(queue: str, task: str, error: JetJobsError, took_s: float) -> EnqueueFailed:
    return EnqueueFailed(queue, task, type(error).__name__, str(error), took_s)
