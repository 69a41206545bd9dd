"""Cancel a job while the link between operator and worker is cut: the answer is correct."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from jetjobs import JetJobs, JobState, Snooze
from jetjobs.admin import CancelOutcome
from jetjobs.dev_server import EmbeddedServer
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually, wait_until
from tests.support.proxy import Frames, Proxy, Unheard
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)
INFO = r"\$JS\.API\.CONSUMER\.INFO\.jobs-work-default\.normal"
UNHEARD = r"(?:\$KV\.jobs-cancelled|jobs\.control)\.\S+"


@pytest.fixture
async def cut(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    """Passes everything but cancel marks and control requests to the client: the routes to the operator's server
    are cut, those to the servers of the streams are not."""
    made = Proxy(server.url)
    made.to_client = Unheard(UNHEARD)
    async with made.running():
        yield made


@pytest.fixture
async def operators(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    made = Proxy(server.url)
    async with made.running():
        yield made


class Tasks:
    """A task that runs until it is released."""

    def __init__(self, app: JetJobs) -> None:
        self.runs: Counter[int] = Counter()
        self.ends: dict[int, asyncio.Event] = {n: asyncio.Event() for n in range(10)}

        @app.task
        async def work(n: int) -> int:
            self.runs[n] += 1
            await self.ends[n].wait()
            return n

        self.work = work


class Race:
    """Holds back the operator at a moment of the cancel until the worker has taken the job."""

    def __init__(self, operators: Proxy, tasks: Tasks, answered: bytes, after: str) -> None:
        """At the first answer with `answered` after a request that `after` matches."""
        operators.to_server = asked = Frames(after, ".*?", lambda: False)
        held = False

        def hold_after_the_answer(data: bytes) -> bytes:
            nonlocal held
            if asked.seen and not held and answered in data:
                held = True
                operators.hold()
                tasks.ends[1].set()  # the only slot of the worker is free
            return data

        operators.to_client = hold_after_the_answer


async def test_a_job_that_a_silent_worker_takes_during_the_removal_is_unconfirmed_and_the_worker_records_it(
    make_app: MakeApp, cut: Proxy, operators: Proxy, truth: Truth
) -> None:
    app, operator = make_app(nats={"url": cut.url}), make_app(nats={"url": operators.url})
    tasks = Tasks(app)
    async with provisioned(app), operator, running(app.worker(slots=1)):
        first, second = await tasks.work.enqueue(1), await tasks.work.enqueue(2)
        await wait_until(lambda: tasks.runs[1])
        Race(operators, tasks, b"consumer_info_response", INFO)
        cancelling = asyncio.create_task(operator.jobs.cancel(second.id, timeout=timedelta(0)))
        await wait_until(lambda: tasks.runs[2])
        operators.resume()
        answer = await cancelling
        assert answer.outcome is CancelOutcome.UNCONFIRMED
        assert "may have taken it" in answer.detail
        assert second.id not in await truth.done()
        tasks.ends[2].set()
        assert [await handle.result(SOON) for handle in (first, second)] == [1, 2]
        assert (await second.status()).state is JobState.SUCCEEDED
        assert (await operator.jobs.cancel(second.id)).outcome is CancelOutcome.ENDED
        await truth.until_empty()


async def test_a_worker_that_missed_the_mark_but_got_the_request_does_not_start_the_job(
    make_app: MakeApp, cut: Proxy, operators: Proxy, truth: Truth
) -> None:
    cut.to_client = lost = Unheard(r"\$KV\.jobs-cancelled\.\S+")
    app, operator = make_app(nats={"url": cut.url}), make_app(nats={"url": operators.url})
    tasks = Tasks(app)
    probe = Probe()
    app.observe(probe)
    async with provisioned(app), operator, running(app.worker(slots=1)):
        first, second = await tasks.work.enqueue(1), await tasks.work.enqueue(2)
        await wait_until(lambda: tasks.runs[1])
        Race(operators, tasks, b'"holds": false', r"jobs\.control\.workers")
        cancelling = asyncio.create_task(operator.jobs.cancel(second.id, by="ada", reason="a test"))
        tasks.ends[2].set()
        await probe.finished(2)
        operators.resume()
        assert (await cancelling).outcome is CancelOutcome.CANCELLED
        assert lost.dropped
        assert await first.result(SOON) == 1
        record = (await truth.done())[second.id]
        assert (record["state"], record["by"], record["reason"]) == ("cancelled", "ada", "a test")
        assert tasks.runs == {1: 1}
        await truth.until_empty()


async def test_a_job_that_no_worker_has_taken_is_cancelled_although_one_is_silent(
    make_app: MakeApp, cut: Proxy, truth: Truth
) -> None:
    app, operator = make_app(nats={"url": cut.url}), make_app()
    tasks = Tasks(app)
    async with provisioned(app), operator, running(app.worker(slots=1)):
        first, second = await tasks.work.enqueue(1), await tasks.work.enqueue(2)
        await wait_until(lambda: tasks.runs[1])
        assert (await operator.jobs.cancel(second.id)).outcome is CancelOutcome.CANCELLED
        assert (await truth.done())[second.id]["state"] == "cancelled"
        running_one = await operator.jobs.cancel(first.id, timeout=timedelta(0))
        assert running_one.outcome is CancelOutcome.UNCONFIRMED
        tasks.ends[1].set()
        await truth.until_empty()
        await eventually(truth.done, where=lambda done: len(done) == 2)
        assert (await truth.done())[first.id]["state"] == "succeeded"
        assert tasks.runs == {1: 1}


async def test_a_job_in_the_middle_of_a_move_is_not_removed_and_its_worker_records_the_cancel(
    make_app: MakeApp, operators: Proxy, truth: Truth
) -> None:
    link = operators
    app, operator = make_app(nats={"url": link.url}), make_app()

    @app.task
    async def work() -> None:
        raise Snooze(timedelta(seconds=1))

    def hold() -> bool:
        link.hold()  # the move is stored, and its confirmation does not arrive
        return False

    link.to_server = moved = Frames(r"jobs\.work\.default\.retry\.\S+", ".*?", hold)
    async with provisioned(app), operator, running(app.worker(slots=1)):
        handle = await work.enqueue()
        await wait_until(lambda: moved.seen)
        await eventually(lambda: truth.jobs(lane="retry"), where=lambda found: len(found) == 1)
        answer = await operator.jobs.cancel(handle.id, timeout=timedelta(0))
        assert answer.outcome is CancelOutcome.UNCONFIRMED
        link.resume()
        await eventually(truth.done, where=lambda done: handle.id in done)
        assert (await truth.done())[handle.id]["state"] == "cancelled"
        await truth.until_empty()
