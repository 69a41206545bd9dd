"""A worker follows the lease of its lanes: announced by those who lower it, and read again every minute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, Worker
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import AccessDenied, WorkerSilent
from jetjobs.model.events import JobFinished, JobStarted, LeaseLostEvent, Redelivered
from jetjobs.model.settings import QueueSettings, build_settings
from jetjobs.worker.leases import lane_lease
from tests.conftest import MakeApp
from tests.support.probe import Probe, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

LANES = ("high", "normal", "low", "returned")


@pytest.fixture
def go_on(app: JetJobs) -> asyncio.Event:
    """Ends the jobs of task `hold`."""
    event = asyncio.Event()

    @app.task
    async def hold() -> None:
        await event.wait()

    return event


async def change(truth: Truth, seconds: float, *lanes: str) -> None:
    """Change the lease of lanes with the plain API."""
    for lane in lanes:
        config = (await truth.consumer(lane))["config"]
        body = {"stream_name": "jobs-work-default", "config": {**config, "ack_wait": int(seconds * 1e9)}}
        subject = f"CONSUMER.CREATE.jobs-work-default.{lane}.{config['filter_subject']}"
        assert "error" not in await truth.api(subject, body)


async def leases(truth: Truth, queue: str = "default") -> set[float]:
    return {(await truth.consumer(lane, queue))["config"]["ack_wait"] / 1e9 for lane in LANES}


def assert_undisturbed(probe: Probe) -> None:
    assert not probe.of(Redelivered)
    assert not probe.of(LeaseLostEvent)
    assert len(probe.of(JobStarted)) == len(probe.of(JobFinished))


@asynccontextmanager
async def ready(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker; the block begins when it is ready and registered."""
    async with running(worker):
        await wait_until(lambda: worker.ready)
        yield worker


async def until_lease(worker: Worker, seconds: float) -> None:
    await wait_until(lambda: worker.leases.lease_s == seconds)


async def test_a_lease_changed_with_the_plain_api_is_followed_shorter_at_once_and_longer_when_all_lanes_are(
    app: JetJobs, truth: Truth, probe: Probe, go_on: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_lease, "REREAD_S", 0.1)
    async with provisioned(app), ready(app.worker()) as worker:
        await app.tasks["hold"].enqueue()
        await probe.wait(JobStarted)
        await change(truth, 3.0, "low")
        await until_lease(worker, 3.0)
        await change(truth, 2.0, "normal")
        await until_lease(worker, 2.0)
        await asyncio.sleep(2.5)  # longer than the lease: it lasts only with heartbeats
        await change(truth, 30.0, "normal")
        await until_lease(worker, 3.0)
        await change(truth, 60.0, "low")
        await until_lease(worker, 30.0)  # never longer than that of the settings
        go_on.set()
        await probe.finished(1, "succeeded")
        await truth.until_empty()
    assert_undisturbed(probe)


async def test_an_announced_lease_is_kept_although_the_lanes_still_have_the_longer_one(
    app: JetJobs, truth: Truth, go_on: asyncio.Event
) -> None:
    async with provisioned(app), ready(app.worker()) as worker:
        request = {"seconds": 5, "queues": ["default"]}
        answers = await app.workers.request_all("lease", request)
        assert [answer["lease_s"] for answer in answers.by_worker.values()] == [5]
        await worker._jobs.lease._follow(5.0)
        assert worker.leases.lease_s == 5  # the lanes may be about to change
        await app.workers.request_all("lease", request)
        await worker._jobs.lease._follow(5.0)
        assert worker.leases.lease_s == 5
        await worker._jobs.lease._follow(5.0)
        assert worker.leases.lease_s == 30  # they were not changed after all


async def test_the_doctor_finds_a_worker_with_a_longer_lease_than_its_lanes(
    app: JetJobs, truth: Truth, go_on: asyncio.Event
) -> None:
    async with provisioned(app), ready(app.worker()):
        (record,) = await app.workers.list()
        assert record.lease == timedelta(seconds=30)
        for seconds, level in ((20.0, "warn"), (9.0, "fail")):
            await change(truth, seconds, "low")
            (found,) = [one for one in await app.doctor(only=["workers"]) if one.check == "leases"]
            assert (found.level, found.text) == (
                level,
                f"worker {record.key} sends heartbeats for a lease of 30.0 s, but a lane of queue default has "
                f"{seconds} s: its jobs may run twice",
            )


@pytest.mark.parametrize("request_", [{"seconds": 0.1, "queues": ["default"]}, {"queues": []}, {"seconds": 5}])
async def test_an_invalid_announcement_is_refused(
    app: JetJobs, go_on: asyncio.Event, request_: dict[str, object]
) -> None:
    async with provisioned(app), ready(app.worker()) as worker:
        answers = await app.workers.request_all("lease", request_)
        assert [answer["ok"] for answer in answers.by_worker.values()] == [False]
        assert worker.leases.lease_s == 30


async def test_a_raised_lease_needs_no_worker(make_app: MakeApp, truth: Truth) -> None:
    short, long = make_app(queues={"lease": "5s"}), make_app(queues={"lease": "60s"})
    async with provisioned(short), long:
        await short.provision(["default"])
        async with ready(short.worker(queues={"default": None})) as worker:
            worker.control._handlers.clear()
            await long.provision(["default"])
            assert await leases(truth) == {60.0}
            assert worker.leases.lease_s == 5.0


async def test_workers_of_other_queues_and_of_older_versions(make_app: MakeApp, truth: Truth) -> None:
    app, shorter = make_app(), make_app(queues={"lease": "5s"})
    async with app, shorter:
        await app.provision(["default", "mail"])
        async with ready(app.worker(queues={"mail": None})) as worker:
            worker.control._handlers.pop("lease")  # as in a version that does not know the request
            (record,) = await app.workers.list()
            await shorter.provision(["default"])
            assert await leases(truth) == {5.0}
            with pytest.raises(WorkerSilent, match=rf"mail is not lowered to 5.0 s: worker {record.key} refused"):
                await shorter.provision(["mail"])
            assert await leases(truth, "mail") == {30.0}
            await shorter.provision(["mail"], force=True)
            assert await leases(truth, "mail") == {5.0}


async def test_a_worker_that_starts_while_a_lease_is_lowered_uses_the_shorter_one(
    make_app: MakeApp, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, shorter = make_app(), make_app(queues={"lease": "5s"})
    async with app, shorter:
        await app.provision(["default"])
        worker = app.worker(queues={"default": None})
        opened = worker._registration.open

        async def lowered_meanwhile(*given: object) -> None:
            # It has read the lease and cannot be asked yet.
            await shorter.provision(["default"])
            assert worker.leases.lease_s == 30.0
            await opened(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(worker._registration, "open", lowered_meanwhile)
        async with ready(worker):
            assert worker.leases.lease_s == 5.0


async def test_the_user_that_sets_up_may_ask_the_workers(tmp_path: Path) -> None:
    with GuardedServer(tmp_path) as server:
        setup, staff = server.settings_of("setup"), server.settings_of("worker")
        shorter = setup.model_copy(update={"queues": QueueSettings(lease=timedelta(seconds=5))})
        async with JetJobs("test", settings=setup) as app:
            await app.provision(["default"])
        async with JetJobs("test", settings=staff) as app, ready(app.worker(queues={"default": None})) as worker:
            async with JetJobs("test", settings=shorter) as lowering:
                await lowering.provision(["default"])
            assert worker.leases.lease_s == 5.0


async def test_a_user_that_may_not_ask_workers_lowers_a_lease_only_by_force(tmp_path: Path) -> None:
    config = tmp_path / "users.conf"
    denied = 'permissions: { publish: { deny: "jobs.control.>" } }'
    config.write_text(f"authorization {{ users = [ {{ user: limited, password: secret, {denied} }} ] }}")
    with EmbeddedServer(extra=("-c", str(config))) as server:

        def app_of(lease: str) -> JetJobs:
            login = {"url": server.url, "user": "limited", "password": "secret"}
            return JetJobs("test", settings=build_settings({"nats": login, "queues": {"lease": lease}}))

        async with app_of("30s") as app, app_of("5s") as lowering:
            await app.provision(["default"])
            with pytest.raises(AccessDenied, match=r"jobs\.control\.workers"):
                await lowering.provision(["default"])
            assert [c.wanted.label for c in await app.plan(["default"]) if c.action != "none"] == []
            await lowering.provision(["default"], force=True)
            assert [c.wanted.label for c in await lowering.plan(["default"]) if c.action != "none"] == []
