"""Deliveries that end in a crash: counted, quarantined, dead-lettered; and jobs the server stopped delivering."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from jetjobs import JetJobs, JobState, current_job
from jetjobs.model.events import JobFinished, JobStarted
from jetjobs.worker.leader.duty_runner import DutyResult
from jetjobs.worker.leader.maintenance import duties
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from jetjobs.worker.worker import Worker
from tests.conftest import MakeApp
from tests.support.letters import letter_of
from tests.support.probe import Probe, eventually
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)
STREAM = "jobs-work-default"


async def deliver(truth: Truth, lane: str = "normal", times: int = 1) -> None:
    """Pull the next message of a lane `times` times, leave it unacknowledged, and wait for its lease to end."""
    for _ in range(times):
        message = await pull(truth, lane)
        assert message.reply.startswith("$JS.ACK."), message.headers


async def deliver_to_the_end(truth: Truth) -> int:
    """Pull a message as often as the server delivers it, and return how often that is."""
    most = int((await truth.consumer())["config"]["max_deliver"])
    await deliver(truth, times=most)
    return most


async def pull(truth: Truth, lane: str = "normal", expires_s: float = 20.0) -> Msg:
    inbox = truth.nc.new_inbox()
    replies = await truth.nc.subscribe(inbox)
    request = json.dumps({"batch": 1, "expires": int(expires_s * 1e9)}).encode()
    await truth.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{lane}", request, reply=inbox)
    message = await replies.next_msg(timeout=expires_s + 5)
    await replies.unsubscribe()
    return message


@pytest.fixture
def app(make_app: MakeApp, request: pytest.FixtureRequest) -> JetJobs:
    """An app with short leases. A test can parametrize `app` with the number of allowed crashes."""
    return make_app(queues={"lease": "1s", "max_crashes": getattr(request, "param", 3)})


one_crash = pytest.mark.parametrize("app", [1], indirect=True, ids=["one crash"])


async def test_a_job_held_at_two_crashes_runs_once_more_alone(app: JetJobs, probe: Probe, truth: Truth) -> None:
    seen: list[int] = []

    @app.task
    async def work() -> str:
        seen.append(1)
        return "innocent"

    async with provisioned(app):
        handle = await work.enqueue()
        await deliver(truth, times=2)
        async with running(app.worker()):
            assert await handle.result(SOON) == "innocent"
        assert [e.outcome for e in probe.of(JobFinished)] == ["suspected", "succeeded"]
        assert seen == [1]
        await truth.until_empty()
        assert await truth.dead() == {}


async def crash(worker: Worker, life: asyncio.Task[None]) -> None:
    """End a worker so that the server sees a crash."""
    worker.leases.lease_s = 0.0
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)


async def test_a_suspect_that_crashed_alone_is_dead_lettered_and_does_not_run_again(
    app: JetJobs, truth: Truth
) -> None:
    ran: list[int] = []

    @app.task
    async def work(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(60)

    async with provisioned(app):
        handles = [await work.enqueue(n) for n in (1, 2)]
        await deliver(truth, times=4)
        for number in (1, 2):
            worker = app.worker()
            life = asyncio.create_task(worker.run())

            async def begun(number: int = number) -> bool:
                return len(ran) == number

            await eventually(begun, 30)  # alone, with its mark stored
            await crash(worker, life)
        async with running(app.worker()) as last:
            # Also if the worker does not start it: released as a new message it would run once more.
            last._jobs.dispatcher._place = last._jobs.pipeline.release  # type: ignore[method-assign]
            await eventually(truth.dead, 30, where=lambda found: len(found) == 2)
        letters = await truth.dead()
        assert {(letters[handle.id]["reason"], letters[handle.id]["text"][-12:]) for handle in handles} == {
            ("crashed", "3 deliveries")
        }
        assert sorted(ran) == [1, 2]
        await truth.until_empty()


async def suspect(truth: Truth, n: int, crashes: str = "2") -> None:
    """A job of task `work` that was returned with `crashes` crashes."""
    headers = {"Jetjobs-Run": f"run{n}", "Jetjobs-Crashes": crashes, "Jetjobs-Lane": "normal"}
    await truth.js.publish(
        f"jobs.work.default.returned.work.-.u{n}", json.dumps({"n": n}).encode(), headers=headers
    )


async def test_a_suspect_is_not_charged_with_the_end_of_a_worker_that_only_held_it(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    runs: list[str] = []

    @app.task
    async def work(n: int) -> None:
        runs.append("work")

    @app.task
    async def neighbour() -> None:
        runs.append("neighbour")
        if len(runs) == 1:
            await asyncio.sleep(60)

    async with provisioned(app):
        worker = app.worker(slots=2)
        life = asyncio.create_task(worker.run())
        await neighbour.enqueue()
        await probe.wait(JobStarted)
        await suspect(truth, 1)

        async def held() -> bool:
            return worker._jobs.dispatcher._quarantine.suspect is not None

        await eventually(held)  # it waits until its neighbour has ended
        await crash(worker, life)
        async with running(app.worker()):
            await probe.finished(2, "succeeded", timeout=30)
        assert sorted(runs) == ["neighbour", "neighbour", "work"]
        await truth.until_empty()
        assert await truth.dead() == {}


async def test_a_suspect_that_is_released_on_stop_keeps_its_count_and_is_not_charged(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    gate = asyncio.Event()

    @app.task
    async def work(n: int) -> None:
        await gate.wait()

    async with provisioned(app):
        await suspect(truth, 1)
        async with running(app.worker()) as worker:
            await probe.wait(JobStarted)
            worker.stop(now=True)
        headers = (await truth.js.get_last_msg(STREAM, "jobs.work.default.returned.work.-.u1")).headers or {}
        assert (headers["Jetjobs-Crashes"], headers["Jetjobs-Hop"]) == ("2", "1")
        await deliver(truth, "returned")  # a worker that never read it
        gate.set()
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
        await truth.until_empty()
        assert await truth.dead() == {}


async def test_no_new_job_starts_while_a_suspect_runs(app: JetJobs, truth: Truth) -> None:
    now: list[str] = []
    beside: list[list[str]] = []
    gate = asyncio.Event()

    @app.task
    async def accused() -> None:
        await asyncio.wait_for(gate.wait(), 10)
        beside.append(list(now))

    @app.task
    async def other(n: int) -> None:
        now.append(str(n))
        await asyncio.sleep(0.01)
        now.remove(str(n))

    async with provisioned(app):
        handle = await accused.enqueue()
        await deliver(truth, times=2)
        async with running(app.worker(slots=8)) as worker:

            async def alone() -> bool:
                return worker._jobs.dispatcher._quarantine.suspect is not None and worker.slots.busy == 1

            await eventually(alone)
            await asyncio.gather(*worker._tasks)  # its open requests are dropped
            report = await app.enqueue_many([other.bind(n) for n in range(20)])
            assert (await truth.consumer())["num_pending"] == 20
            gate.set()
            await handle.result(SOON)
            for one in report.stored:
                await one.result(SOON)
        assert beside == [[]]


async def test_a_second_suspect_is_returned_with_its_count_and_runs_after_the_first(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    gate = asyncio.Event()

    @app.task
    async def work(n: int) -> None:
        if n == 1:
            await asyncio.wait_for(gate.wait(), 20)

    async with provisioned(app):
        await suspect(truth, 0, crashes="0")  # it shows the worker that there is more, and the worker pulls both
        for n in (1, 2):
            await suspect(truth, n)
        async with running(app.worker()):
            await probe.finished(1, "released")
            await eventually(lambda: truth.consumer("returned"), where=lambda found: found["num_ack_pending"] == 1)
            headers = (await truth.js.get_last_msg(STREAM, "jobs.work.default.returned.work.-.u2")).headers or {}
            assert (headers["Jetjobs-Crashes"], headers["Jetjobs-Hop"], headers["Jetjobs-Lane"]) == (
                "2",
                "1",
                "normal",
            )
            assert (await truth.consumer("returned"))["num_pending"] == 1  # it is not pulled again
            gate.set()
            await probe.finished(3, "succeeded")
        ends = [(e.job_id, e.outcome) for e in probe.of(JobFinished)]
        assert ends == [("u0", "succeeded"), ("u2", "released"), ("u1", "succeeded"), ("u2", "succeeded")]
        await truth.until_empty()


async def test_suspects_on_two_workers_run_alone_and_are_not_passed_back_and_forth(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    now: Counter[str] = Counter()
    together: list[int] = []

    @app.task
    async def work(n: int) -> None:
        worker = current_job().worker
        now[worker] += 1
        together.append(now[worker])
        await asyncio.sleep(0.02)
        now[worker] -= 1

    async with provisioned(app):
        for n in range(20):
            await suspect(truth, n)
        async with running(app.worker(name="a", slots=4)), running(app.worker(name="b", slots=4)):
            await probe.finished(20, "succeeded", timeout=30)
        assert together == [1] * 20
        # Each run delays at most the jobs that its worker had pulled with it.
        assert len(probe.of(JobFinished, lambda e: e.outcome == "released")) <= 20 * 4
        await truth.until_empty()
        assert await truth.dead() == {}


async def test_an_invalid_count_of_crashes_is_a_dead_letter(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work(n: int) -> None: ...

    async with provisioned(app):
        for n, crashes in enumerate(("two", "-3", "9" * 5000, "٢")):
            await suspect(truth, n, crashes)
        async with running(app.worker()):
            await eventually(truth.dead, where=lambda found: len(found) == 4)
        assert {letter["reason"] for letter in (await truth.dead()).values()} == {"malformed"}
        await truth.until_empty()


@one_crash
async def test_a_message_that_the_server_gives_up_is_dead_lettered_soon_after_its_advisory(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    @app.task
    async def work(n: int) -> None: ...

    async with provisioned(app):
        handle = await work.enqueue(7)
        most = await deliver_to_the_end(truth)
        async with running(app.worker()):
            # The server stops delivering it at the worker's first pull. The sweep is not due for half a minute.
            (lost,) = await probe.finished(outcome="dead_lettered", timeout=25)
            assert (lost.job_id, lost.reason, lost.delivery) == (handle.id, "crashed", 0)
            await truth.until_empty()
        letter = (await truth.dead())[handle.id]
        assert (letter["reason"], letter["body"]) == ("crashed", b'{"n":7}')
        assert "stopped delivering" in letter["text"]
        assert (await handle.status()).state is JobState.DEAD
        info = await truth.consumer()
        assert most == info["config"]["max_deliver"]
        assert (info["num_redelivered"], info["num_ack_pending"], info["num_pending"]) == (0, 0, 0)
        assert (await app.dead.replay(await letter_of(app, handle.id))).outcome == "replayed"


async def test_a_forged_advisory_causes_a_lookup_and_nothing_else(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    gate = asyncio.Event()

    @app.task
    async def work() -> None:
        await gate.wait()

    async with provisioned(app):
        async with running(app.worker(slots=1)):
            runs = await work.enqueue()
            await probe.wait(JobStarted)
            waits = await work.enqueue()
            about = {"stream": STREAM, "consumer": "normal", "deliveries": 99}
            stranded = StrandedJobs(app.jetstream, "tester", 0.0, lambda event: None)
            for sequence in (
                1,
                2,
                3,
                999_999,
                0,
                -1,
                10**30,
            ):  # the pin, a running job, a waiting job, and nothing
                forged = json.dumps({**about, "stream_seq": sequence}).encode()
                await truth.nc.publish("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.any.thing", forged)
                assert stranded.add_hint(forged)
            assert stranded.add_hint(json.dumps({**about, "stream": "jobs-work-none", "stream_seq": 2}).encode())
            assert await stranded.check_hints() == (0, None)
            for useless in (
                b"no json",
                b"[]",
                b'{"stream": "other-work-default", "consumer": "normal", "stream_seq": 2}',
                b'{"stream": "jobs-work-a.>", "consumer": "normal", "stream_seq": 2}',
                b'{"stream": 7, "consumer": "normal", "stream_seq": 2}',
                b'{"stream": "jobs-work-default", "consumer": "x.>", "stream_seq": 2}',
                b'{"stream": "jobs-work-default", "consumer": "normal", "stream_seq": "2"}',
                b'{"stream": "jobs-work-default", "consumer": "normal", "stream_seq": true}',
            ):
                assert not stranded.add_hint(useless)
            gate.set()
            for handle in (runs, waits):
                await handle.result(SOON)
        assert await truth.dead() == {}
        assert len(await truth.subjects(STREAM, "jobs.work.default.mark._pin")) == 1


async def test_a_queue_that_the_leader_may_not_read_does_not_prevent_the_sweep_of_others(tmp_path: Path) -> None:
    swept: list[str] = []

    class Noting(StrandedJobs):
        async def sweep(self, queue: str) -> DutyResult:
            done = await super().sweep(queue)
            swept.append(queue)
            return done

    with GuardedServer(tmp_path) as guarded:
        async with JetJobs("t", settings=guarded.settings_of("setup")) as setup:
            await setup.provision(["audit", "default"])
        async with JetJobs("t", settings=guarded.settings_of("worker")) as app:
            stranded = Noting(app.jetstream, "tester", 0.0, lambda event: None)
            advisory = {"stream": "jobs-work-audit", "consumer": "normal", "stream_seq": 2}
            assert stranded.add_hint(json.dumps(advisory).encode())
            assert await stranded.check_hints() == (0, None)  # and the hint is forgotten
            for duty in duties(app.jetstream, stranded):
                await duty.run()
    assert swept == ["default"]


@one_crash
async def test_the_sweep_finds_stranded_jobs_without_an_advisory_and_nothing_else(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    gate = asyncio.Event()

    @app.task
    async def work(n: int) -> None: ...

    @app.task
    async def long() -> str:
        await gate.wait()
        return "ran through"

    async with provisioned(app):
        sweep = StrandedJobs(app.jetstream, "tester", 0.1, lambda event: None)
        async with running(app.worker(slots=1)) as worker:
            running_job = await long.enqueue()
            await probe.wait(JobStarted)
            stranded, waits = await work.enqueue(1), await work.options(priority="low").enqueue(2)
            await deliver_to_the_end(truth)

            async def given_up() -> bool:
                await pull(truth, expires_s=0.5)  # the server stops delivering it at the next pull
                return bool((await truth.consumer())["num_ack_pending"] == 1)

            await eventually(given_up)
            # A job that was delivered before it still runs: the consumer's floor is below both.
            for _ in range(2):
                assert (await sweep.sweep("default")).repaired == 0
                await asyncio.sleep(0.3)
            gate.set()
            assert await running_job.result(SOON) == "ran through"
            await waits.result(SOON)
            assert worker.slots.busy == 0
            await eventually(lambda: sweep.sweep("default"), where=lambda found: found.repaired == 1)
        assert set(await truth.dead()) == {stranded.id}
        await truth.until_empty()
        assert await sweep.sweep("default") == (0, None)
