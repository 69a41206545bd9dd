"""What a handle does with its job on the server, and jobs that are enqueued by name or with short forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import Context, JetJobs, JobCancelled, JobFailed, JobNotFound, JobState, ResultNotReady, Snooze
from jetjobs.admin import CancelOutcome, MoveOutcome
from jetjobs.errors import DefinitionError
from jetjobs.testing import drain
from tests.conftest import MakeApp
from tests.integration import isolated_tasks
from tests.support.server import Truth
from tests.support.workers import provisioned, running


async def test_a_handle_is_awaited_for_its_result(app: JetJobs) -> None:
    @app.task(result_ttl="1h", timeout=30, retry=2)
    async def double(n: int) -> int:
        return 2 * n

    @app.task(max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    async with provisioned(app), running(app.worker()):
        assert await (await double.enqueue(4)) == 8
        assert await (await double.enqueue(4)).result("10s") == 8
        failed = await fail.enqueue()
        with pytest.raises(JobFailed) as caught:
            await failed
        assert caught.value.job_id == failed.id


async def test_a_result_that_is_not_ready_is_a_timeout(app: JetJobs) -> None:
    @app.task
    async def never() -> None: ...

    async with provisioned(app):
        handle = await never.enqueue()
        with pytest.raises(TimeoutError) as caught:
            await handle.result(0.01)
        assert isinstance(caught.value, ResultNotReady)
        assert caught.value.job_id == handle.id
        with pytest.raises(JobNotFound) as missing:
            await app.jobs.get("missing")
        assert missing.value.job_id == "missing"


async def test_a_handle_changes_its_job(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with provisioned(app):
        handle = await double.enqueue_in("1h", 4)
        later = datetime.now(UTC) + timedelta(days=1)
        assert (await handle.reschedule(at=later)).outcome is MoveOutcome.MOVED
        assert (await handle.status()).due_at == later
        assert (await handle.reschedule(delay="2h")).as_dict() == {
            "id": handle.id,
            "outcome": "moved",
            "state": "scheduled",
            "detail": "",
        }
        due = (await handle.status()).due_at
        assert due is not None
        assert abs(due - datetime.now(UTC) - timedelta(hours=2)) < timedelta(seconds=20)
        for wrong in ({}, {"delay": 5, "at": later}):
            with pytest.raises(DefinitionError, match="reschedule takes either a time or a delay"):
                await handle.reschedule(**wrong)  # type: ignore[arg-type]
        assert (await handle.run_now()).outcome is MoveOutcome.MOVED
        assert [f"jobs.work.default.normal.double.-.{handle.id}"] == await truth.jobs()
        assert (await handle.run_now()).outcome is MoveOutcome.TOO_LATE
        answer = await handle.cancel(reason="not needed", by="ada")
        assert (answer.job_id, answer.outcome) == (handle.id, CancelOutcome.CANCELLED)
        await truth.until_empty()
        with pytest.raises(JobCancelled, match="by ada: not needed") as caught:
            await handle
        assert caught.value.job_id == handle.id
        assert (await handle.status()).state is JobState.CANCELLED


async def test_a_job_of_another_service_is_enqueued_by_name(make_app: MakeApp, truth: Truth) -> None:
    shop, mail = (make_app(name, queues={"namespace": "jobs"}) for name in ("shop", "mail"))

    @mail.task(queue="mail")
    async def send_email(to: str, copies: int = 1) -> list[str]:
        return [to] * copies

    async with provisioned(mail), shop, running(mail.worker()):
        handle = await shop.enqueue("send_email", {"to": "ada", "copies": 2}, queue="mail", key="k")
        assert (handle.queue, handle.task) == ("mail", "send_email")
        assert await handle.result(10) == ["ada", "ada"]
        assert (await handle.cancel()).outcome is CancelOutcome.ENDED
    await truth.until_empty("mail")


async def test_a_snooze_in_seconds_uses_up_no_attempt(app: JetJobs) -> None:
    @app.task(max_attempts=1)
    async def wait(ctx: Context) -> None:
        raise Snooze(5)

    async with provisioned(app):
        handle = await wait.options(key="one").enqueue()  # type: ignore[call-arg]
        drained = await drain(app, timeout=20)
        assert (len(drained.snoozed), len(drained.finished)) == (1, 1)
        status = await handle.status()
        assert (status.state, status.attempt) == (JobState.RETRYING, 1)


async def test_a_context_is_injected_in_a_child_process(app: JetJobs) -> None:
    isolated_tasks.app.configure(app.settings)
    async with provisioned(isolated_tasks.app) as opened, running(opened.worker(name="w1")):
        handle = await isolated_tasks.who_by_type.enqueue(3)
        assert await handle.result(20) == [handle.id, "w1", 3]
