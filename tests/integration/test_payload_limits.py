"""Bodies and results around the limits of the server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin import ReplayOutcome
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.messages import payloads as payloads_module
from jetjobs.model.errors import StorageFull
from jetjobs.model.events import ConnectionLost
from jetjobs.model.settings import build_settings
from tests.support.payloads import nothing_stored, text_of
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=30)
MB = 1_000_000
QUICK = RetryPolicy(max_attempts=2, base=timedelta(milliseconds=10))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that accepts messages of up to 40,000 bytes."""
    config = tmp_path / "small.conf"
    config.write_text("max_payload: 40000\n")
    with EmbeddedServer(extra=("-c", str(config))) as running_server:
        yield running_server


def app_on(server: EmbeddedServer, **groups: Any) -> tuple[JetJobs, Probe]:
    app, probe = JetJobs("t", settings=build_settings({**groups, "nats": {"url": server.url}})), Probe()
    app.observe(probe)
    return app, probe


async def test_bodies_and_results_around_every_limit_make_the_round_trip_and_close_no_connection(
    small: EmbeddedServer,
) -> None:
    app, probe = app_on(small)

    @app.task(retry=QUICK)
    async def echo(text: str) -> str:
        return text

    truth = await Truth.connect(small.url)
    async with provisioned(app):
        assert app.jetstream.connection.inline_limit == 20_000
        sizes = [at + d for at in (19_000, 20_000, 39_900, 40_000, 80_000, 131_072) for d in range(-700, 701, 175)]
        async with running(app.worker()):
            handles = [await echo.enqueue(text_of(size)) for size in sizes]
            report = await app.enqueue_many([echo.bind(text_of(size)) for size in sizes])
            assert report.refused == []
            for size, handle in zip(sizes * 2, handles + report.stored, strict=True):
                assert await handle.result(SOON) == text_of(size)
            await probe.finished(2 * len(sizes), "succeeded", timeout=30)
        assert all(".result-" in name for name in await truth.objects())
        await truth.until_empty()
        assert not probe.of(ConnectionLost)
    await truth.close()


async def test_anonymous_jobs_around_the_limit_of_the_server_fail_twice_die_and_are_replayed_completely(
    small: EmbeddedServer,
) -> None:
    app, probe = app_on(small)
    seen: dict[str, list[str]] = {}
    fail = True

    @app.task(retry=QUICK)
    async def swallow(name: str, text: str) -> None:
        seen.setdefault(name, []).append(hashlib.sha256(text.encode()).hexdigest())
        if fail:
            raise RuntimeError("not yet " * 200)

    truth = await Truth.connect(small.url)
    expected = {}
    async with provisioned(app):
        for short_by in (0, 1, 50, 100, 400, 900, 2000, 5000, 12_000, 19_999):
            bare = json.dumps({"name": f"j{short_by}", "text": ""})
            text = text_of(40_000 - short_by - len(bare))
            expected[f"j{short_by}"] = hashlib.sha256(text.encode()).hexdigest()
            body = json.dumps({"name": f"j{short_by}", "text": text}).encode()
            assert len(body) == 40_000 - short_by
            await truth.nc.publish("jobs.work.default.normal.swallow", body)
        async with running(app.worker()):
            await probe.finished(len(expected), "dead_lettered", timeout=30)
            fail = False
            for letter in [letter async for letter in app.dead.list()]:
                assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
            await probe.finished(len(expected), "succeeded", timeout=30)
        assert seen == {name: [digest] * 3 for name, digest in expected.items()}
        assert not probe.of(ConnectionLost)
        assert (await truth.dead(), await truth.jobs()) == ({}, [])
        await eventually(lambda: nothing_stored(truth), timeout=30)
    await truth.close()


async def test_full_storage_refuses_a_large_job_and_stores_nothing_of_it(tmp_path: Path) -> None:
    config = tmp_path / "full.conf"
    config.write_text("jetstream { max_file_store: 6000000 }\n")
    with EmbeddedServer(extra=("-c", str(config))) as tight:
        app, probe = app_on(tight)

        @app.task
        async def work(text: str) -> int:
            return len(text)

        @app.task
        async def give() -> str:
            return text_of(8 * MB)

        truth = await Truth.connect(tight.url)
        async with provisioned(app):
            with pytest.raises(StorageFull, match="store 8,000,011 bytes in jobs-payloads"):
                await work.enqueue(text_of(8 * MB))
            assert await nothing_stored(truth)
            await truth.until_empty()
            async with running(app.worker()):
                assert await (await work.enqueue(text_of(2 * MB))).result(SOON) == 2 * MB
                # The storage has no space for the result: the work is done, so the job ends without a record.
                handle = await give.enqueue()
                await probe.finished(2, "succeeded", timeout=30)
            assert handle.id not in await truth.done()
            assert (await truth.jobs(), await truth.dead()) == ([], {})
            assert await nothing_stored(truth)
        await truth.close()


def test_the_limit_is_64_mib() -> None:
    assert payloads_module.MAX_OBJECT == 64 * 1024 * 1024
