"""Find dead letters by filter and id, count them, delete them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.model.errors import JobAmbiguous, TopologyMissing
from jetjobs.model.views.dead_letter import DeadLetterFilter
from tests.support.letters import bury, letter_of
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, running

ONCE = RetryPolicy(max_attempts=1)


def with_task(app: JetJobs) -> None:
    @app.task(retry=ONCE)
    async def work(n: int) -> int:
        raise LookupError(f"no {n}") if n % 2 else ValueError(f"bad {n}")

    @app.task(retry=ONCE, queue="other")
    async def elsewhere() -> None:
        raise RuntimeError("x")


async def kill(app: JetJobs, probe: Probe, count: int) -> list[str]:
    """Let jobs of `work` die. Returns their ids."""
    report = await app.enqueue_many([app.tasks["work"].bind(n) for n in range(count)])
    async with running(app.worker()):
        await probe.finished(count, "dead_lettered", timeout=30)
    return [handle.id for handle in report.stored]


async def test_letters_are_listed_in_order_and_by_filter(app: JetJobs, truth: Truth, probe: Probe) -> None:
    with_task(app)
    async with provisioned(app):
        ids = await kill(app, probe, 600)  # more than one page
        await app.tasks["elsewhere"].enqueue()
        async with running(app.worker()):
            await probe.finished(601, "dead_lettered", timeout=30)
        everything = [letter async for letter in app.dead.list()]
        assert {letter.id for letter in everything} >= set(ids)
        assert len(everything) == 601
        assert [x.sequence for x in everything] == sorted(x.sequence for x in everything)
        odd = [letter async for letter in app.dead.list(DeadLetterFilter(error_type="LookupError"))]
        assert len(odd) == 300
        assert {letter.reason for letter in odd} == {"exhausted"}
        assert len([x async for x in app.dead.list(DeadLetterFilter(queue="other"))]) == 1
        assert [x async for x in app.dead.list(DeadLetterFilter(task="nothing"))] == []
        assert [
            x async for x in app.dead.list(DeadLetterFilter(since=datetime.now(UTC) + timedelta(hours=1)))
        ] == []
        one = await app.dead.get(ids[0])
        assert one is not None
        assert (one.task, one.body, one.text, one.attempts) == ("work", b'{"n":0}', "bad 0", 1)
        for unknown in ("unknown", "*", ">", "a.b", ""):
            assert await app.dead.get(unknown) is None


async def test_the_status_of_a_dead_job_has_its_start_time(app: JetJobs, probe: Probe, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        before = datetime.now(UTC)
        (job_id,) = await kill(app, probe, 1)
        status = await app.jobs.get(job_id)
        assert status.started_at is not None
        assert status.ended_at is not None
        assert before <= status.started_at <= status.ended_at
        # A job whose task never started.
        await truth.js.publish("jobs.work.default.normal.work", b"{}", headers={"Nats-Msg-Id": "never"})
        async with running(app.worker()):
            await probe.finished(2, "dead_lettered")
        assert (await app.jobs.get("never")).started_at is None


async def test_a_list_ends_at_the_given_sequence_and_continues_from_there(app: JetJobs) -> None:
    async with app:
        await app.provision(["default"])
        ids = set(await bury(app, "work", [b"{}"] * 5))
        last = await app.dead.last_sequence()
        late = await bury(app, "work", [b"{}"])
        seen = [letter async for letter in app.dead.list(until=last)]
        assert {letter.id for letter in seen} == ids
        assert [x.id async for x in app.dead.list(start=seen[-1].sequence + 1)] == late


async def test_pages_of_large_letters_are_read_completely_and_in_order(app: JetJobs) -> None:
    async with app:
        await app.provision(["default"])
        size = app.jetstream.connection.max_payload - 100_000
        ids = await bury(app, "work", [bytes([65 + i]) * size for i in range(20)])  # more than a page holds
        found = {letter.id: letter.body async for letter in app.dead.list()}
        assert found == {job_id: bytes([65 + i]) * size for i, job_id in enumerate(ids)}


async def test_letters_are_counted_by_cause(app: JetJobs, probe: Probe) -> None:
    with_task(app)
    async with provisioned(app):
        await kill(app, probe, 5)
        groups = await app.dead.groups()
        assert [(g.task, g.reason, g.error_type, g.count) for g in groups] == [
            ("work", "exhausted", "ValueError", 3),
            ("work", "exhausted", "LookupError", 2),
        ]
        assert all(g.first is not None and g.last is not None and g.first <= g.last for g in groups)
        assert await app.dead.groups(DeadLetterFilter(task="nothing")) == ()


async def test_two_letters_with_the_same_id_are_kept_apart(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default", "other"])
        await bury(app, "work", [b'{"n":1}'], ids=["mine"])
        await bury(app, "work", [b'{"n":2}'], ids=["mine"], queue="other")
        await bury(app, "play", [b'{"n":3}'], ids=["mine"])
        with pytest.raises(JobAmbiguous, match="3 dead letters have the id mine") as refusal:
            await app.dead.get("mine")
        assert sorted(refusal.value.places) == [("default", "play"), ("default", "work"), ("other", "work")]
        with pytest.raises(JobAmbiguous):
            await app.dead.get("mine", task="work")
        assert (await letter_of(app, "mine", queue="other")).body == b'{"n":2}'
        one = await letter_of(app, "mine", queue="default", task="play")
        assert one.body == b'{"n":3}'
        assert await app.dead.delete(one)
        left = await truth.subjects("jobs-dead", "jobs.dead.>")
        assert sorted(left) == ["jobs.dead.default.work.mine", "jobs.dead.other.work.mine"]


async def test_deleting_a_letter_keeps_an_object_that_another_letter_needs(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default", "other"])
        await app.jetstream.payloads.put("shared", b'{"n":1}', {})
        for queue in ("default", "other"):
            await bury(app, "work", [b""], ids=["mine"], queue=queue, payload="shared")
        assert await app.dead.delete(await letter_of(app, "mine", queue="default"))
        assert await app.jetstream.payloads.get("shared") == b'{"n":1}'
        assert await app.dead.delete(await letter_of(app, "mine"))
        assert await truth.subjects("OBJ_jobs-payloads", "$O.jobs-payloads.C.>") == {}


async def test_a_missing_dead_letter_stream_is_reported_with_a_hint(app: JetJobs) -> None:
    async with app:
        with pytest.raises(TopologyMissing, match="jobs-dead") as listing:
            [letter async for letter in app.dead.list()]
        assert listing.value.hint == "jetjobs setup apply"
        for call in (app.dead.get("mine"), app.dead.groups(), app.dead.last_sequence()):
            with pytest.raises(TopologyMissing, match="jobs-dead"):
                await call
