"""Deliveries that ended without a word: counted, suspected, buried; and what the server itself gave up."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from nats.aio.msg import Msg

from jetjobs import JetJobs, JobState
from jetjobs.model.events import JobFinished, JobLost
from jetjobs.worker.lost import LostJobs
from jetjobs.worker.stranded import StrandedSweep
from jetjobs.worker.worker import running
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.server import Truth

SOON = timedelta(seconds=20)
STREAM = "jobs-work-default"


async def deliver(truth: Truth, lane: str = "normal", times: int = 1) -> None:
    """Take the next message of a lane and never say a word about it, so often; then wait for its lease to end."""
    for _ in range(times):
        message = await pull(truth, lane)
        assert message.reply.startswith("$JS.ACK."), message.headers


async def pull(truth: Truth, lane: str = "normal", expires_s: float = 20.0) -> Msg:
    inbox = truth.nc.new_inbox()
    replies = await truth.nc.subscribe(inbox)
    request = json.dumps({"batch": 1, "expires": int(expires_s * 1e9)}).encode()
    await truth.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{lane}", request, reply=inbox)
    message = await replies.next_msg(timeout=expires_s + 5)
    await replies.unsubscribe()
    return message


def watched(app: JetJobs) -> Probe:
    probe = Probe()
    app.observe(probe)
    return probe


def short(make_app: MakeApp, **queues: Any) -> JetJobs:
    return make_app(queues={"lease": "1s", **queues})


async def test_a_job_in_hand_at_two_crashes_runs_once_more_alone(make_app: MakeApp, truth: Truth) -> None:
    app = short(make_app)
    probe = watched(app)
    seen: list[int] = []

    @app.task
    async def work() -> str:
        seen.append(1)
        return "innocent"

    async with app:
        await app.provision()
        handle = await work.enqueue()
        await deliver(truth, times=2)
        async with running(app.worker()):
            assert await handle.result(SOON) == "innocent"
        assert [e.outcome for e in probe.of(JobFinished)] == ["suspected", "succeeded"]
        assert seen == [1]
        await truth.until_empty()
        assert await truth.dead() == {}


async def test_a_suspect_that_crashed_alone_is_dead_and_not_run_again(make_app: MakeApp, truth: Truth) -> None:
    app = short(make_app)
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)
        if len(ran) == 1:
            await asyncio.sleep(60)

    async with app:
        await app.provision()
        handle = await work.enqueue(1)
        await deliver(truth, times=2)
        worker = app.worker()
        life = asyncio.create_task(worker.run())

        async def begun() -> bool:
            return bool(ran)

        await eventually(begun)  # alone, and noted
        # The end of a process, as far as the server can tell: not a word more.
        worker._leases.lease_s = 0.0
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        async with running(app.worker()):

            async def dead() -> bool:
                return handle.id in await truth.dead()

            await eventually(dead, 30)
        letter = (await truth.dead())[handle.id]
        assert letter["reason"] == "crashed"
        assert "3 deliveries" in letter["text"]
        assert ran == [1]
        await truth.until_empty()


async def test_a_suspect_is_not_charged_for_a_crash_before_it_ran(make_app: MakeApp, truth: Truth) -> None:
    app = short(make_app)

    @app.task
    async def work() -> str:
        return "innocent"

    async with app:
        await app.provision()
        handle = await work.enqueue()
        await deliver(truth, times=2)
        async with running(app.worker(slots=1)) as worker:
            worker._dispatcher._place = worker._release  # type: ignore[method-assign]

            async def moved() -> bool:
                return await truth.jobs(lane="normal") == []

            await eventually(moved)
        assert len(await truth.jobs(lane="back")) == 1  # released, and its crashes were not forgotten
        async with running(app.worker()):
            assert await handle.result(SOON) == "innocent"
        assert await truth.dead() == {}


async def test_nothing_new_starts_beside_a_suspect(make_app: MakeApp, truth: Truth) -> None:
    app = short(make_app)
    now: list[str] = []
    beside: list[list[str]] = []
    gate = asyncio.Event()

    @app.task
    async def suspect() -> None:
        await asyncio.wait_for(gate.wait(), 10)
        beside.append(list(now))

    @app.task
    async def other(n: int) -> None:
        now.append(str(n))
        await asyncio.sleep(0.01)
        now.remove(str(n))

    async with app:
        await app.provision()
        handle = await suspect.enqueue()
        await deliver(truth, times=2)
        async with running(app.worker(slots=8)) as worker:

            async def alone() -> bool:
                return worker._dispatcher._suspects.exclusive and worker.slots.busy == 1

            await eventually(alone)
            report = await app.enqueue_many([other.bind(n) for n in range(20)])
            given_back = await eventually(lambda: truth.jobs(lane="back"))
            assert given_back  # what reached the worker all the same was given back at once
            assert worker.slots.busy == 1
            gate.set()
            await handle.result(SOON)
            for one in report.stored:
                await one.result(SOON)
        assert beside == [[]]


async def test_what_the_server_gives_up_reaches_the_dead_letters_by_lane_lost(
    make_app: MakeApp, truth: Truth
) -> None:
    app = short(make_app, max_crashes=1)
    probe = watched(app)

    @app.task
    async def work(n: int) -> None: ...

    async with app:
        await app.provision()
        most = (await truth.consumer())["config"]["max_deliver"]
        handle = await work.enqueue(7)
        await deliver(truth, times=most)
        async with running(app.worker()):
            await probe.wait(JobLost, timeout=30)

            async def gone() -> bool:
                return await truth.jobs() == []

            await eventually(gone)
        letter = (await truth.dead())[handle.id]
        assert (letter["reason"], letter["body"]) == ("crashed", b'{"n":7}')
        assert f"{most} deliveries" in letter["text"]
        assert (await handle.status()).state is JobState.DEAD

        async def forgotten() -> bool:
            lane = await truth.consumer("lost")
            return bool(lane["num_pending"] == lane["num_ack_pending"] == 0)

        await eventually(forgotten)
        info = await truth.consumer()
        assert (info["num_redelivered"], info["num_ack_pending"], info["num_pending"]) == (0, 0, 0)
        assert (await app.dead.replay(await _letter(app, handle.id))).outcome == "replayed"


async def _letter(app: JetJobs, job_id: str) -> Any:
    letter = await app.dead.get(job_id)
    assert letter is not None
    return letter


async def test_an_advisory_of_a_message_that_is_gone_or_none_at_all_is_dropped(
    make_app: MakeApp, truth: Truth
) -> None:
    app = short(make_app)

    @app.task
    async def work() -> str:
        return "fine"

    async with app:
        await app.provision()
        first = await work.enqueue()
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.normal"
        for body in (
            b"no json",
            b"[]",
            b'{"consumer": "normal", "stream_seq": 999999}',
            b'{"consumer": "x.>", "stream_seq": 1}',
            b'{"consumer": "normal", "stream_seq": "1"}',
            b'{"consumer": "normal", "stream_seq": true, "deliveries": 99}',
            b'{"consumer": "normal", "stream_seq": 0, "deliveries": 99}',
            b'{"consumer": "normal", "stream_seq": -1, "deliveries": 99}',
            b'{"consumer": "normal", "stream_seq": 100000000000000000000000000, "deliveries": 99}',
            b'{"consumer": "normal", "stream_seq": 1, "deliveries": 99}',  # the pin
            b'{"consumer": "normal", "stream_seq": 2, "deliveries": 1}',  # a job that is delivered still
        ):
            await truth.js.publish(subject, body)
        async with running(app.worker()):

            async def read() -> bool:
                lane = await truth.consumer("lost")
                return bool(lane["num_pending"] == lane["num_ack_pending"] == 0)

            await eventually(read, 30)
            assert await first.result(SOON) == "fine"
            assert await (await work.enqueue()).result(SOON) == "fine"
        assert await truth.dead() == {}
        assert len(await truth.subjects(STREAM, "jobs.work.default.tick._pin")) == 1


async def test_the_sweep_finds_what_even_the_advisory_has_missed_and_nothing_else(
    make_app: MakeApp, truth: Truth
) -> None:
    app = short(make_app, max_crashes=1)

    @app.task
    async def work(n: int) -> None: ...

    @app.task
    async def long() -> str:
        await asyncio.sleep(3)
        return "ran through"

    async with app:
        await app.provision()
        config = (await truth.api(f"STREAM.INFO.{STREAM}"))["config"]
        deaf = {**config, "subjects": [s for s in config["subjects"] if not s.startswith("$JS.")]}
        await truth.api(f"CONSUMER.DELETE.{STREAM}.lost")
        assert "error" not in await truth.api(f"STREAM.UPDATE.{STREAM}", deaf)  # nobody hears the advisory
        most = (await truth.consumer())["config"]["max_deliver"]
        stranded = await work.enqueue(1)
        await deliver(truth, times=most)

        async def given_up() -> bool:
            await pull(truth, expires_s=0.5)  # the server gives it up when somebody asks for more
            return bool((await truth.consumer())["num_ack_pending"] == 0)

        await eventually(given_up)
        running_job = await long.enqueue()
        lost = LostJobs(app.jetstream, "tester", lambda event: None)
        sweep = StrandedSweep(app.jetstream, lost, 0.2)
        await app.provision()
        async with running(app.worker()):

            async def shown() -> bool:
                return (await running_job.status()).state is JobState.RUNNING

            await eventually(shown)

            async def buried() -> bool:
                return await sweep.sweep("default") == 1

            await eventually(buried)
            assert await running_job.result(SOON) == "ran through"
        assert set(await truth.dead()) == {stranded.id}
        await truth.until_empty()
        assert await sweep.sweep("default") == 0
