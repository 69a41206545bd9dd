"""The app: tasks, settings and, while it is open, one session with the server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack

from jetjobs.admin.operations import HandleLookup, Operations, max_attempts
from jetjobs.bulk import enqueue_many, notify_stored
from jetjobs.config import load_for_app
from jetjobs.define.context import Middleware
from jetjobs.define.enqueue_report import EnqueueReport
from jetjobs.define.flows.flow import Flow
from jetjobs.define.flows.flow_handle import FlowHandle
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions
from jetjobs.define.task import JobRequest, Task
from jetjobs.enqueue import Enqueuer, Identity, enqueue_failed
from jetjobs.foreign_task import request_by_name
from jetjobs.jetstream import topology
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.topology_plan import plan as plan_topology
from jetjobs.jetstream.transport import api
from jetjobs.model.error_classification import Classifier
from jetjobs.model.errors import DefinitionError, JetJobsError
from jetjobs.model.events import Event, JobEnqueued, Observer
from jetjobs.model.public import public
from jetjobs.model.settings import Settings
from jetjobs.model.views.error_text import type_name
from jetjobs.model.wire.subjects import Names
from jetjobs.model.wire.validation import WEBHOOK_TASK, WEBHOOKS, check_token
from jetjobs.observe.observers import Observers
from jetjobs.sync import SyncClient
from jetjobs.worker.lifespan import L, Lifespan, make_lifespan
from jetjobs.worker.options import WorkerOptions
from jetjobs.worker.webhooks.delivery_task import sending_task, webhook_task

if TYPE_CHECKING:
    from jetjobs.doctor.finding import Finding
    from jetjobs.observe.metrics import Metrics
    from jetjobs.worker.worker import Worker


F = TypeVar("F")


class Session(NamedTuple):
    """What an open app has. The app sets and clears it as a whole."""

    jetstream: JetStreamClient
    enqueuer: Enqueuer


@public("jetjobs")
class JetJobs(Operations):
    """An app: its tasks, and a connection while it is open.

    Creating an app reads no settings and opens no connection; `async with app:` and `await app.open()` do.
    """

    def __init__(self, name: str, *, settings: Settings | None = None, queue: str = "default") -> None:
        super().__init__(queue=queue)
        self.name = check_token("app", name)
        self.given_settings = settings
        """The settings in the code of the program: one of the sources that `settings` are loaded from."""
        self._settings: Settings | None = None
        self._observers = Observers()
        self._middlewares: list[Middleware] = []
        self._lifespans: list[Lifespan] = []
        self.classifiers: dict[type[BaseException], Classifier] = {}
        """The functions registered with `classify`, by exception class."""
        self._session: Session | None = None
        self.sync = SyncClient(self)
        """Enqueue and manage jobs from code without an event loop."""
        self._lookup = HandleLookup(self, self.sync.wait)

    # Declaring

    def middleware(self, function: Middleware) -> Middleware:
        """Add a middleware around every attempt. The first one added is the outermost."""
        self._middlewares.append(function)
        return function

    def lifespan(self, function: L) -> L:
        """Add an async generator function that is open while a worker runs: `@app.lifespan`. It yields once, may
        take the app as its argument, and may be decorated with `@asynccontextmanager`."""
        self._lifespans.append(make_lifespan(function, self))
        return function

    def classify(self, *kinds: type[BaseException]) -> Callable[[Classifier], Classifier]:
        """Register a function that classifies errors for the whole app: `@app.classify(SomeError)`.

        It returns TRANSIENT, PERMANENT, Verdict(True, after), or None for no opinion. The `retry_on` and
        `dead_on` of a task take precedence.
        """

        def register(function: Classifier) -> Classifier:
            for kind in kinds:
                self.classifiers[kind] = function
            return function

        return register

    def observe(self, observer: Observer, *kinds: type[Event]) -> Observer:
        """Add an observer of all events, or of some kinds. It must not block; its exceptions are logged."""
        self._observers.add(observer, kinds)
        return observer

    def metrics(self, worker: Worker | None = None) -> Metrics:
        """Collect Prometheus metrics of this process: `REGISTRY.register(app.metrics())`.

        Call it once. `jetjobs worker --http` does so itself; call it for producers and for workers embedded in
        another program. With `worker`, the gauges of that worker are included.
        """
        from jetjobs.observe.metrics import Metrics  # only processes that are scraped need prometheus_client

        metrics = Metrics(
            self.tasks.keys(),
            getattr(sys.modules["jetjobs"], "__version__", ""),
            declared=lambda: [(task.queue, name) for name, task in tuple(self.tasks.items())],
            declared_errors=lambda: {
                type_name(kind)
                for task in tuple(self.tasks.values())
                for kind in (*task.retry.retry_on, *task.retry.dead_on)
            },
            connected=lambda: self.sync.connected or (self.is_open and self.jetstream.connection.connected),
            worker=worker,
        )
        self.observe(metrics.observe, *metrics.kinds)
        return metrics

    def forget(self, observer: Observer) -> None:
        """Remove an observer."""
        self._observers.remove(observer)

    @property
    def middlewares(self) -> tuple[Middleware, ...]:
        """The middlewares added so far, the outermost first."""
        return tuple(self._middlewares)

    # Opening and closing

    @property
    def settings(self) -> Settings:
        """The settings in force: those of `configure`, else those of all sources, loaded on first use."""
        if self._settings is None:
            self._settings = load_for_app(self.given_settings)
        return self._settings

    @property
    def namespace(self) -> str:
        """The namespace of the app's queues on the server: its name, unless `queues.namespace` is set."""
        return self.settings.queues.namespace or self.name

    def configure(self, settings: Settings | None) -> Settings | None:
        """Replace the settings of an app that is not open: no other source counts. None loads them again from all
        sources. Returns the previous ones."""
        if self._session is not None:
            raise DefinitionError("the app is open", hint="settings are read when it opens; close it first")
        before, self._settings = self._settings, settings
        self.sync.reset()
        return before

    async def open(self) -> Self:
        """Connect to the server. BrokerError within seconds if that fails; TopologyConflict if another version of
        jetjobs created the streams of the queues in a different layout."""
        if self._session is not None:
            raise JetJobsError("the app is already open")
        names = Names(self.namespace)
        jetstream = JetStreamClient(self.settings, names, f"jetjobs-{self.name}", self._observers.notify)
        # An app without tasks is an operator's, who works on every queue.
        await jetstream.open(self.task_queues or None)
        jetstream.max_attempts = max_attempts(self)
        self._session = Session(jetstream, Enqueuer(jetstream, self._lookup, self.name))
        return self

    async def close(self) -> None:
        """Flush and disconnect. The app can be opened again."""
        session, self._session = self._session, None
        if session is not None:
            await session.jetstream.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def jetstream(self) -> JetStreamClient:
        """The connection of the open app, for jetjobs' own modules."""
        return self._opened().jetstream

    def _opened(self) -> Session:
        if self._session is None:
            raise JetJobsError("the app is not connected", hint="use `async with app:` or `await app.open()`")
        return self._session

    # Enqueueing

    async def send(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """Store one request; `task.enqueue` does this after it has checked the arguments."""
        if self._session is None and self._parents:
            return await super().send(request)  # this app is included in another one
        return await self.send_by((self._session or self._opened()).enqueuer, request)

    async def send_by(
        self, enqueuer: Enqueuer, request: JobRequest[Any], identity: Identity | None = None
    ) -> JobHandle[Any]:
        """As `send`, for jetjobs' own modules."""
        if not self._observers and identity is None:
            return await enqueuer.enqueue(request)
        started = time.perf_counter()
        try:
            handle = await enqueuer.enqueue(request, identity)
        except JetJobsError as error:
            queue = request.options.get("queue", request.task.queue)
            self._observers.notify(enqueue_failed(queue, request.task.name, error, time.perf_counter() - started))
            raise
        took_s = time.perf_counter() - started
        self._observers.notify(JobEnqueued(handle.queue, handle.task, handle.id, handle.duplicate, took_s))
        return handle

    async def enqueue_flow(self, flow: Flow[F]) -> FlowHandle[F]:
        """Store a flow. One with an id that was stored before is not stored again; `duplicate` of its handle is
        then True. FlowConflict if that one has another content."""
        if self._session is None and self._parents:
            return await super().enqueue_flow(flow)  # this app is included in another one
        return await (self._session or self._opened()).enqueuer.enqueue_flow(flow)

    def send_sync(self, request: JobRequest[Any]) -> JobHandle[Any]:
        return super().send_sync(request) if self._parents else self.sync.enqueue(request)

    def enqueuer(self, producer: str) -> Enqueuer:
        """What stores jobs in the name of another producer, for jetjobs' own modules."""
        return Enqueuer(self.jetstream, self._lookup, producer)

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[Any]:
        """Store a job of a task by its name, also of one that another service declares:
        `await app.enqueue("send_email", {"to": "ada@example.org"}, queue="mail")`.

        If the app has the task, its arguments are checked and its queue is the default. Otherwise the arguments
        are any JSON values and the default is the app's own queue.
        """
        return await self.send(request_by_name(self, task, args, options))

    async def enqueue_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """Store many jobs in batches of 1,000 and return a report with one entry per request.

        Each batch is stored completely or not at all.
        """
        return await self.send_many_by(self._opened().enqueuer, requests)

    async def send_many_by(self, enqueuer: Enqueuer, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """As `enqueue_many`, for jetjobs' own modules."""
        self.jetstream.connection.check_loop()
        started = time.perf_counter()
        report = await enqueue_many(self.jetstream, enqueuer, requests)
        if self._observers:
            notify_stored(self._observers.notify, requests, report, time.perf_counter() - started)
        return report

    # Workers, topology and health

    def find(self, name: str) -> Task[Any, Any]:
        """The task of that name or alias, also the built-in one. UnknownTask if there is none."""
        built_in = name == WEBHOOK_TASK and name not in self.tasks
        return webhook_task(self.settings.webhooks) if built_in else super().find(name)

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
        """A worker for the tasks of this app, on its connection. `await worker.run()` runs until it is stopped.

        With `schedules` it is a candidate for leader, which plans the schedules. With 0 slots it serves no queue.
        Queue `webhooks` is served if `queues` names it; alone it needs no middleware and no lifespan of the app.
        """
        from jetjobs.worker.worker import Worker  # most processes only enqueue or read

        slots = self.settings.worker.slots if slots is None else slots
        if slots == 0:
            queues = {}
        queues = dict.fromkeys(self.task_queues) if queues is None else queues
        if WEBHOOKS in queues:
            self.tasks[WEBHOOK_TASK] = sending_task(self.settings.webhooks)
        alone = queues.keys() == {WEBHOOKS}
        options = WorkerOptions(
            queues,
            slots=slots,
            name=name,
            burst=burst,
            max_jobs=max_jobs,
            app=self.name,
            schedules=schedules,
            middlewares=() if alone else self.middlewares,
            lifespans=() if alone else tuple(self._lifespans),
            classifiers=dict(self.classifiers),
        )
        return Worker(self.jetstream, self, self.settings, options, self._observers.notify)

    async def plan(self, queues: Sequence[str] | None = None) -> list[topology.TopologyChange]:
        """The changes that the server needs for `queues` (default: those of the tasks). Applies none of them."""
        connection = self.jetstream.connection
        await connection.api(api.ACCOUNT_INFO)
        settings = self.settings.queues
        queues, replicas = self.task_queues if queues is None else queues, 3 if connection.clustered else 1
        wanted = plan_topology(self.jetstream.names, queues, settings, replicas)
        return await topology.inspect(connection, wanted, keep_replicas=settings.replicas is None)

    async def provision(
        self, queues: Sequence[str] | None = None, *, force: bool = False
    ) -> list[topology.TopologyChange]:
        """Create or update what `plan` reports, and return it. Many processes may run this at the same time.

        WorkerSilent if a lease would be lowered and a running worker does not confirm that it heartbeats more
        often; `force` lowers it anyway.
        """
        changes, jetstream = await self.plan(queues), self.jetstream
        await topology.apply(jetstream.connection, jetstream.publisher, jetstream.names, changes, force=force)
        return changes

    async def verify(self, queues: Sequence[str] | None = None) -> None:
        """Raise TopologyMissing or TopologyConflict if `plan` reports a change."""
        topology.check(await self.plan(queues))

    async def doctor(self, only: Collection[str] | None = None) -> list[Finding]:
        """Run the health checks of all areas, or of those in `only`: nats, topology, queues, schedules, workers,
        app. Changes nothing. Uses its own connection, so the app need not be open.
        """
        from jetjobs.doctor.runner import run_checks

        return await run_checks(self.settings, Names(self.namespace), self, only=only)
