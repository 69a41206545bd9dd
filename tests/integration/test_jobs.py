"""Find and list jobs in every state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import JetJobs, JobState
from jetjobs.model.errors import ConfigError, JobAmbiguous, JobNotFound, QueueNotFound
from jetjobs.model.events import JobStarted
from jetjobs.model.views.job_query import JobQuery
from tests.support.job_states import HOUR, StateTasks
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)


async def test_a_job_is_found_by_its_id_alone_in_every_state(app: JetJobs, probe: Probe) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        queued = await zoo.fine.enqueue(1)
        assert (await app.jobs.get(queued.id)).state is JobState.QUEUED
        scheduled = await zoo.fine.options(delay=HOUR, key="k").enqueue(2)
        dead = await zoo.broken.enqueue(3)
        retrying = await zoo.fragile.enqueue(4)
        held = await zoo.hold.enqueue(5)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            await probe.finished(1, "retried")
            await probe.finished(1, "succeeded")
            await eventually(lambda: app.jobs.get(held.id), where=lambda found: found.state is JobState.RUNNING)
            states = {h.id: await app.jobs.get(h.id) for h in (queued, scheduled, dead, retrying)}
            assert (states[queued.id].state, states[queued.id].result) == (JobState.SUCCEEDED, 1)
            assert (states[scheduled.id].state, states[scheduled.id].lane) == (JobState.SCHEDULED, "later")
            assert (states[dead.id].state, states[dead.id].queue) == (JobState.DEAD, "other")
            assert states[dead.id].error == "RuntimeError: number 3"
            assert (states[retrying.id].state, states[retrying.id].attempt) == (JobState.RETRYING, 2)
            assert [entry["text"] for entry in states[retrying.id].history] == ["not yet"]
            handle = await app.job(held.id)
            zoo.gate.set()
            assert await handle.result(SOON) == "held"


async def test_unknown_invalid_and_ambiguous_ids_have_clear_errors(app: JetJobs) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        with pytest.raises(JobNotFound, match="no job with id"):
            await app.jobs.get("nosuch")
        with pytest.raises(JobNotFound, match="invalid job id"):
            await app.jobs.get("no such>")
        await zoo.fine.options(job_id="mine").enqueue(1)
        await zoo.hold.options(job_id="mine").enqueue(2)
        with pytest.raises(JobAmbiguous, match="default/fine, default/hold") as caught:
            await app.jobs.get("mine")
        assert caught.value.places == [("default", "fine"), ("default", "hold")]
        assert (await app.jobs.get("mine", task="hold")).task == "hold"


async def test_lists_page_by_state_task_and_arguments(app: JetJobs, probe: Probe) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        report = await app.enqueue_many([zoo.fine.bind(n) for n in range(30)])
        await zoo.hold.enqueue(99)
        ids = [handle.id for handle in report.stored]

        found: list[str] = []
        cursor = None
        pages = 0
        query = JobQuery(JobState.QUEUED, task="fine")
        while True:
            page = await app.jobs.page(query, limit=12, cursor=cursor)
            found += [item.status.id for item in page.items]
            pages += 1
            cursor = page.cursor
            if cursor is None:
                break
        assert found == ids
        assert pages == 3

        page = await app.jobs.page(JobQuery(where=(("args.n", "7"),)))
        assert [(item.status.id, item.arguments) for item in page.items] == [(ids[7], {"n": 7})]
        nothing = await app.jobs.page(JobQuery(where=(("args.nosuch.deep", "7"),)))
        assert (nothing.items, nothing.unknown) == ([], ("args.nosuch.deep",))

        with pytest.raises(ConfigError, match="belongs to another list"):
            await app.jobs.page(JobQuery(JobState.DEAD), cursor=(await app.jobs.page(query, limit=1)).cursor)
        with pytest.raises(ConfigError, match="invalid cursor"):
            await app.jobs.page(query, cursor="%%%")
        with pytest.raises(ConfigError, match="use the path of an argument"):
            JobQuery(where=(("user", "7"),))
        with pytest.raises(QueueNotFound):
            await app.jobs.page(JobQuery(queue="nosuch"))

        await zoo.broken.enqueue(1)
        async with running(app.worker()):
            await probe.finished(30, "succeeded")
            await probe.finished(1, "dead_lettered")
            done = [item async for item in app.jobs.list(JobQuery(JobState.SUCCEEDED))]
            assert {item.status.id for item in done} == set(ids)
            dead = await app.jobs.page(JobQuery(JobState.DEAD, task="broken"))
            assert [item.status.error for item in dead.items] == ["RuntimeError: number 1"]

            async def shown() -> bool:
                page = await app.jobs.page(JobQuery(JobState.RUNNING))
                return [item.status.task for item in page.items] == ["hold"]

            await eventually(shown)
            recent = await app.jobs.page(JobQuery(JobState.DEAD, since=datetime.now(UTC) + HOUR))
            assert recent.items == []
            zoo.gate.set()


async def test_a_list_of_running_jobs_does_not_read_the_waiting_jobs(app: JetJobs, probe: Probe) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        query = JobQuery(JobState.RUNNING)
        held = [await zoo.hold.enqueue(n) for n in range(2)]
        async with running(app.worker(slots=2)):
            await probe.wait(JobStarted, 2, timeout=30)
            report = await app.enqueue_many([zoo.fine.bind(n) for n in range(300)])
            assert len(report.stored) == 300
            await eventually(lambda: app.jobs.page(query), 30, where=lambda found: len(found.items) == 2)
            page = await app.jobs.page(query)
            assert {item.status.id for item in page.items} == {h.id for h in held}
            assert page.cursor is None
            assert page.scanned < 100  # a few may be delivered in advance
            first = await app.jobs.page(query, limit=1)
            assert first.cursor is not None
            second = await app.jobs.page(query, limit=1, cursor=first.cursor)
            assert {first.items[0].status.id, second.items[0].status.id} == {h.id for h in held}
            zoo.gate.set()
            await probe.finished(302, "succeeded", timeout=30)
        assert (await app.jobs.page(query)).items == []


async def test_a_list_neither_holds_nor_acks_messages(app: JetJobs, truth: Truth) -> None:
    zoo = StateTasks(app)
    async with provisioned(app):
        await app.enqueue_many([zoo.fine.bind(n) for n in range(50)])
        before = await truth.consumer()
        assert len((await app.jobs.page(limit=100)).items) == 50
        after = await truth.consumer()
        for count in ("num_pending", "num_ack_pending"):
            assert before[count] == after[count]
        names = await truth.api("CONSUMER.NAMES.jobs-work-default")
        assert set(names["consumers"]) == {"high", "normal", "low", "returned"}
