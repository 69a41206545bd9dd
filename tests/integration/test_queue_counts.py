"""Only the leader counts queues, and the counts agree with the streams."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.worker.leader import leadership as leading
from jetjobs.worker.worker import Worker
from tests.conftest import MakeApp
from tests.support.probe import eventually, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned_worker, running

LATER = timedelta(hours=1)


def with_tasks(app: JetJobs) -> asyncio.Event:
    """Jobs of `hold` run until the event is set."""
    go_on = asyncio.Event()

    @app.task
    async def hold(n: int) -> None:
        await go_on.wait()

    @app.task(retry=RetryPolicy(max_attempts=2, base=LATER, cap=LATER, jitter=False))
    async def fail(n: int) -> None:
        raise ValueError("no")

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def perish(n: int) -> None:
        raise ValueError("no")

    return go_on


# The leader


def counted(worker: Worker) -> list[str]:
    return [state.queue for state in worker.queue_states]


async def test_only_the_leader_has_counts_and_the_next_one_takes_over(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "COUNT_EVERY_S", 0.2)
    one, two = make_app(), make_app()
    for app in (one, two):
        with_tasks(app)
    async with one, two:
        await one.provision(["default", "mail"])
        first, second = one.worker(name="first"), two.worker(name="second")
        first.count_queues = second.count_queues = True

        async with running(second):
            await wait_until(lambda: counted(second) == ["default", "mail"], 30)
            async with running(first):
                await asyncio.sleep(1.0)
                assert counted(first) == []
                assert counted(second) == ["default", "mail"]
                second.stop()
                await wait_until(lambda: counted(first) == ["default", "mail"], 30)
                assert counted(second) == []
        assert counted(first) == []


async def test_a_queue_that_cannot_be_counted_is_omitted_and_counted_as_an_error(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "COUNT_EVERY_S", 0.2)
    with_tasks(app)
    async with app:
        await app.provision(["default", "mail"])
        worker = app.worker()
        worker.count_queues = True
        async with running(worker):
            await wait_until(lambda: counted(worker) == ["default", "mail"], 30)
            assert worker.count_errors == 0
            config = (await truth.api("STREAM.INFO.jobs-work-mail"))["config"]
            await truth.api("STREAM.UPDATE.jobs-work-mail", {**config, "allow_direct": False})
            await wait_until(lambda: counted(worker) == ["default"] and worker.count_errors > 0, 30)


async def test_nothing_is_counted_without_a_metrics_port(app: JetJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    with_tasks(app)
    async with provisioned_worker(app) as worker:
        assert worker.queue_states == []
        assert worker.count_errors == 0


async def test_the_worker_of_the_example_configuration_may_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "COUNT_EVERY_S", 0.2)
    monkeypatch.setenv("JOBS_OPERATOR_PASSWORD", "secret")
    with GuardedServer(tmp_path) as guarded:

        def app_of(role: str) -> JetJobs:
            app = JetJobs("t", settings=guarded.settings_of(role))
            with_tasks(app)
            return app

        async with app_of("setup") as setup:
            await setup.provision()
        async with app_of("worker") as working:
            worker = working.worker()
            worker.count_queues = True

            async def counts() -> bool:
                return [(state.queue, state.workers) for state in worker.queue_states] == [("default", 1)]

            async with running(worker):
                await eventually(counts, 30)
            assert worker.count_errors == 0
        assert [line for line in guarded.log().splitlines() if "Violation" in line] == []
