"""Replays of many letters: interrupted at each step, repeated, and concurrent."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin import DeadLetterFilter, ReplayAnswer, ReplayOutcome
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import DefinitionError, QueueNotFound
from tests.conftest import MakeApp
from tests.support.letters import bury, letter_of
from tests.support.probe import Probe, eventually
from tests.support.proxy import Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

PUB_ACK = b'{"stream":"jobs-work-default"'


class Crash(BaseException):
    """Raised to simulate that the process is killed at this step."""


class Effects:
    """Counts the runs of each job of the tasks `work` and `quiet` (which stores no result)."""

    def __init__(self, app: JetJobs) -> None:
        self.runs: Counter[int] = Counter()
        self.broken = False

        @app.task(retry=RetryPolicy(max_attempts=1))
        async def work(n: int) -> None:
            self.run(n)

        @app.task(retry=RetryPolicy(max_attempts=1), store_result=False)
        async def quiet(n: int) -> None:
            self.run(n)

    def run(self, n: int) -> None:
        self.runs[n] += 1
        if self.broken:
            raise LookupError(f"no {n}")


def bodies(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


def die_at(monkeypatch: pytest.MonkeyPatch, place: Any, step: str) -> None:
    async def crash(*_: Any, **__: Any) -> None:
        raise Crash

    monkeypatch.setattr(place, step, crash)


async def replay_all(app: JetJobs, **options: Any) -> Counter[ReplayOutcome]:
    return Counter([answer.outcome async for answer in app.dead.replay_all(**options)])


async def shorten_memory(truth: Truth) -> None:
    """Let the server forget message ids at once: otherwise it deduplicates by them for two minutes."""
    config = (await truth.api("STREAM.INFO.jobs-work-default"))["config"]
    answer = await truth.api("STREAM.UPDATE.jobs-work-default", {**config, "duplicate_window": 100_000_000})
    assert "error" not in answer, answer
    await asyncio.sleep(0.3)


async def test_many_letters_are_replayed_and_each_runs_once(app: JetJobs, truth: Truth, probe: Probe) -> None:
    effects = Effects(app)
    async with provisioned(app):
        await bury(app, "work", bodies(50))
        await bury(app, "absent", [b"{}"] * 3)
        await bury(app, "work", [b'{"n":"x"}'] * 2)
        async with running(app.worker()):
            answers = [answer async for answer in app.dead.replay_all(by="ada", reason="fixed")]
            await probe.finished(50, "succeeded", timeout=30)
        assert Counter(answer.outcome for answer in answers) == {
            ReplayOutcome.REPLAYED: 50,
            ReplayOutcome.REFUSED: 5,
        }
        assert all(bool(answer.why) == (answer.outcome is ReplayOutcome.REFUSED) for answer in answers)
        assert effects.runs == Counter(range(50))
        assert len(await truth.dead()) == 5
        past = [record["replay"]["replays"][0] for record in (await truth.done()).values()]
        assert {(entry["by"], entry["why"]) for entry in past} == {("ada", "fixed")}
        assert {entry["died_of"] for entry in past} == {"exhausted: LookupError: no such thing"}
        assert await replay_all(app, wanted=DeadLetterFilter(task="work", error_type="Other")) == {}


@pytest.mark.parametrize("task", ["work", "quiet"])
async def test_a_replay_interrupted_before_letters_are_removed_is_repeated_after_the_jobs_have_run(
    app: JetJobs, truth: Truth, probe: Probe, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    effects = Effects(app)
    async with provisioned(app):
        await bury(app, task, bodies(40))
        with monkeypatch.context() as patched:
            die_at(patched, app.jetstream.dead, "remove")
            with pytest.raises(Crash):
                await replay_all(app)
        assert (len(await truth.dead()), len(await truth.jobs())) == (40, 16)
        async with running(app.worker()):
            await probe.finished(16, "succeeded")
            await eventually(lambda: _is_empty(truth))
            if task == "work":  # recognised by its record, the other by its message id
                await shorten_memory(truth)
            assert await replay_all(app) == {ReplayOutcome.ALREADY: 16, ReplayOutcome.REPLAYED: 24}
            await probe.finished(40, "succeeded")
        assert effects.runs == Counter(range(40))
        assert (await truth.dead(), await truth.jobs()) == ({}, [])


async def test_a_job_of_an_interrupted_replay_that_dies_again_has_a_new_letter_with_its_replays(
    app: JetJobs, truth: Truth, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = Effects(app)
    effects.broken = True
    async with provisioned(app):
        (job_id,) = await bury(app, "quiet", bodies(1))
        letter = await letter_of(app, job_id)
        with monkeypatch.context() as patched:
            die_at(patched, app.jetstream.dead, "remove")
            with pytest.raises(Crash):
                await app.dead.replay(letter, by="ada", reason="fixed?")
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            assert (await app.dead.replay(letter)).outcome is ReplayOutcome.GONE
            again = await letter_of(app, job_id)
            assert (again.sequence, again.text) != (letter.sequence, letter.text)
            assert [(entry["by"], entry["why"]) for entry in again.replays] == [("ada", "fixed?")]
            effects.broken = False
            assert (await app.dead.replay(again, by="eve")).outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded")
        record = await truth.js.stream_info("jobs-dead")
        assert record.state.messages == 0
        assert effects.runs == Counter([0, 0])


async def test_two_replays_of_the_same_letters_at_once(app: JetJobs, truth: Truth, probe: Probe) -> None:
    effects = Effects(app)
    async with provisioned(app):
        await bury(app, "quiet", bodies(200))
        async with running(app.worker()):
            first, second = await asyncio.gather(replay_all(app), replay_all(app))
            assert first[ReplayOutcome.REFUSED] + second[ReplayOutcome.REFUSED] == 0
            await probe.finished(200, "succeeded", timeout=30)
            await eventually(lambda: _is_empty(truth))
        assert effects.runs == Counter(range(200))
        assert await truth.dead() == {}
        assert await replay_all(app) == {}


async def test_a_replay_whose_answer_was_lost_is_stored_once(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth
) -> None:
    proxy = Proxy(server.url)
    lost = asyncio.Event()

    def lose_one(data: bytes) -> bytes:
        if PUB_ACK in data and not lost.is_set():
            lost.set()
            proxy.cut()
        return data if not lost.is_set() or PUB_ACK not in data else b""

    async with proxy.running():
        app = make_app(nats={"url": proxy.url})
        Effects(app)
        async with provisioned(app):
            ids = await bury(app, "work", bodies(10))
            proxy.to_client = lose_one
            replaying = asyncio.create_task(replay_all(app))
            await asyncio.wait_for(lost.wait(), 20)
            proxy.to_client = lambda data: data
            answers = await replaying
            assert answers[ReplayOutcome.ALREADY] + answers[ReplayOutcome.REPLAYED] == 10
        assert {subject.split(".")[-1] for subject in await truth.jobs()} == set(ids)
        assert await truth.dead() == {}


async def test_one_of_two_letters_of_one_key_is_replayed(app: JetJobs, truth: Truth) -> None:
    Effects(app)
    async with provisioned(app):
        key = "k" + "a" * 26
        await bury(app, "work", bodies(2), ids=[f"{key}-one", f"{key}-two"])
        await bury(app, "work", bodies(3))
        assert await replay_all(app) == {ReplayOutcome.REPLAYED: 4, ReplayOutcome.ALIVE: 1}
        assert len(await truth.jobs()) == 4
        assert len(await truth.dead()) == 1


async def test_jobs_that_die_again_during_a_replay_are_not_replayed_twice(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    effects = Effects(app)
    effects.broken = True
    async with provisioned(app):
        await bury(app, "work", bodies(100))
        async with running(app.worker()):
            assert await replay_all(app) == {ReplayOutcome.REPLAYED: 100}
            await probe.finished(100, "dead_lettered", timeout=30)
        assert effects.runs == Counter(range(100))
        assert [letter.replay_count async for letter in app.dead.list()] == [1] * 100


async def test_a_cancelled_replay_answers_for_letters_in_progress(app: JetJobs, truth: Truth) -> None:
    Effects(app)
    answers: list[ReplayAnswer] = []

    async def replay() -> None:
        async for answer in app.dead.replay_all():
            answers.append(answer)
            if len(answers) == 20:
                task.cancel()

    async with provisioned(app):
        await bury(app, "work", bodies(100))
        task = asyncio.create_task(replay())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 20 < len(answers) < 100
        assert len(await truth.jobs()) == len(answers)
        assert len(await truth.dead()) == 100 - len(answers)
        assert await replay_all(app) == {ReplayOutcome.REPLAYED: 100 - len(answers)}
        assert len(await truth.jobs()) == 100


async def test_abandoning_the_answers_leaves_no_letter_half_replayed(app: JetJobs, truth: Truth) -> None:
    Effects(app)
    async with provisioned(app):
        await bury(app, "work", bodies(40))
        listening = app.dead.replay_many(app.dead.list())
        async for _ in listening:
            break
        await listening.aclose()
        assert (len(await truth.jobs()), len(await truth.dead())) == (16, 24)


async def test_a_rate_limit_replays_one_letter_at_a_time(app: JetJobs) -> None:
    Effects(app)
    async with provisioned(app):
        await bury(app, "work", bodies(6))
        started = asyncio.get_running_loop().time()
        assert await replay_all(app, rate=20) == {ReplayOutcome.REPLAYED: 6}
        assert asyncio.get_running_loop().time() - started >= 0.25  # five pauses of 50 ms


@pytest.mark.parametrize(
    "options", [{"to_queue": "nowhere"}, {"to_queue": "no.queue"}, {"rate": -1.0}, {"rate": float("nan")}]
)
async def test_invalid_options_change_nothing(app: JetJobs, truth: Truth, options: dict[str, Any]) -> None:
    Effects(app)
    async with provisioned(app):
        (job_id,) = await bury(app, "work", bodies(1))
        with pytest.raises((QueueNotFound, DefinitionError)):
            await replay_all(app, **options)
        if "rate" not in options:
            assert (
                await app.dead.replay(await letter_of(app, job_id), **options)
            ).outcome is ReplayOutcome.REFUSED
        assert set(await truth.dead()) == {job_id}
        await truth.until_empty()


async def _is_empty(truth: Truth) -> bool:
    return await truth.jobs() == []
