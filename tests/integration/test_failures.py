"""What a failed attempt shows, and mistakes in a task that would otherwise go unnoticed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, JobState, RetryPolicy
from jetjobs.model.views.job_query import JobQuery
from jetjobs.testing import run_inline
from jetjobs.worker.unawaited import watch_coroutines
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)
LATER = RetryPolicy(max_attempts=2, base=timedelta(hours=1), jitter=False)
ONCE = RetryPolicy(max_attempts=1)
HERE = Path(__file__).resolve().relative_to(Path.cwd()).as_posix()


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"  {HERE}:{function.__code__.co_firstlineno + offset} in {function.__qualname__}"


def look_up(order: int) -> None:
    raise LookupError(f"order {order}")


# Tracebacks


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_failed_attempt_shows_its_traceback_while_the_job_is_retried_and_when_it_is_dead(
    plain: bool, app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=LATER)
    async def charge(order: int) -> None:
        look_up(order)

    @app.task(retry=LATER)
    def charge_plain(order: int) -> None:
        look_up(order)

    task = charge_plain if plain else charge
    expected = [
        "Traceback (most recent call last):",
        line_of(task.function, 2),
        "    look_up(order)",
        line_of(look_up, 1),
        '    raise LookupError(f"order {order}")',
        "LookupError: order 7",
    ]
    async with provisioned(app):
        handle = await task.enqueue(7)
        async with running(app.worker()):
            retried = (await probe.finished(1, "retried"))[0]
            assert retried.error is not None
            assert retried.error.traceback.split("\n") == expected
            status = await handle.status()
            assert status.state is JobState.RETRYING
            assert status.traceback is not None
            assert status.traceback.split("\n") == expected
            assert (await app.jobs.get(handle.id)).as_dict()["traceback"] == status.traceback
            subject = (await truth.jobs(lane="retry"))[0]
            stored = await truth.nc.jetstream().get_last_msg("jobs-work-default", subject)
            assert stored.headers is not None
            assert json.loads(stored.headers["Jetjobs-Traceback"]) == status.traceback
            listed = (await app.jobs.page(JobQuery())).items
            assert [(one.status.id, one.status.traceback) for one in listed] == [(handle.id, None)]
            await app.jobs.run_now(handle.id)
            await probe.finished(1, "dead_lettered")
        dead = await handle.status()
        assert (dead.state, dead.traceback) == (JobState.DEAD, status.traceback)
        letter = (await truth.dead())[handle.id]
        assert "Jetjobs-Traceback" not in letter["headers"], "the cause has it"
        assert json.loads(letter["headers"]["Jetjobs-Cause"])["traceback"] == status.traceback
        await truth.until_empty()


async def test_a_success_leaves_nothing_of_an_earlier_failure(app: JetJobs, truth: Truth, probe: Probe) -> None:
    failed = False

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=10)))
    async def flaky() -> int:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("once")
        return 1

    async with provisioned(app):
        handle = await flaky.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == 1
        assert (await handle.status()).traceback is None
        assert "traceback" not in (await truth.done())[handle.id]


async def test_a_timeout_shows_where_the_task_was(app: JetJobs, probe: Probe) -> None:
    @app.task(timeout=timedelta(milliseconds=100), retry=LATER)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with provisioned(app):
        await slow.enqueue()
        async with running(app.worker()):
            error = (await probe.finished(1, "retried"))[0].error
    assert error is not None
    assert error.type == "jetjobs.errors.JobTimeout"
    assert error.traceback.split("\n")[1:3] == [line_of(slow.function, 2), "    await asyncio.sleep(60)"]


async def test_a_huge_failure_is_retried_and_shown_in_part(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(retry=LATER)
    async def huge() -> None:
        errors = [ValueError("\N{SNOWMAN}" * 100_000) for _ in range(20)]
        raise ExceptionGroup("many", errors)

    async with provisioned(app):
        handle = await huge.options(headers={"X-Large": "x" * 23_000}).enqueue()
        async with running(app.worker()):
            await probe.finished(1, "retried")
            status = await handle.status()
            assert status.traceback is not None
            assert status.traceback.endswith("  ... 15 more")
            assert len(status.traceback) <= 4_000
            await app.jobs.run_now(handle.id)
            await probe.finished(1, "dead_lettered")
        assert (await truth.dead())[handle.id]["headers"]["X-Large"] == "x" * 23_000


# Coroutines that were not awaited


async def nothing() -> None: ...


async def test_a_forgotten_await_fails_the_attempt_and_names_the_line(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def mail(to: str) -> None: ...

    @app.task(retry=LATER)
    async def forgets() -> str:
        mail.enqueue("ada")  # type: ignore[unused-coroutine]
        await asyncio.sleep(0)
        return "done"

    @app.task(retry=LATER)
    def forgets_in_a_thread() -> str:
        mail.enqueue("ada")  # type: ignore[unused-coroutine]
        return "done"

    @app.task(retry=LATER)
    async def forgets_a_variable() -> str:
        unused = nothing()  # noqa: F841
        return "done"

    async with provisioned(app):
        with warnings.catch_warnings(record=True) as warned:
            for task in (forgets, forgets_in_a_thread, forgets_a_variable):
                await task.enqueue()
            async with running(app.worker()):
                retried = {one.task: one.error for one in await probe.finished(3, "retried")}
    for task in (forgets, forgets_in_a_thread):
        error = retried[task.name]
        assert error is not None
        text = "coroutine 'Task.enqueue' was never awaited: did you forget await?"
        assert (error.type, error.text) == ("jetjobs.errors.AttemptError", text)
        assert error.traceback.split("\n")[1] == line_of(task.function, 2)
    assert retried["forgets_a_variable"] is not None
    assert retried["forgets_a_variable"].text.startswith("coroutine 'nothing' was never awaited")
    assert not [one for one in warned if "never awaited" in str(one.message)]
    assert not [subject for subject in await truth.jobs() if ".mail." in subject]
    assert await truth.done() == {}


@pytest.mark.parametrize("store_result", [True, False])
async def test_a_task_that_returns_a_coroutine_fails_the_attempt(
    store_result: bool, app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=LATER, store_result=store_result)
    async def forgets() -> Any:
        return nothing()

    @app.task(retry=LATER, store_result=store_result)
    async def returns_a_future() -> Any:
        return asyncio.ensure_future(nothing())

    async with provisioned(app):
        with warnings.catch_warnings(record=True) as warned:
            await forgets.enqueue()
            await returns_a_future.enqueue()
            async with running(app.worker()):
                retried = {one.task: one.error for one in await probe.finished(2, "retried")}
    assert {name: error.text for name, error in retried.items() if error is not None} == {
        "forgets": "task 'forgets' returned a coroutine: did you forget await?",
        "returns_a_future": "task 'returns_a_future' returned a Task: did you forget await?",
    }
    assert not [one for one in warned if "never awaited" in str(one.message)]
    assert (await truth.done(), await truth.dead()) == ({}, {})


async def test_an_error_that_a_forgotten_await_caused_says_so(app: JetJobs, probe: Probe) -> None:
    async def load() -> dict[str, int]:
        return {"n": 1}

    @app.task(retry=LATER)
    async def forgets() -> int:
        return load()["n"]  # type: ignore[index, no-any-return]

    async with provisioned(app):
        await forgets.enqueue()
        async with running(app.worker()):
            error = (await probe.finished(1, "retried"))[0].error
    assert error is not None
    assert error.type == "TypeError"
    assert error.traceback.split("\n")[-1].startswith(f"coroutine {load.__qualname__!r} was never awaited")


async def test_a_coroutine_that_the_garbage_collector_finds_fails_no_other_job(app: JetJobs, probe: Probe) -> None:
    """It may have been made by any job, so only Python's own warning reports it."""

    @app.task
    async def makes_a_cycle() -> None:
        cycle: list[Any] = [nothing()]
        cycle.append(cycle)

    @app.task
    async def innocent() -> None:
        gc.collect()

    gc.disable()
    try:
        async with provisioned(app):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                async with running(app.worker()):
                    await (await makes_a_cycle.enqueue()).result(SOON)
                    await (await innocent.enqueue()).result(SOON)
    finally:
        gc.enable()
    assert [str(one.message) for one in warned if "'nothing'" in str(one.message)] == [
        "coroutine 'nothing' was never awaited"
    ]


async def test_outside_of_a_job_python_warns_as_usual() -> None:
    watch_coroutines()
    with pytest.warns(RuntimeWarning, match="coroutine 'nothing' was never awaited"):
        nothing()  # type: ignore[unused-coroutine]


async def test_a_test_that_runs_the_task_inline_notices_it_too(app: JetJobs) -> None:
    @app.task
    async def forgets() -> None:
        nothing()  # type: ignore[unused-coroutine]

    with pytest.raises(Exception, match="coroutine 'nothing' was never awaited"):
        await run_inline(forgets)


# Results that do not fit


async def test_a_result_that_does_not_fit_its_annotation_is_stored_and_logged_once(
    app: JetJobs, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    async with provisioned(app):
        async with running(app.worker()):
            handles = [await count.enqueue() for _ in range(3)]
            await eventually(lambda: truth.done(), where=lambda done: len(done) == 3)
        assert {record["result"] for record in (await truth.done()).values()} == {"many"}
        assert set(await truth.done()) == {handle.id for handle in handles}
    warned = [vars(one) for one in caplog.records if vars(one).get("event") == "job.result_mismatch"]
    assert [(one["task"], one["levelno"]) for one in warned] == [("count", logging.WARNING)]
    assert warned[0]["error"].startswith("Input should be a valid integer")
    assert "many" not in warned[0]["error"]
