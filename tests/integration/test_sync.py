"""Synchronous callers: threads without an event loop enqueue jobs, wait for results and manage jobs."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import jetjobs.sync
from jetjobs import (
    BrokerUnavailable,
    InvalidArguments,
    JetJobs,
    JetJobsError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    ResultNotReady,
    Router,
    Settings,
    current_job,
)
from jetjobs.admin import CancelOutcome, ReplayOutcome
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import DefinitionError
from jetjobs.events import JobEnqueued
from tests.support.job_states import ONCE
from tests.support.probe import Probe, wait_until
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker


@pytest.fixture(autouse=True)
def closed_afterwards(app: JetJobs) -> Iterator[None]:
    yield
    app.sync.reset()


@pytest.fixture
async def queues(app: JetJobs, work: Any) -> None:
    """The queues exist, and the app is closed again: only `app.sync` is used."""
    async with provisioned(app):
        pass


def connections() -> int:
    background = jetjobs.sync._background
    return 0 if background is None else len(background._clients)


def in_threads(count: int, call: Callable[[int], object]) -> list[Any]:
    """The result or error of `call` in each of the threads, which start together."""
    start, found = threading.Barrier(count), [None] * count

    def run(n: int) -> None:
        start.wait()
        try:
            found[n] = call(n)  # type: ignore[call-overload]
        except Exception as error:
            found[n] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


# Enqueueing


async def test_a_job_is_stored_when_enqueue_sync_returns(queues: None, work: Any, truth: Truth) -> None:
    plain = await asyncio.to_thread(work.enqueue_sync, n=1)
    later = await asyncio.to_thread(work.options(delay=timedelta(hours=1), key="k").enqueue_sync, 2)
    again = await asyncio.to_thread(work.options(delay=timedelta(hours=1), key="k").enqueue_sync, 2)
    found = {subject.split(".")[3]: subject for subject in await truth.jobs()}
    assert set(found) == {"normal", "later"}
    assert found["normal"].endswith(plain.id)
    assert (again.duplicate, again.id) == (True, later.id)


def test_threads_that_call_at_once_share_one_connection(queues: None, app: JetJobs, work: Any) -> None:
    before = connections()
    assert not app.sync.connected
    handles = in_threads(16, lambda n: [work.enqueue_sync(n) for _ in range(5)])
    assert len({handle.id for some in handles for handle in some}) == 80
    assert connections() == before + 1
    assert app.sync.connected
    assert [thread.name for thread in threading.enumerate()].count("jetjobs-sync") == 1


def test_many_jobs_are_stored_with_one_answer_each(queues: None, app: JetJobs, work: Any) -> None:
    report = app.sync.enqueue_many([work.bind(n) for n in range(1500)])
    assert len(report.raise_for_refused().stored) == 1500
    assert app.sync.get(report.stored[-1].id).state is JobState.QUEUED


async def test_the_session_of_the_open_app_is_independent(
    app: JetJobs, work: Any, truth: Truth, probe: Probe
) -> None:
    async with provisioned(app):
        before = connections()
        handle = await asyncio.to_thread(work.enqueue_sync, 1)
        assert connections() == before + 1
        # The methods of the handle that are awaited use the open app, `result_sync` does not.
        assert (await handle.status()).state is JobState.QUEUED
        await work.enqueue(2)
    with pytest.raises(JetJobsError, match="not connected"):
        await handle.status()
    await asyncio.to_thread(work.enqueue_sync, 3)
    assert len(await truth.jobs()) == 3
    assert len(probe.of(JobEnqueued)) == 3


async def test_inside_a_running_event_loop_the_awaited_form_is_named(
    queues: None, app: JetJobs, work: Any, truth: Truth
) -> None:
    for call, instead in (
        (lambda: work.enqueue_sync(1), "await work.enqueue(...)"),
        (lambda: app.sync.enqueue(work.bind(1)), "await work.enqueue(...)"),
        (lambda: app.sync.enqueue_many([work.bind(1)]), "await app.enqueue_many(...)"),
        (lambda: app.sync.get("x"), "await app.jobs.get(...)"),
        (lambda: app.sync.result("x"), "await handle.result(...)"),
        (lambda: app.sync.cancel("x"), "await app.jobs.cancel(...)"),
        (lambda: app.sync.replay("x"), "await app.dead.replay(...)"),
    ):
        with pytest.raises(JetJobsError) as caught:
            call()
        assert str(caught.value) == "this call would block the running event loop"
        assert caught.value.hint == f"use `{instead}`"
    assert await truth.jobs() == []


def test_invalid_arguments_are_refused_before_anything_is_sent(queues: None, app: JetJobs, work: Any) -> None:
    before = connections()
    with pytest.raises(InvalidArguments, match="n"):
        work.enqueue_sync("many")
    assert connections() == before


def test_a_task_instead_of_a_request_is_refused(queues: None, app: JetJobs, work: Any) -> None:
    with pytest.raises(DefinitionError, match=r"must be the name of a task, not <Task work queue=default>"):
        app.sync.enqueue(work)


def test_a_task_of_another_service_is_enqueued_by_its_name(queues: None, app: JetJobs) -> None:
    handle = app.sync.enqueue("elsewhere", {"n": 1}, queue="default", job_id="e-1")
    assert (handle.id, app.sync.get("e-1").task) == ("e-1", "elsewhere")


def test_tasks_of_routers_and_included_apps_use_the_app_that_includes_them(
    make_app: Callable[..., JetJobs], queues: None, app: JetJobs
) -> None:
    router, other = Router(), make_app("other")

    @router.task
    def first() -> None: ...

    @other.task
    def second() -> None: ...

    with pytest.raises(DefinitionError, match="belongs to a router that no app includes"):
        first.enqueue_sync()
    app.include(router)
    app.include(other)
    before = connections()
    for task in (first, second):
        assert app.sync.get(task.enqueue_sync().id).task == task.name
    assert connections() == before + 1


# Results and jobs by id


async def test_results_and_failures_come_back(app: JetJobs) -> None:
    @app.task(retry=ONCE)
    def divide(a: int, b: int) -> float:
        return a / b

    def calls() -> None:
        handle = divide.enqueue_sync(1, 2)
        assert [handle.result_sync(timeout) for timeout in (10, "10s", timedelta(seconds=10))] == [0.5] * 3
        assert app.sync.result(handle.id, "10s") == 0.5
        assert app.sync.get(handle.id).state is JobState.SUCCEEDED
        broken = divide.enqueue_sync(1, 0)
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            broken.result_sync(10)
        answer = app.sync.replay(broken.id, by="me", reason="fixed")
        assert answer.outcome is ReplayOutcome.REPLAYED
        with pytest.raises(JobNotFound, match="no dead letter with id nothing"):
            app.sync.replay("nothing")

    async with provisioned_worker(app):
        await asyncio.to_thread(calls)
        # A handle of the open app waits in a thread, too.
        handle = await divide.enqueue(3, 2)
        assert await asyncio.to_thread(handle.result_sync, 10) == 1.5


def test_a_job_that_nobody_runs_is_cancelled(queues: None, app: JetJobs, work: Any) -> None:
    handle = app.sync.enqueue(work.bind(1))
    with pytest.raises(ResultNotReady):
        handle.result_sync(0.05)
    assert app.sync.cancel(handle.id, reason="no worker").outcome is CancelOutcome.CANCELLED
    with pytest.raises(JobCancelled, match="no worker"):
        handle.result_sync(5)
    with pytest.raises(JobNotFound, match="no job with id missing"):
        app.sync.get("missing")


@pytest.mark.parametrize("timeout", [-1, True, float("nan"), "soon", [1]])
def test_an_invalid_timeout_is_refused(queues: None, app: JetJobs, work: Any, timeout: Any) -> None:
    handle = work.enqueue_sync(1)
    for call in (handle.result_sync, lambda timeout: app.sync.cancel(handle.id, timeout=timeout)):
        with pytest.raises(DefinitionError, match=r"^invalid timeout"):
            call(timeout)
    assert app.sync.get(handle.id).state is JobState.QUEUED


# Plain tasks


async def test_plain_tasks_enqueue_in_their_threads_and_are_the_parents(app: JetJobs) -> None:
    @app.task
    async def leaf() -> tuple[str | None, str]:
        return current_job().parent_id, current_job().root_id

    @app.task
    def branch() -> tuple[str, list[Any]]:
        return current_job().id, leaf.enqueue_sync().result_sync(10)  # type: ignore[return-value]

    @app.task
    def trunk() -> list[Any]:
        return [current_job().id, *branch.enqueue_sync().result_sync(10)]

    async with provisioned_worker(app, slots=8):
        for handle in [await trunk.enqueue() for _ in range(2)]:
            root, middle, lineage = await handle.result(timedelta(seconds=15))
            assert (root, lineage) == (handle.id, [middle, root])


def test_the_connection_does_not_keep_the_context_of_the_call_that_opened_it(queues: None, work: Any) -> None:
    class Request: ...

    current: contextvars.ContextVar[Request] = contextvars.ContextVar("current")

    def view() -> weakref.ref[Request]:
        request = Request()
        current.set(request)
        work.enqueue_sync(1)
        return weakref.ref(request)

    jetjobs.sync._exit()  # the next call starts the background loop
    seen = contextvars.copy_context().run(view)
    gc.collect()
    assert seen() is None


# Connections


async def test_without_a_server_calls_fail_together_in_time_and_work_again_when_it_is_back(
    app: JetJobs, work: Any, server: EmbeddedServer, settings_for: Callable[..., Settings]
) -> None:
    async with provisioned(app):
        pass
    app.configure(settings_for(nats={"connect_timeout": "500ms"}))
    server.kill()
    started = time.monotonic()
    failed = await asyncio.to_thread(in_threads, 8, work.enqueue_sync)
    assert {type(error) for error in failed} == {BrokerUnavailable}
    assert time.monotonic() - started < 3
    server.start()
    assert await asyncio.to_thread(lambda: app.sync.get(work.enqueue_sync(1).id).state) is JobState.QUEUED
    # An open connection comes back by itself; the call waits for it, as the awaited one does.
    server.kill()
    waiting = asyncio.create_task(asyncio.to_thread(work.enqueue_sync, 2))
    server.start()
    assert not (await waiting).duplicate


async def test_a_connection_that_the_client_gave_up_is_replaced(queues: None, app: JetJobs, work: Any) -> None:
    await asyncio.to_thread(work.enqueue_sync, 1)
    background, before = jetjobs.sync._background, connections()
    assert background is not None
    (client,) = [client for client in background._clients if client is app.sync._opened.app.result().jetstream]  # type: ignore[union-attr]
    background.run(client.connection.close())
    await asyncio.to_thread(work.enqueue_sync, 2)
    await wait_until(lambda: connections() == before)


def test_a_process_that_was_forked_without_the_hooks_of_python_starts_its_own_loop(
    queues: None, work: Any
) -> None:
    work.enqueue_sync(1)
    of_parent = jetjobs.sync._background
    assert of_parent is not None
    of_parent.pid -= 1  # uWSGI forks in C: only the process id shows it
    try:
        work.enqueue_sync(2)
        assert jetjobs.sync._background is not of_parent
        assert of_parent in jetjobs.sync._of_parents
    finally:
        jetjobs.sync._of_parents.remove(of_parent)
        of_parent.end()


async def test_new_settings_close_the_connection_and_the_next_call_uses_them(
    queues: None, app: JetJobs, work: Any, settings_for: Callable[..., Settings], truth: Truth
) -> None:
    await asyncio.to_thread(work.enqueue_sync, 1)
    before = connections()
    with EmbeddedServer() as second:
        app.configure(settings_for(nats={"url": second.url}))
        await wait_until(lambda: connections() == before - 1)
        async with provisioned(app):
            pass
        await asyncio.to_thread(work.enqueue_sync, 2)
        other = await Truth.connect(second.url)
        assert len(await other.jobs()) == 1
        await other.close()
        app.configure(settings_for())
    await asyncio.to_thread(work.enqueue_sync, 3)
    assert len(await truth.jobs()) == 2


async def test_the_connection_is_closed_when_the_app_is_collected(settings_for: Callable[..., Settings]) -> None:
    def use() -> weakref.ref[JetJobs]:
        app = JetJobs("short", settings=settings_for())

        @app.task
        def nothing() -> None: ...

        with pytest.raises(JetJobsError):
            nothing.enqueue_sync()  # the queue does not exist
        assert connections() == before + 1
        return weakref.ref(app)

    before = connections()
    seen = await asyncio.to_thread(use)
    gc.collect()
    assert seen() is None
    await wait_until(lambda: connections() == before)
