"""Jobs published without jetjobs: they run, get an id, fail and are dead-lettered like others."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from jetjobs import JetJobs, RetryPolicy, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.events import ConnectionLost, JobStarted, LaneTrouble
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)


# Anonymous jobs


async def test_an_anonymous_job_with_a_subject_and_a_json_object_runs_and_gets_an_id(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    seen: list[tuple[str, int]] = []

    @app.task
    async def greet(user: int) -> int:
        seen.append((current_job().id, user))
        return user

    async with provisioned(app):
        await truth.nc.publish("jobs.work.default.normal.greet", b'{"user": 7}')
        await truth.nc.publish("jobs.work.default.normal.greet", b'{"user": 8}')
        async with running(app.worker()):
            await probe.finished(2, "succeeded")
        records = await truth.done()
        assert sorted(user for _, user in seen) == [7, 8]
        assert {record["result"] for record in records.values()} == {7, 8}
        assert set(records) == {job_id for job_id, _ in seen}
        await truth.until_empty()


async def test_an_anonymous_job_with_a_message_id_runs_once_and_is_found_by_that_id(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def greet(user: int) -> int:
        return user

    async with provisioned(app):
        for _ in range(2):
            await truth.nc.publish(
                "jobs.work.default.normal.greet", b'{"user": 7}', headers={"Nats-Msg-Id": "visit-7"}
            )
        await truth.nc.publish(
            "jobs.work.default.normal.greet", b'{"user": 9}', headers={"Nats-Msg-Id": "no token!"}
        )
        async with running(app.worker()):
            await probe.finished(2, "succeeded")
            await truth.until_empty()
        records = await truth.done()
        assert records["visit-7"]["result"] == 7
        assert len(records) == 2
        assert len(probe.of(JobStarted)) == 2


async def test_a_failing_anonymous_job_keeps_its_id_through_retries(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    ids: list[str] = []

    @app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(milliseconds=10)))
    async def fragile() -> None:
        ids.append(current_job().id)
        raise RuntimeError("no")

    async with provisioned(app):
        await truth.nc.publish("jobs.work.default.low.fragile", b"{}")
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        letters = await truth.dead()
        assert len(ids) == 3
        assert set(ids) == set(letters)
        assert len(letters) == 1


@pytest.mark.parametrize(
    ("subject", "body", "reason"),
    [
        ("normal.greet", b"", "malformed"),
        ("normal.greet", b"not json", "malformed"),
        ("normal.greet", b"[1, 2]", "malformed"),
        ("normal.greet", b'"text"', "malformed"),
        ("normal.greet", b"\xff\xfe\x00", "malformed"),
        ("normal.greet", b'{"user":' + b"[" * 1_000_000, "malformed"),
        ("normal.greet", b'{"user": "seven"}', "invalid_arguments"),
        ("normal.greet", b'{"user": 1, "extra": 2}', "invalid_arguments"),
        ("normal.greet", b"{}", "invalid_arguments"),
        ("normal.absent", b"{}", "unknown_task"),
        ("normal.greet.only-six", b'{"user": 1}', "malformed"),
        ("normal.greet.bad-key.id", b'{"user": 1}', "malformed"),
        ("normal.greet.-.id.more", b'{"user": 1}', "malformed"),
        ("normal.greet", b'{"user": 1}', "malformed"),  # its header
    ],
)
@pytest.mark.settings(queues={"unknown_task_grace": 0})
async def test_jobs_that_cannot_run_are_dead_lettered_with_their_cause_and_other_jobs_keep_running(
    app: JetJobs, truth: Truth, probe: Probe, subject: str, body: bytes, reason: str
) -> None:
    @app.task
    async def greet(user: int) -> int:
        return user

    async with provisioned(app):
        headers = {"Jetjobs-Attempt": "many"} if body == b'{"user": 1}' else None
        await truth.nc.publish(f"jobs.work.default.{subject}", body, headers=headers)
        handle = await greet.enqueue(5)
        async with running(app.worker(slots=1)):
            assert await handle.result(SOON) == 5
            await probe.finished(1, "dead_lettered")
        (letter,) = (await truth.dead()).values()
        assert letter["reason"] == reason
        assert letter["body"] == body
        assert letter["text"]
        assert letter["headers"]["Jetjobs-Source"].startswith(f"jobs.work.default.{subject} ")
        await truth.until_empty()
        assert not probe.of(ConnectionLost)


async def test_a_subject_that_is_not_utf8_stops_neither_worker_nor_connection(
    app: JetJobs, server: EmbeddedServer, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def greet() -> str:
        return "hello"

    async with provisioned(app):
        port = int(server.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'CONNECT {"verbose":false}\r\nPUB jobs.work.default.normal.\xff\xfe 2\r\n{}\r\nPING\r\n')
        while await reader.readline() != b"PONG\r\n":
            pass
        writer.close()
        handle = await greet.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == "hello"
            await probe.finished(1, "dead_lettered")
        assert not probe.of(ConnectionLost)


# Large headers


async def test_an_anonymous_job_with_huge_headers_is_dead_lettered_with_all_of_them(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        big = {f"X-{n}": "ü" * 5000 for n in range(6)}
        await truth.nc.publish("jobs.work.default.normal.work", b"{}", headers=big)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        (letter,) = (await truth.dead()).values()
        assert letter["reason"] == "malformed"
        store = await truth.js.object_store("jobs-payloads")
        kept = json.loads((await store.get(letter["headers"]["Jetjobs-Payload-Headers"])).data or b"{}")
        assert big.items() <= kept.items()
        await truth.until_empty()


# Regressions


async def test_results_of_anonymous_jobs_are_kept_apart_when_the_stream_was_recreated(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def greet(name: str) -> str:
        return name

    async with provisioned(app):
        async with running(app.worker()):
            for name in ("old 1", "old 2"):
                await truth.nc.publish("jobs.work.default.normal.greet", json.dumps({"name": name}).encode())
            await probe.finished(2, "succeeded")
            await truth.js.delete_stream("jobs-work-default")
            await probe.wait(LaneTrouble)
            await app.provision()
            for name in ("new 1", "new 2"):
                await truth.js.publish("jobs.work.default.normal.greet", json.dumps({"name": name}).encode())
            await probe.finished(4, "succeeded", timeout=20)
        assert {r["result"] for r in (await truth.done()).values()} == {"old 1", "old 2", "new 1", "new 2"}


async def test_two_anonymous_jobs_with_the_same_id_are_both_kept_when_they_fail(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=200), jitter=False))
    async def work(n: int) -> int:
        if current_job().attempt == 1:
            raise RuntimeError("once")
        return n

    async with provisioned(app):
        for n in (1, 2):
            await truth.js.publish("jobs.work.default.normal.work.-.same", json.dumps({"n": n}).encode())
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
            await probe.finished(1, "dead_lettered")
        (letter,) = (await truth.dead()).values()
        kept = {json.loads(letter["body"])["n"], (await truth.done())["same"]["result"]}
        assert kept == {1, 2}
        assert "another live job has the id" in letter["text"]
