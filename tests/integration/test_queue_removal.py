"""Deleting a queue: refused while anything would be lost, and nothing of it is left on the server afterwards."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin import queues as admin_queues
from jetjobs.errors import QueueInUse, QueueNotFound
from jetjobs.jetstream.queues import removal
from tests.support.probe import eventually, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

HOUR = timedelta(hours=1)


class Mailer:
    """An app with a task for each state in which a job can be."""

    def __init__(self, app: JetJobs) -> None:
        self.app = app
        self.release = asyncio.Event()

        @app.task(queue="mail", retry=RetryPolicy(max_attempts=1))
        async def broken() -> None:
            raise ValueError("on purpose")

        @app.task(queue="mail", retry=RetryPolicy(base=HOUR, jitter=False))
        async def flaky() -> None:
            raise ConnectionError("on purpose")

        @app.task(queue="mail")
        async def hold() -> None:
            await self.release.wait()

        @app.task(retry=RetryPolicy(max_attempts=1))
        async def other_broken() -> None:
            raise ValueError("on purpose")

        self.broken, self.flaky, self.hold, self.other_broken = broken, flaky, hold, other_broken


@pytest.fixture
def mailer(app: JetJobs) -> Mailer:
    return Mailer(app)


async def refused(app: JetJobs) -> str:
    with pytest.raises(QueueInUse) as caught:
        await app.queues.delete("mail")
    assert "force" in str(caught.value.hint)
    return str(caught.value)


async def test_every_use_of_a_queue_is_named_and_nothing_is_deleted(mailer: Mailer, truth: Truth) -> None:
    app = mailer.app
    async with provisioned(app):
        await app.schedules.put("nightly", "hold", cron="0 3 * * *")
        assert await refused(app) == "queue 'mail' is in use: schedule nightly"
        await app.schedules.delete("nightly")
        await mailer.hold.options(delay=HOUR).enqueue()
        assert await refused(app) == "queue 'mail' is in use: 1 scheduled job"
        await mailer.flaky.enqueue()
        await mailer.broken.enqueue()
        async with running(app.worker(name="w1")) as worker:
            await eventually(lambda: truth.jobs("mail", "retry"))
            await eventually(truth.dead)
            await mailer.hold.enqueue()
            await mailer.hold.enqueue()
            await wait_until(lambda: worker.slots.busy == 2)
            key = (await app.workers.list())[0].key
            text = f"2 running jobs, 1 scheduled job, 1 retrying job, 1 dead job, worker {key}"
            assert await refused(app) == f"queue 'mail' is in use: {text}"
            mailer.release.set()
            await wait_until(lambda: worker.slots.busy == 0)
        await truth.until_idle("normal", "mail")
        assert await refused(app) == "queue 'mail' is in use: 1 scheduled job, 1 retrying job, 1 dead job"
        assert len(await truth.jobs("mail")) == 2
        assert len(await truth.dead()) == 1
        with pytest.raises(QueueNotFound, match="'nowhere' does not exist"):
            await app.queues.delete("nowhere", force=True)


async def test_force_deletes_jobs_records_and_dead_letters_of_this_queue_only(
    mailer: Mailer, truth: Truth
) -> None:
    app = mailer.app
    mailer.release.set()
    async with provisioned(app):
        async with running(app.worker()):
            await (await mailer.hold.enqueue()).result(timedelta(seconds=20))
            for task in (mailer.broken, mailer.other_broken, mailer.flaky):
                await task.enqueue()
            await eventually(truth.dead, where=lambda found: len(found) == 2)
            await eventually(lambda: truth.jobs("mail", "retry"))
        await app.queues.pause("mail", reason="to be deleted")
        before = await app.queues.delete("mail", force=True)
        assert (before.queue, before.retrying, before.dead) == ("mail", 1, 1)
        for stream in ("jobs-work-mail", "KV_jobs-done-mail"):
            assert not await truth.has_stream(stream)
        assert [letter["subject"].split(".")[2] for letter in (await truth.dead()).values()] == ["default"]
        assert await app.queues.names() == ["default"]
        await app.provision()
        assert (await app.queues.get("mail", rates_over=0)).pause is None, "a new queue is not paused"
        await mailer.hold.enqueue()


async def test_a_job_that_is_stored_while_a_queue_is_deleted_is_kept(
    mailer: Mailer, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is empty when it is looked at, and a job is stored before it is closed."""
    app, close = mailer.app, removal.close_queue

    async def enqueue_and_close(*arguments: Any) -> Any:
        await mailer.hold.enqueue()
        return await close(*arguments)

    async with provisioned(app):
        monkeypatch.setattr(admin_queues, "close_queue", enqueue_and_close)
        assert await refused(app) == "queue 'mail' is in use: 1 new job"
        assert len(await truth.jobs("mail")) == 1
        await mailer.hold.enqueue()
        assert len(await truth.jobs("mail")) == 2, "the queue is open again"
        assert [change.action for change in await app.plan()].count("none") == len(await app.plan())


async def test_a_queue_that_is_being_deleted_accepts_no_job(
    mailer: Mailer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, count = mailer.app, removal.jobs_in
    answers: list[Any] = []

    async def enqueue_and_count(*arguments: Any) -> int:
        answers.extend(await asyncio.gather(mailer.hold.enqueue(), return_exceptions=True))
        return await count(*arguments)

    async with provisioned(app):
        monkeypatch.setattr(admin_queues, "jobs_in", enqueue_and_count)
        await app.queues.delete("mail")
        assert [type(answer) for answer in answers] == [QueueNotFound]
        assert await app.queues.names() == ["default"]


async def test_the_role_of_the_example_that_creates_queues_may_delete_them(tmp_path: Path) -> None:
    with GuardedServer(tmp_path) as server:
        mailer = Mailer(JetJobs("test", settings=server.settings_of("setup")))
        async with provisioned(mailer.app) as app:
            assert (await app.queues.delete("mail")).queue == "mail"
            assert await app.queues.names() == ["default"]
            deleted = await removal.destroy(app.jetstream.connection, app.jetstream.names)
            assert "jobs-work-default" in deleted
            assert await removal.streams_of(app.jetstream.connection, app.jetstream.names) == []
