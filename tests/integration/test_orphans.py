"""The sweep of the object store removes unreferenced objects, and nothing else."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin import ReplayOutcome
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from jetjobs.worker.leader.maintenance import sweep_orphans
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, running

ONCE = RetryPolicy(max_attempts=1)
BIG = "x" * 1_200_000
ANY_AGE = -60.0
"""Older than a minute from now: every object is."""


def labels(job_id: str, run: str = "r1", queue: str = "default") -> dict[str, str]:
    return {"queue": queue, "task": "work", "id": job_id, "run": run}


async def test_the_sweep_removes_orphans_and_nothing_else(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(retry=ONCE)
    async def work(text: str) -> str:
        if text.endswith("die"):
            raise RuntimeError("dead")
        return text

    async with provisioned(app):
        jetstream = app.jetstream
        dead = await work.options(job_id="dead").enqueue(BIG + "die")
        done = await work.options(job_id="done").enqueue(BIG)
        huge = {f"X-{n}": "ü" * 5000 for n in range(6)}
        await truth.nc.publish("jobs.work.default.normal.work", b"{}", headers={**huge, "Nats-Msg-Id": "huge"})
        async with running(app.worker()):
            await probe.finished(2, "dead_lettered", timeout=30)
            await probe.finished(1, "succeeded", timeout=30)
        live = await work.options(job_id="live").enqueue(BIG)
        later = await work.options(job_id="later", delay=timedelta(hours=1)).enqueue(BIG)
        store = await truth.js.object_store("jobs-payloads")
        await store.put("theirs", b"not ours")
        await truth.js.publish("$O.jobs-payloads.C.theirs", b"not ours either")
        needed = set(await truth.objects())
        assert {f"{h.id}.{h.run}" for h in (dead, live, later)} < needed
        assert len(needed) == 6  # the others: a result, the headers of the malformed job, a foreign object

        for name, whose in (
            ("unknown.r1", labels("unknown")),
            ("live.r1", labels("live")),
            ("dead.r1", labels("dead")),
            ("done.r1.result-1-1", labels("done")),
        ):
            await jetstream.payloads.put(name, b"y" * 200_000, whose)
        await jetstream.payloads.put("gone.r1", b"z", labels("gone", queue="removed"))
        headers = {"Jetjobs-Object": "half.r1"}
        await truth.js.publish("$O.jobs-payloads.C.half", b"half an object", headers=headers)

        assert await sweep_orphans(jetstream) == 0, "all are younger than an hour"
        assert len(await truth.objects()) == 11
        assert await sweep_orphans(jetstream, ANY_AGE) == 5
        kept = needed | {"gone.r1"}  # its queue is missing and may be restored
        entries = await truth.objects()
        assert set(entries) == kept
        assert set(await truth.chunks()) == {entry["nuid"] for entry in entries.values()} | {"theirs"}
        assert await sweep_orphans(jetstream, ANY_AGE) == 0
        assert done.id in await truth.done()
        async with running(app.worker()):
            assert await live.result(timedelta(seconds=30)) == BIG


async def test_the_body_of_an_expired_dead_letter_is_removed(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(retry=ONCE)
    async def work(text: str) -> None:
        raise RuntimeError("dead")

    async with provisioned(app):
        await work.enqueue(BIG)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
        assert await sweep_orphans(app.jetstream, ANY_AGE) == 0
        await truth.api("STREAM.PURGE.jobs-dead")
        assert await sweep_orphans(app.jetstream, ANY_AGE) == 1
        assert (await truth.objects(), await truth.chunks()) == ({}, {})


async def test_many_pages_of_objects_are_swept(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        put = app.jetstream.payloads.put
        await asyncio.gather(*(put(f"o{n}", b"x", labels(f"o{n}")) for n in range(300)))  # more than one page
        assert await sweep_orphans(app.jetstream, ANY_AGE) == 300
        assert (await truth.objects(), await truth.chunks()) == ({}, {})


async def test_jobs_that_die_and_are_replayed_during_a_sweep_keep_their_bodies(tmp_path: Path) -> None:
    config = tmp_path / "small.conf"
    config.write_text("max_payload: 40000\n")
    with EmbeddedServer(extra=("-c", str(config))) as server:
        app, probe = JetJobs("t", settings=build_settings({"nats": {"url": server.url}})), Probe()
        app.observe(probe)
        fail = True

        @app.task(retry=ONCE)
        async def work(text: str) -> None:
            if fail:
                raise RuntimeError("not yet")

        async def sweep_on() -> None:
            while True:
                assert await sweep_orphans(app.jetstream, ANY_AGE) == 0
                await asyncio.sleep(0.01)

        async with provisioned(app):
            await app.enqueue_many([work.bind("x" * 30_000) for _ in range(20)])
            async with running(app.worker()):
                await probe.finished(20, "dead_lettered", timeout=30)
                sweeping = asyncio.create_task(sweep_on())
                for round_ in range(1, 4):
                    for letter in [letter async for letter in app.dead.list()]:
                        assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
                    await probe.finished(20 * (round_ + 1), "dead_lettered", timeout=30)
                assert not sweeping.done(), sweeping
                sweeping.cancel()
                await asyncio.gather(sweeping, return_exceptions=True)
                fail = False
                for letter in [letter async for letter in app.dead.list()]:
                    assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
                await probe.finished(20, "succeeded", timeout=30)
