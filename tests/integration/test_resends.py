"""A publish that was stored but whose confirmation came too late: the resend is recognised, the job moves once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import JetJobs, JobState, RetryPolicy, Snooze
from jetjobs.admin import MoveOutcome, ReplayOutcome
from jetjobs.dev_server import EmbeddedServer
from tests.conftest import MakeApp
from tests.support.job_states import HOUR, StateTasks
from tests.support.letters import bury, letter_of
from tests.support.probe import Probe, eventually, wait_until
from tests.support.proxy import Frames, LostAnswers, Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)
COUNT = 10
SHORT = timedelta(milliseconds=300)


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    made = Proxy(server.url)
    async with made.running():
        yield made


@pytest.fixture
def far(make_app: MakeApp, proxy: Proxy) -> JetJobs:
    """An app whose answers pass the proxy."""
    return make_app(nats={"url": proxy.url})


# Moves by a worker


@pytest.mark.parametrize("move", ["retried", "snoozed"])
@pytest.mark.parametrize("store_result", [True, False])
async def test_a_delayed_job_that_has_run_before_its_move_is_confirmed_runs_no_further_time(
    far: JetJobs, proxy: Proxy, truth: Truth, move: str, store_result: bool
) -> None:
    probe = Probe()
    far.observe(probe)
    runs: Counter[int] = Counter()

    @far.task(retry=RetryPolicy(base=SHORT, cap=SHORT, jitter=False), store_result=store_result)
    async def work(n: int) -> None:
        runs[n] += 1
        if runs[n] == 1:
            raise Snooze(SHORT) if move == "snoozed" else RuntimeError("once")

    async with provisioned(far):
        lost = LostAnswers(proxy, r"jobs\.work\.default\.retry\.\S+", COUNT)
        async with running(far.worker(slots=2 * COUNT)):
            for n in range(COUNT):
                await work.enqueue(n)
            await probe.finished(COUNT, move)
            await probe.finished(COUNT, "succeeded")
            await truth.until_empty()
        assert len(lost.subjects) == COUNT
        assert set(runs.values()) == {2}
        assert await truth.dead() == {}
        assert len(await truth.done()) == (COUNT if store_result else 0)


async def test_a_retry_that_still_waits_is_found_in_its_place(far: JetJobs, proxy: Proxy, truth: Truth) -> None:
    probe = Probe()
    far.observe(probe)

    @far.task(retry=RetryPolicy(base=HOUR, jitter=False))
    async def work(n: int) -> None:
        raise RuntimeError("not yet")

    async with provisioned(far):
        lost = LostAnswers(proxy, r"jobs\.work\.default\.retry\.\S+", COUNT)
        async with running(far.worker(slots=COUNT)):
            handles = [await work.enqueue(n) for n in range(COUNT)]
            await probe.finished(COUNT, "retried")
            await truth.until_idle()
        assert len(lost.subjects) == COUNT
        assert await truth.jobs() == sorted(f"jobs.work.default.retry.work.-.{h.id}" for h in handles)
        assert (await truth.dead(), await truth.done()) == ({}, {})


async def test_a_released_job_that_another_worker_has_finished_is_not_released_again(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    far = make_app(nats={"url": proxy.url}, worker={"stop_timeout": 0.1})
    near = make_app()
    probe = Probe()
    far.observe(probe)
    runs: Counter[str] = Counter()

    @far.task(name="work", store_result=False)
    async def work() -> None:
        runs["far"] += 1
        await asyncio.Event().wait()

    @near.task(name="work", store_result=False)
    async def ended() -> None:
        runs["near"] += 1

    async with provisioned(far), near:
        lost = LostAnswers(proxy, r"jobs\.work\.default\.returned\.\S+")
        async with running(far.worker()) as releasing, contextlib.AsyncExitStack() as helpers:
            await work.enqueue()
            await wait_until(lambda: runs["far"])
            releasing.stop()
            await eventually(lambda: truth.jobs(lane="returned"))
            await helpers.enter_async_context(running(near.worker()))
            await probe.finished(1, "released")
            await truth.until_empty()
        assert lost.subjects
        assert runs == {"far": 1, "near": 1}
        assert await truth.dead() == {}


# Moves by an operator


async def test_moves_of_a_waiting_job_are_answered_by_what_happened(
    far: JetJobs, proxy: Proxy, truth: Truth
) -> None:
    zoo = StateTasks(far)
    due = datetime.now(UTC).replace(microsecond=0) + 2 * HOUR
    async with provisioned(far):
        later, higher, now = [await zoo.fine.options(delay=HOUR).enqueue(n) for n in range(3)]
        queued = await zoo.fine.enqueue(3)
        lost = LostAnswers(proxy, r"jobs\.work\.default\.\w+\.fine\.\S+", 4)
        answers = await asyncio.gather(
            far.jobs.reschedule(later.id, due),
            far.jobs.set_priority(higher.id, "high"),
            far.jobs.run_now(now.id),
            far.jobs.set_priority(queued.id, "low"),
        )
        assert len(lost.subjects) == 4
        assert [answer.outcome for answer in answers] == [MoveOutcome.MOVED] * 4
        assert set(await truth.jobs()) == {
            f"jobs.work.default.later.fine.-.{later.id}",
            f"jobs.work.default.later.fine.-.{higher.id}",
            f"jobs.work.default.low.fine.-.{queued.id}",
            f"jobs.work.default.normal.fine.-.{now.id}",
        }
        assert (await later.status()).due_at == due
        assert (await higher.status()).priority == "high"


@pytest.mark.parametrize("store_result", [True, False])
async def test_run_now_is_answered_moved_when_the_job_has_ended_before_the_confirmation(
    far: JetJobs, make_app: MakeApp, proxy: Proxy, truth: Truth, store_result: bool
) -> None:
    near = make_app()
    runs: Counter[int] = Counter()

    async def count(n: int) -> None:
        runs[n] += 1

    far.task(name="work", store_result=store_result)(count)
    near.task(name="work", store_result=store_result)(count)
    async with provisioned(far), near, running(near.worker()):
        handles = [await far.tasks["work"].options(delay=HOUR).enqueue(n) for n in range(COUNT)]
        lost = LostAnswers(proxy, r"jobs\.work\.default\.normal\.\S+", COUNT)
        answers = await asyncio.gather(*(far.jobs.run_now(handle.id) for handle in handles))
        assert len(lost.subjects) == COUNT
        await truth.until_empty()
        assert {answer.outcome for answer in answers} == {MoveOutcome.MOVED}
        assert runs == dict.fromkeys(range(COUNT), 1)
        assert len(await truth.done()) == (COUNT if store_result else 0)


async def test_a_move_that_was_never_stored_is_answered_too_late_when_another_operator_was_first(
    far: JetJobs, make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    near = make_app()
    zoo, _ = StateTasks(far), StateTasks(near)
    async with provisioned(far), near:
        handle = await zoo.fine.options(delay=HOUR).enqueue(1)
        proxy.to_server = lost = Frames(r"jobs\.work\.default\.normal\.\S+", r".*?\r\n\r\n.*?", lambda: True)
        moving = asyncio.create_task(far.jobs.run_now(handle.id))
        await wait_until(lambda: lost.seen)
        assert (await near.jobs.run_now(handle.id)).outcome is MoveOutcome.MOVED
        before = (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["last_seq"]
        assert (await moving).outcome is MoveOutcome.TOO_LATE
        assert (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["last_seq"] == before
        assert await truth.jobs() == [f"jobs.work.default.normal.fine.-.{handle.id}"]


async def test_of_two_reschedules_at_once_only_the_stored_one_is_answered_moved(
    app: JetJobs, make_app: MakeApp, truth: Truth
) -> None:
    zoo = StateTasks(app)
    other = make_app()
    StateTasks(other)
    due = datetime.now(UTC).replace(microsecond=0)
    async with provisioned(app), other:
        for n in range(20):
            handle = await zoo.fine.options(delay=HOUR).enqueue(n)
            before = (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["last_seq"]
            answers = await asyncio.gather(
                app.jobs.reschedule(handle.id, due + 2 * HOUR), other.jobs.reschedule(handle.id, due + 3 * HOUR)
            )
            stored = (await truth.api("STREAM.INFO.jobs-work-default"))["state"]["last_seq"] - before
            assert [answer.outcome for answer in answers].count(MoveOutcome.MOVED) == stored


async def test_a_replay_is_answered_replayed_and_the_job_runs_once(
    far: JetJobs, make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    near = make_app()
    runs: Counter[int] = Counter()

    async def count(n: int) -> None:
        runs[n] += 1

    far.task(name="work", store_result=False)(count)
    near.task(name="work", store_result=False)(count)
    async with provisioned(far), near:
        ids = await bury(far, "work", [b'{"n": %d}' % n for n in range(COUNT)])
        letters = [await letter_of(far, job_id) for job_id in ids]
        lost = LostAnswers(proxy, r"jobs\.work\.default\.normal\.\S+", COUNT)
        async with running(near.worker()):
            answers = await asyncio.gather(*(far.dead.replay(letter) for letter in letters))
            await truth.until_empty()
        assert len(lost.subjects) == COUNT
        assert {answer.outcome for answer in answers} == {ReplayOutcome.REPLAYED}
        assert runs == dict.fromkeys(range(COUNT), 1)
        assert await truth.dead() == {}


# New jobs and dead letters


async def test_a_keyed_job_that_ended_before_its_confirmation_is_not_taken_for_the_next_job_of_the_key(
    far: JetJobs, make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    near = make_app()
    near_zoo, zoo = StateTasks(near), StateTasks(far)
    async with provisioned(far), near:
        lost = LostAnswers(proxy, r"jobs\.work\.default\.normal\.\S+")
        enqueuing = asyncio.create_task(zoo.fine.options(key="k").enqueue(1))
        await eventually(truth.jobs)
        async with running(near.worker()):
            await truth.until_empty()
        later = await near_zoo.fine.options(key="k", delay=HOUR).enqueue(2)
        handle = await enqueuing
        assert lost.subjects
        assert (handle.duplicate, later.duplicate) == (False, False)
        assert handle.id != later.id
        assert (await handle.status()).state is JobState.SUCCEEDED
        assert len(await truth.jobs()) == 1


async def test_a_dead_letter_is_stored_once(far: JetJobs, proxy: Proxy, truth: Truth) -> None:
    zoo, probe = StateTasks(far), Probe()
    far.observe(probe)
    async with provisioned(far):
        lost = LostAnswers(proxy, r"jobs\.dead\.\S+", COUNT)
        async with running(far.worker()):
            handles = [await zoo.broken.enqueue(n) for n in range(COUNT)]
            await probe.finished(COUNT, "dead_lettered")
            await truth.until_empty("other")
        assert len(lost.subjects) == COUNT
        assert set(await truth.dead()) == {handle.id for handle in handles}
        assert (await truth.api("STREAM.INFO.jobs-dead"))["state"]["last_seq"] == COUNT


async def test_an_imported_dead_letter_is_answered_restored(far: JetJobs, proxy: Proxy, truth: Truth) -> None:
    StateTasks(far)
    async with provisioned(far):
        lost = LostAnswers(proxy, r"jobs\.dead\.\S+")
        assert await far.jetstream.dead.restore("jobs.dead.default.fine.one", b"{}", {"Jetjobs-Run": "r"})
        assert lost.subjects
        assert list(await truth.dead()) == ["one"]
