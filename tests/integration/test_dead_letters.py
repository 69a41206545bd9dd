"""Dead letters: found, replayed once, deleted, carried over files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import JetJobs, JobFailed, JobState, RetryPolicy
from jetjobs.dead import Replayed
from jetjobs.model.letter import LetterFilter
from jetjobs.worker.worker import running
from tests.support.probe import Probe
from tests.support.server import Truth

SOON = timedelta(seconds=10)
ONCE = RetryPolicy(max_attempts=1)
broken = True


def with_task(app: JetJobs) -> None:
    global broken
    broken = True

    @app.task(retry=ONCE)
    async def work(n: int) -> int:
        if broken:
            raise LookupError(f"no {n}") if n % 2 else ValueError(f"bad {n}")
        return n

    @app.task(retry=ONCE, queue="other")
    async def elsewhere() -> None:
        raise RuntimeError("x")


async def kill(app: JetJobs, probe: Probe, count: int) -> list[str]:
    """Jobs of `work` that have died, by id."""
    report = await app.enqueue_many([app.tasks["work"].bind(n) for n in range(count)])
    async with running(app.worker()):
        await probe.finished(count, "dead_lettered")
    return [handle.id for handle in report.stored]


async def test_letters_are_listed_in_order_and_by_filter(app: JetJobs, truth: Truth, probe: Probe) -> None:
    with_task(app)
    async with app:
        await app.provision()
        ids = await kill(app, probe, 600)  # more than one page
        await app.tasks["elsewhere"].enqueue()
        async with running(app.worker()):
            await probe.finished(601, "dead_lettered")
        everything = [letter async for letter in app.dead.list()]
        assert {letter.id for letter in everything} >= set(ids)
        assert len(everything) == 601
        assert [x.sequence for x in everything] == sorted(x.sequence for x in everything)
        odd = [letter async for letter in app.dead.list(LetterFilter(error_type="LookupError"))]
        assert len(odd) == 300
        assert {letter.reason for letter in odd} == {"exhausted"}
        assert len([x async for x in app.dead.list(LetterFilter(queue="other"))]) == 1
        assert [x async for x in app.dead.list(LetterFilter(task="nothing"))] == []
        assert [x async for x in app.dead.list(LetterFilter(since=datetime.now(UTC) + timedelta(hours=1)))] == []
        one = await app.dead.get(ids[0])
        assert one is not None
        assert (one.task, one.body, one.text, one.attempts) == ("work", b'{"n":0}', "bad 0", 1)
        for nobody in ("nobody", "*", ">", "a.b", ""):
            assert await app.dead.get(nobody) is None


async def test_a_replayed_job_keeps_its_id_runs_once_and_says_where_it_came_from(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    global broken
    with_task(app)
    async with app:
        await app.provision()
        handle = await app.tasks["work"].options(key="k", priority="high", headers={"X-Tenant": "acme"}).enqueue(3)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            letter = await app.dead.get(handle.id)
            assert letter is not None
            broken = False
            answer = await app.dead.replay(letter, by="ada", reason="fixed")
            assert answer.outcome is Replayed.REPLAYED
            await probe.finished(1, "succeeded")
            again = await app.dead.replay(letter, by="ada", reason="fixed")
            assert again.outcome is Replayed.ALREADY
        assert await truth.dead() == {}
        record = (await truth.done())[handle.id]
        assert record["result"] == 3
        assert record["replay"]["number"] == 1
        (provenance,) = record["replay"]["replays"]
        assert (provenance["by"], provenance["why"]) == ("ada", "fixed")
        assert provenance["died_of"] == "exhausted: LookupError: no 3"
        assert await truth.jobs() == []


async def test_a_replay_that_dies_again_carries_its_history_and_can_be_replayed_again(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    with_task(app)
    async with app:
        await app.provision()
        (job_id,) = await kill(app, probe, 1)
        async with running(app.worker()):
            for number in (1, 2):
                letter = await app.dead.get(job_id)
                assert letter is not None
                assert len(letter.replays) == number - 1
                assert (await app.dead.replay(letter, by=f"person {number}")).outcome is Replayed.REPLAYED
                await probe.finished(number + 1, "dead_lettered")
        letter = await app.dead.get(job_id)
        assert letter is not None
        assert [entry["by"] for entry in letter.replays] == ["person 1", "person 2"]
        assert set(await truth.dead()) == {job_id}


async def test_a_replay_interrupted_between_its_steps_is_finished_by_the_next(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    with_task(app)
    async with app:
        await app.provision()
        (job_id,) = await kill(app, probe, 1)
        letter = await app.dead.get(job_id)
        assert letter is not None
        message = await truth.js.get_last_msg("jobs-dead", f"jobs.dead.default.work.{job_id}")
        assert (await app.dead.replay(letter)).outcome is Replayed.REPLAYED
        # As if we had died before the letter was deleted: it stands again, at its old place as far as we know.
        assert len(await truth.jobs()) == 1
        await truth.js.publish(message.subject or "", message.data or b"", headers=message.headers)
        second = await app.dead.replay(letter)
        assert second.outcome is Replayed.ALREADY
        assert len(await truth.jobs()) == 1


async def test_what_could_not_run_now_either_is_refused_and_nothing_changes(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    global broken
    with_task(app)
    async with app:
        await app.provision()
        await truth.nc.publish("jobs.work.default.normal.nobody", b"{}", headers={"Nats-Msg-Id": "unknown-1"})
        await truth.nc.publish(
            "jobs.work.default.normal.work", b'{"n": "x"}', headers={"Nats-Msg-Id": "invalid-1"}
        )
        async with running(app.worker()):
            await probe.finished(2, "dead_lettered")
            for job_id in ("unknown-1", "invalid-1"):
                letter = await app.dead.get(job_id)
                assert letter is not None
                answer = await app.dead.replay(letter)
                assert answer.outcome is Replayed.REFUSED
                assert answer.why
            assert set(await truth.dead()) == {"unknown-1", "invalid-1"}
            broken = False
            letter = await app.dead.get("invalid-1")
            assert letter is not None
            too_large = await app.dead.replay(letter, arguments={"n": 10**3999}, to_queue="nowhere")
            assert too_large.outcome is Replayed.REFUSED
            nowhere = await app.dead.replay(letter, arguments={"n": 8}, to_queue="nowhere")
            assert nowhere.outcome is Replayed.REFUSED
            mended = await app.dead.replay(letter, arguments={"n": 8})
            assert mended.outcome is Replayed.REPLAYED
            await probe.finished(1, "succeeded")
        assert (await truth.done())["invalid-1"]["result"] == 8


async def test_a_letter_whose_key_is_alive_is_not_replayed(app: JetJobs, truth: Truth, probe: Probe) -> None:
    with_task(app)
    async with app:
        await app.provision()
        keyed = app.tasks["work"].options(key="k")
        first = await keyed.enqueue(1)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        await keyed.enqueue(2)
        letter = await app.dead.get(first.id)
        assert letter is not None
        assert (await app.dead.replay(letter)).outcome is Replayed.ALIVE
        assert set(await truth.dead()) == {first.id}
        assert len(await truth.jobs()) == 1


async def test_letters_go_out_to_json_and_come_back_whole(app: JetJobs, truth: Truth, probe: Probe) -> None:
    with_task(app)
    async with app:
        await app.provision()
        ids = await kill(app, probe, 3)
        before = await truth.dead()
        exported = [json.loads(json.dumps(await app.dead.to_json(x))) async for x in app.dead.list()]
        async for letter in app.dead.list():
            assert await app.dead.delete(letter)
        assert await truth.dead() == {}
        assert [await app.dead.from_json(value) for value in exported] == [True] * 3
        assert [await app.dead.from_json(value) for value in exported] == [False] * 3
        after = await truth.dead()
        assert {k: (v["body"], v["headers"]["Jetjobs-Cause"]) for k, v in after.items()} == {
            k: (v["body"], v["headers"]["Jetjobs-Cause"]) for k, v in before.items()
        }
        assert set(after) == set(ids)
        for wrong in ({}, {"subject": "jobs.work.x", "headers": {}, "body": ""}, {**exported[0], "body": "%"}):
            with pytest.raises(ValueError, match="dead letter"):
                await app.dead.from_json(wrong)


async def test_a_handle_follows_its_job_through_death_and_replay(app: JetJobs, probe: Probe) -> None:
    global broken
    with_task(app)
    async with app:
        await app.provision()
        handle = await app.tasks["work"].enqueue(5)
        async with running(app.worker()):
            with pytest.raises(JobFailed):
                await handle.result(SOON)
            broken = False
            letter = await app.dead.get(handle.id)
            assert letter is not None
            await app.dead.replay(letter)
            await probe.finished(1, "succeeded")
            assert (await handle.status()).state is JobState.SUCCEEDED


async def test_a_body_at_the_servers_limit_dies_and_is_replayed_whole(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=10)))
    async def swallow(text: str) -> None:
        sizes.append(len(text))
        if len(sizes) <= 2:
            raise RuntimeError("not yet")

    async with app:
        await app.provision()
        filling = "x" * (truth.nc.max_payload - len(b'{"text":""}') - 100)
        await truth.nc.publish("jobs.work.default.normal.swallow", f'{{"text":"{filling}"}}'.encode())
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            (letter,) = [x async for x in app.dead.list()]
            exported = json.loads(json.dumps(await app.dead.to_json(letter)))
            assert await app.dead.delete(letter)
            assert await app.dead.from_json(exported)  # the body in the object store goes along
            (letter,) = [x async for x in app.dead.list()]
            assert (await app.dead.replay(letter)).outcome is Replayed.REPLAYED
            await probe.finished(1, "succeeded")
        assert sizes == [len(filling)] * 3
        assert (await truth.objects(), await truth.chunks()) == ({}, {})  # gone with its job
