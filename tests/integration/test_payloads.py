"""Arguments and results too large for a message are kept in the object store."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, JobFailed, RetryPolicy
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import EnqueueUnconfirmed, QueueNotFound, ResultExpired
from jetjobs.jetstream import client
from jetjobs.model.events import ConnectionLost, JobFinished
from tests.conftest import MakeApp
from tests.support.payloads import nothing_stored, text_of
from tests.support.probe import Probe, eventually, wait_until
from tests.support.proxy import Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=30)
MB = 1_000_000
LABELS = {"queue": "default", "task": "work", "id": "u1", "run": "r1"}


async def test_a_20_mb_argument_and_a_20_mb_result_make_the_round_trip(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def turn(text: str) -> str:
        return text[::-1]

    text = text_of(20 * MB)
    async with provisioned(app):
        handle = await turn.enqueue(text)
        assert set(await truth.objects()) == {f"{handle.id}.{handle.run}"}
        (subject,) = await truth.jobs()
        message = await truth.js.get_last_msg("jobs-work-default", subject)
        assert not message.data
        async with running(app.worker()):
            assert await handle.result(SOON) == text[::-1]
            await probe.finished(1, "succeeded")
        record = (await truth.done())[handle.id]
        assert "result" not in record
        entries = await truth.objects()
        assert set(entries) == {record["result_object"]}  # the argument is deleted with its job
        assert entries[record["result_object"]]["size"] == 20 * MB + 2
        assert not probe.of(ConnectionLost)


async def test_a_large_result_expires_with_its_record(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(result_ttl=timedelta(seconds=500))
    async def work() -> str:
        return text_of(2 * MB)

    async with provisioned(app):
        async with running(app.worker()):
            handle = await work.enqueue()
            # Read again from the record alone, without the notification.
            assert len(await handle.result(SOON)) == len(await handle.result(SOON)) == 2 * MB
        stored = await truth.subjects("OBJ_jobs-payloads", "$O.>")
        for subject in stored:
            message = await truth.js.get_last_msg("OBJ_jobs-payloads", subject)
            assert (message.headers or {})["Nats-TTL"] == "560s"
        (name,) = await truth.objects()
        await app.jetstream.payloads.delete(name)
        with pytest.raises(ResultExpired, match="its result is gone"):
            await handle.result(SOON)


async def test_the_first_record_of_a_run_is_kept_and_a_second_large_result_is_dropped(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    may_end = asyncio.Event()
    ran: list[int] = []

    @app.task
    async def work() -> str:
        ran.append(1)
        await may_end.wait()
        return text_of(2 * MB)

    async with provisioned(app):
        async with running(app.worker()):
            handle = await work.enqueue()
            await wait_until(lambda: bool(ran), timeout=30)
            record = {"state": "succeeded", "run": handle.run, "result": "first"}
            await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", json.dumps(record).encode())
            may_end.set()
            await probe.finished(1, "succeeded", timeout=30)
            assert await handle.result(SOON) == "first"
        assert await nothing_stored(truth)


async def test_enqueue_many_accepts_small_and_large_jobs_together(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    seen: dict[int, str] = {}

    @app.task(store_result=False)
    async def work(n: int, text: str) -> None:
        seen[n] = hashlib.sha256(text.encode()).hexdigest()

    texts = [text_of(1_500_000 + n) if n % 5 == 0 else text_of(10 + n) for n in range(30)]
    async with provisioned(app):
        requests = [work.bind(n, text) for n, text in enumerate(texts)]
        keyed = work.options(key="k", delay=timedelta(hours=1))
        requests += [keyed.bind(30, texts[0]), keyed.bind(31, texts[0])]  # either may be the first
        report = await app.enqueue_many(requests)
        assert report.refused == []
        assert [handle.duplicate for handle in report.stored[:30]] == [False] * 30
        (later,) = [handle for handle in report.stored[30:] if not handle.duplicate]
        assert len(await truth.jobs()) == 31
        assert len(await truth.objects()) == 7
        async with running(app.worker()):
            await probe.finished(30, "succeeded", timeout=30)
        assert seen == {n: hashlib.sha256(text.encode()).hexdigest() for n, text in enumerate(texts)}
        assert set(await truth.objects()) == {f"{later.id}.{later.run}"}


async def test_a_taken_key_leaves_no_object_of_the_second_job(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work(text: str) -> None: ...

    async with provisioned(app):
        handles = await asyncio.gather(*(work.options(key="k").enqueue(text_of(1_500_000 + n)) for n in range(6)))
        assert len({handle.id for handle in handles}) == 1
        (first,) = [handle for handle in handles if not handle.duplicate]
        assert (await work.options(key="k").enqueue(text_of(1_500_000))).duplicate
        assert set(await truth.objects()) == {f"{first.id}.{first.run}"}
        assert len(await truth.chunks()) == 1


async def test_a_refused_message_leaves_no_object(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work(text: str) -> None: ...

    async with provisioned(app):
        chosen: tuple[dict[str, Any], ...] = ({}, {"key": "k"}, {"delay": timedelta(hours=1)})
        for options in chosen:
            with pytest.raises(QueueNotFound):
                await work.options(queue="nowhere", **options).enqueue(text_of(1_500_000))
        report = await app.enqueue_many([work.options(queue="nowhere").bind(text_of(1_500_000))])
        assert [type(refusal.error) for refusal in report.refused] == [QueueNotFound]
        assert await nothing_stored(truth)


async def test_an_unconfirmed_message_keeps_its_object(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 2.0)
    proxy = Proxy(server.url)
    async with proxy.running(), make_app(nats={"url": proxy.url}) as app:

        @app.task
        async def work(text: str) -> None: ...

        await app.provision()
        proxy.to_client = lambda data: b"" if b'"stream":"jobs-work-default"' in data else data
        with pytest.raises(EnqueueUnconfirmed) as caught:
            await work.enqueue(text_of(1_500_000))
        proxy.to_client = lambda data: data
        (name,) = await truth.objects()
        assert name.startswith(f"{caught.value.job_id}.")
        assert len(await truth.jobs()) == 1


async def test_a_retried_large_job_keeps_its_one_object_until_it_succeeds(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []
    stored: list[set[str]] = []

    @app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(milliseconds=10)))
    async def work(text: str) -> None:
        sizes.append(len(text))
        stored.append(set(await truth.objects()))
        if len(sizes) < 3:
            raise RuntimeError("not yet")

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        async with running(app.worker()):
            await probe.finished(1, "succeeded", timeout=30)
        assert sizes == [2 * MB] * 3
        assert stored == [{f"{handle.id}.{handle.run}"}] * 3
        assert await nothing_stored(truth)


async def test_a_job_with_a_missing_object_is_dead_lettered_with_the_cause(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work(text: str) -> None: ...

    @app.task
    async def small() -> str:
        return "fine"

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        (name,) = await truth.objects()
        await app.jetstream.payloads.delete(name)
        async with running(app.worker()):
            with pytest.raises(JobFailed, match="is not in jobs-payloads") as caught:
                await handle.result(SOON)
            assert caught.value.reason == "malformed"
            assert await (await small.enqueue()).result(SOON) == "fine"
        letter = (await truth.dead())[handle.id]
        assert (letter["reason"], letter["headers"]["Jetjobs-Payload"]) == ("malformed", name)
        await truth.until_empty()


async def test_a_second_copy_of_an_ended_job_is_acked_although_its_body_is_deleted(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work(text: str) -> int:
        return len(text)

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        (subject,) = await truth.jobs()
        message = await truth.js.get_last_msg("jobs-work-default", subject)
        async with running(app.worker()):
            assert await handle.result(SOON) == 2 * MB

            async def no_jobs() -> bool:
                return not await truth.jobs() and not await truth.objects()

            await eventually(no_jobs, timeout=30)
            headers = {k: v for k, v in (message.headers or {}).items() if not k.startswith("Nats-")}
            await truth.js.publish(subject, b"", headers=headers)
            await eventually(no_jobs, timeout=30)
        assert await truth.dead() == {}
        assert len(probe.of(JobFinished)) == 1


async def test_a_lost_ack_keeps_the_body_for_the_next_run(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth
) -> None:
    proxy = Proxy(server.url)
    sizes: list[int] = []
    lost: list[bytes] = []

    def lose_one_ack(data: bytes) -> bytes:
        if b"+ACK" in data and b"$JS.ACK." in data and not lost:
            lost.append(data)
            return data.replace(b"$JS.ACK.", b"$JS.XXX.")
        return data

    async with proxy.running(), make_app(nats={"url": proxy.url}, queues={"lease": "2s"}) as app:
        probe = Probe()
        app.observe(probe)

        @app.task(store_result=False)  # so that no record shows its end
        async def work(text: str) -> None:
            sizes.append(len(text))

        await app.provision()
        await work.enqueue(text_of(2 * MB))
        proxy.to_server = lose_one_ack
        async with running(app.worker()):
            await probe.finished(2, "succeeded", timeout=40)
        assert lost
        assert sizes == [2 * MB] * 2
        assert (await truth.jobs(), await truth.dead()) == ([], {})
        assert await nothing_stored(truth)


async def test_an_unavailable_object_store_delays_the_job_and_uses_up_no_attempt(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> int:
        return len(text)

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        (name,) = await truth.objects()
        body = await app.jetstream.payloads.get(name)
        await truth.js.delete_stream("OBJ_jobs-payloads")
        worker = app.worker()
        async with running(worker):
            await probe.finished(1, "snoozed", timeout=30)
            assert len(await truth.jobs(lane="retry")) == 1
            await app.provision()  # for example restored from a backup
            await app.jetstream.payloads.put(name, body, {**LABELS, "id": handle.id, "run": handle.run})
            assert await handle.result(SOON) == 2 * MB
        (done,) = probe.of(JobFinished, lambda event: event.outcome == "succeeded")
        assert done.attempt == 1


async def test_a_reused_id_does_not_touch_the_body_of_a_dead_job(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> int:
        if text.endswith("die"):
            raise RuntimeError("dead")
        return len(text)

    async with provisioned(app):
        named = work.options(job_id="same")
        first = await named.enqueue(text_of(2 * MB) + "die")
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
            second = await named.enqueue(text_of(2 * MB))
            assert await second.result(SOON) == 2 * MB
            await probe.finished(1, "succeeded", timeout=30)
        assert set(await truth.objects()) == {f"same.{first.run}"}
        letter = await app.dead.get("same")
        assert letter is not None
        assert await app.dead.delete(letter)
        assert await nothing_stored(truth)
