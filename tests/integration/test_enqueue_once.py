"""A request that is repeated with the same identity: one job, however often it comes and wherever the job is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetjobs import JetJobs, JobState, Reject
from jetjobs.enqueue import Identity
from jetjobs.errors import JobConflict
from jetjobs.http.producer import Producer
from jetjobs.model.wire.ids import request_id, request_run
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

ID = request_id("billing", "order-17")


def identity(content: bytes = b"1", keep_s: int = 3600) -> Identity:
    return Identity(ID, request_run(content), keep_s)


async def test_the_job_carries_its_identity_and_the_name_of_the_caller(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        handle = await Producer(app, "billing").send_once(work.bind(1), identity())
        subject = f"jobs.work.default.normal.work.-.{ID}"
        assert await truth.jobs() == [subject]
        headers = (await truth.js.get_last_msg("jobs-work-default", subject)).headers
    assert headers is not None
    assert (headers["Jetjobs-Producer"], headers["Jetjobs-Keep"]) == ("billing", "3600")
    assert (headers["Nats-Msg-Id"], headers["Jetjobs-Run"]) == (f"{ID}.once", handle.run)
    assert not handle.duplicate


async def test_a_repeat_finds_the_job_while_it_waits_and_after_its_end(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        producer = Producer(app, "billing")
        first = await producer.send_once(work.bind(1), identity())
        waiting = await producer.send_once(work.bind(1), identity())
        assert waiting.duplicate
        assert len(await truth.jobs()) == 1
        async with running(app.worker()):
            assert await first.result("10s") == 1
            ended = await producer.send_once(work.bind(1), identity())
            assert (ended.duplicate, await ended.result("10s")) == (True, 1)
        assert await truth.jobs() == []
        assert len(await truth.done()) == 1


async def test_a_repeat_finds_a_dead_job_and_the_one_that_was_replayed_from_it(app: JetJobs, truth: Truth) -> None:
    fixed = False

    @app.task
    async def work(n: int) -> int:
        if not fixed:
            raise Reject("broken")
        return n

    async with provisioned(app), running(app.worker()):
        producer = Producer(app, "billing")
        await producer.send_once(work.bind(1), identity())
        await eventually(truth.dead)
        dead = await producer.send_once(work.bind(1), identity())
        assert (dead.duplicate, (await dead.status()).state) == (True, JobState.DEAD)
        fixed = True
        letter = await app.dead.get(ID)
        assert letter is not None
        await app.dead.replay(letter, reason="fixed")
        again = await producer.send_once(work.bind(1), identity())
        assert (again.duplicate, await again.result("10s")) == (True, 1)
        assert await truth.jobs() == []


async def test_other_content_under_the_same_id_is_refused_in_every_place(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    async with provisioned(app):
        producer = Producer(app, "billing")
        handle = await producer.send_once(work.bind(1), identity(b"1"))
        for _ in range(2):  # while it waits, and after its end
            with pytest.raises(JobConflict):
                await producer.send_once(work.bind(2), identity(b"2"))
            with pytest.raises(JobConflict):
                await producer.send_once(send.bind(), identity(b"3"))
            async with running(app.worker()):
                await handle.result("10s")
        assert await truth.jobs("mail") == []
        assert len(await truth.done()) == 1


async def test_concurrent_repeats_of_a_short_job_run_it_once(app: JetJobs) -> None:
    runs: list[int] = []

    @app.task
    async def work(n: int) -> int:
        runs.append(n)
        return n

    async with provisioned(app), running(app.worker()):
        for n in range(20):
            same = Identity(request_id("billing", f"order-{n}"), request_run(b"x"), 3600)
            producer = Producer(app, "billing")
            handles = await asyncio.gather(*(producer.send_once(work.bind(n), same) for _ in range(8)))
            assert {await handle.result("10s") for handle in handles} == {n}
        # A short job may have ended before the last of its repeats was published.
        assert sorted(runs) == list(range(20))


async def test_concurrent_requests_with_other_content_run_one_of_them(app: JetJobs) -> None:
    runs: list[tuple[int, int]] = []

    @app.task
    async def work(n: int, line: int) -> None:
        runs.append((n, line))

    async with provisioned(app), running(app.worker()):
        producer = Producer(app, "billing")
        for n in range(20):
            job_id = request_id("billing", f"order-{n}")

            async def send(line: int, n: int = n, job_id: str = job_id) -> bool:
                content = Identity(job_id, request_run(str(line).encode()), 3600)
                try:
                    return not (await producer.send_once(work.bind(n, line), content)).duplicate
                except JobConflict:
                    return False

            assert sum(await asyncio.gather(*(send(line) for line in range(4)))) == 1
            await (await app.job(job_id)).result("10s")
        assert sorted(n for n, _ in runs) == list(range(20))


async def test_the_record_of_a_cancelled_job_lives_as_long_as_the_mark_that_would_cancel_it_again(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        producer = Producer(app, "billing")
        await producer.send_once(work.bind(1), identity())
        await app.jobs.cancel(ID)
        again = await producer.send_once(work.bind(1), identity())
        assert (again.duplicate, (await again.status()).state) == (True, JobState.CANCELLED)
        record = await truth.js.get_last_msg("KV_jobs-done-default", f"$KV.jobs-done-default.work.{ID}")
    assert record.headers is not None
    assert record.headers["Nats-TTL"] in ("86400", "86400s")
