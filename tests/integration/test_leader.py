"""The leader lock and the leader: one holds it, another takes over, overdue jobs are moved to their lane."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.jetstream import leader_lock as leader_module
from jetjobs.jetstream.leader_lock import LeaderLock
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import StorageFull
from jetjobs.worker.leader.duty_runner import Duty, DutyResult, DutyRunner
from jetjobs.worker.leader.overdue_jobs import sweep_overdue
from tests.support.probe import background, eventually
from tests.support.server import Truth, server_of
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)


def lock(app: JetJobs, name: str = "a") -> LeaderLock:
    jetstream = app.jetstream
    return LeaderLock(jetstream.connection, jetstream.publisher, jetstream.names.locks_bucket, name)


async def test_one_of_many_holds_the_lock_and_renews_it(app: JetJobs, truth: Truth) -> None:
    async with provisioned(app):
        many = [lock(app) for _ in range(8)]  # all of one name
        got = await asyncio.gather(*(one.try_lock() for one in many))
        assert sum(got) == sum(one.held for one in many) == 1
        holder = many[got.index(True)]
        for _ in range(3):
            assert await holder.try_lock()
        assert not any([await one.try_lock() for one in many if one is not holder])
        stored = await truth.js.get_last_msg("KV_jobs-locks", "$KV.jobs-locks.leader")
        assert (stored.headers or {}).get("Nats-TTL") == "15s"


async def test_it_is_free_at_once_when_it_is_released_and_after_its_ttl_when_not(
    app: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "TTL_S", 2.0)
    async with provisioned(app):
        first, second = lock(app, "a"), lock(app, "b")
        assert await first.try_lock()
        await first.release()
        assert not first.held
        assert await second.try_lock()
        await eventually(first.try_lock)  # second has fallen silent
        assert not await second.try_lock()
        assert not second.held


async def test_a_holder_whose_key_has_expired_must_win_it_again(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provisioned(app):
        first, second = lock(app, "a"), lock(app, "b")
        assert await first.try_lock()
        await truth.js.purge_stream("KV_jobs-locks", subject="$KV.jobs-locks.leader")
        assert await second.try_lock()
        assert not await first.try_lock()
        assert not first.held


async def test_the_leader_does_its_duties_and_another_follows_it(app: JetJobs) -> None:
    done: list[str] = []

    def leader(name: str) -> DutyRunner:
        async def work() -> DutyResult:
            done.append(name)
            return DutyResult(0)

        duty = Duty("work", 3600.0, work)
        return DutyRunner(lock(app, name), [duty])

    async with provisioned(app):
        first, second = leader("a"), leader("b")

        async def worked(name: str) -> bool:
            (first if name == "a" else second).request("work", 0.0)
            return name in done

        async with contextlib.AsyncExitStack() as until_the_end:
            async with background(first.run()):
                await eventually(lambda: worked("a"))
                await until_the_end.enter_async_context(background(second.run()))
            await eventually(lambda: worked("b"), 30)


async def test_a_duty_that_fails_is_done_again_and_costs_nothing_else(app: JetJobs) -> None:
    calls: list[str] = []

    async def broken() -> DutyResult:
        calls.append("broken")
        raise StorageFull("full")

    async def sound() -> DutyResult:
        calls.append("sound")
        return DutyResult(0)

    async with provisioned(app):
        leader = DutyRunner(lock(app), [Duty("broken", 3600.0, broken), Duty("sound", 3600.0, sound)])

        async def often() -> bool:
            leader.request("broken", 0.0)
            leader.request("sound", 0.0)
            return calls.count("broken") >= 2 and calls.count("sound") >= 2

        async with background(leader.run()):
            await eventually(often)


async def test_jobs_that_fell_due_while_storage_was_full_are_fired_by_the_sweep(tmp_path: Path) -> None:
    async with server_of(tmp_path, "jetstream { max_file_store: 20MB }") as (app, truth):

        @app.task
        async def work(n: int) -> int:
            return n

        async with provisioned(app):
            await truth.api(
                "STREAM.CREATE.ballast", {"name": "ballast", "subjects": ["ballast"], "num_replicas": 1}
            )
            handles = [await work.options(delay=timedelta(seconds=1)).enqueue(n) for n in range(10)]
            # One that was delivered before, and waits again.
            headers = {
                "Nats-Schedule": f"@at {(datetime.now(UTC) + timedelta(seconds=1)).isoformat()}",
                "Nats-Schedule-Target": "jobs.work.default.normal.work.-.again",
            }
            await truth.js.publish("jobs.work.default.retry.work.-.again", b'{"n": 10}', headers=headers)
            await fill(truth)

            await eventually(lambda: is_late(app, handles[0].id))
            assert len(await truth.jobs(lane="later")) == 10  # passed by
            await truth.js.purge_stream("ballast")
            assert await sweep_overdue(app.jetstream, "default", late_s=0.5) == DutyResult(11)
            assert await truth.jobs(lane="later") == await truth.jobs(lane="retry") == []
            async with running(app.worker()):
                assert [await handle.result(SOON) for handle in handles] == list(range(10))
                assert await (await app.job("again")).result(SOON) == 10
            assert await sweep_overdue(app.jetstream, "default", late_s=0.5) == DutyResult(0)
            await truth.until_empty()


async def fill(truth: Truth) -> None:
    """Write until the server refuses, large first, then small."""
    for size in (1_000_000, 100_000, 1_000, 10):
        while "error" not in (await truth.nc.request("ballast", b"x" * size, timeout=5)).data.decode():
            pass


async def is_late(app: JetJobs, job_id: str) -> bool:
    """Whether a second has passed since the job was due, by the server's clock."""
    found = await app.jetstream.locator.find_live("default", "work", job_id)
    assert found is not None
    info = await app.jetstream.connection.api(api.stream_info("jobs-work-default"))
    return api.parse_time(info["ts"]) > float(found.headers["Jetjobs-Due-At"]) + 1.0
