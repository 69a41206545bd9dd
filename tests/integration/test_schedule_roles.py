"""The users of the example configuration: who plans schedules, who changes them, and who may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import AccessDenied
from jetjobs.model.settings import build_settings
from tests.support.probe import eventually
from tests.support.roles import roles_config
from tests.support.workers import running

AppOf = Callable[[str], JetJobs]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(extra=("-c", str(roles_config(tmp_path)))) as server:
        yield server


@pytest.fixture
def app_of(guarded: EmbeddedServer) -> AppOf:
    def make(role: str) -> JetJobs:
        login = {"user": role, "password": "secret", "inbox_prefix": f"_INBOX_{role}"}
        app = JetJobs("t", settings=build_settings({"nats": {"url": guarded.url, **login}}))

        @app.task
        async def beat(scheduled_time: datetime) -> str:
            return scheduled_time.isoformat()

        if role == "worker":
            beat.every(timedelta(seconds=1))
        return app

    return make


async def ticked(app: JetJobs, name: str) -> bool:
    info = await app.schedules.get(name)
    return info.last is not None and info.last > datetime.now(UTC) - timedelta(seconds=30)


async def test_worker_and_operator_have_the_rights_they_need(guarded: EmbeddedServer, app_of: AppOf) -> None:
    async with app_of("setup") as setup:
        await setup.provision()
    async with app_of("worker") as working, app_of("operator") as operator:
        async with running(working.worker()):
            await eventually(lambda: _stored(operator, "beat"), 30)
            await eventually(lambda: ticked(operator, "beat"), 30)
            assert [info.schedule.declared_by for info in await operator.schedules.list()] == ["t"]
            await operator.schedules.put("mine", "beat", every=timedelta(seconds=1))
            await eventually(lambda: ticked(operator, "mine"), 30)
            assert (await operator.schedules.pause("mine")).state == "paused"
            assert (await operator.schedules.resume("mine")).state == "on"
            await operator.schedules.run_now("mine")
            await operator.schedules.delete("mine")
            await operator.schedules.pause("beat")
        found = await operator.doctor(only=["schedules"])
        assert {finding.level for finding in found} == {"ok"}, found
    assert [line for line in guarded.log().splitlines() if "Violation" in line] == []


async def test_a_worker_without_slots_needs_no_other_rights(guarded: EmbeddedServer, app_of: AppOf) -> None:
    async with app_of("setup") as setup:
        await setup.provision()
    async with app_of("worker") as planning, app_of("operator") as operator:
        leader = planning.worker(slots=0)
        leader.count_queues = True
        life = asyncio.create_task(leader.run())
        await eventually(lambda: _stored(operator, "beat"), 30)
        await eventually(lambda: ticked(operator, "beat"), 30)

        async def shown() -> bool:
            return bool(leader.queue_states) and "beat" in leader.schedule_lateness and leader.ready

        await eventually(shown, 30)
        leader.stop()
        await life
        assert not leader.ready
        assert leader.schedule_lateness == {}
    assert [line for line in guarded.log().splitlines() if "Violation" in line] == []


async def test_a_producer_may_neither_change_nor_see_schedules_and_gets_the_reason(app_of: AppOf) -> None:
    async with app_of("setup") as setup:
        await setup.provision()
    async with app_of("producer") as producer:
        with pytest.raises(AccessDenied):
            await producer.schedules.put("mine", "beat", every=timedelta(seconds=1))
        with pytest.raises(AccessDenied, match=r'publish to "\$JS\.API\.DIRECT\.GET\.KV_jobs-schedules"'):
            await producer.schedules.list()
        with pytest.raises(AccessDenied, match=r'publish to "\$JS\.API\.STREAM\.MSG\.GET\.KV_jobs-schedules"'):
            await producer.schedules.get("mine")


async def _stored(app: JetJobs, name: str) -> bool:
    return name in {info.schedule.name for info in await app.schedules.list()}
