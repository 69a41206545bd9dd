"""Arguments and results too large for a message: stored whole, read whole, removed with their job."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import (
    EnqueueUnconfirmed,
    JetJobs,
    JobFailed,
    QueueNotFound,
    ResultExpired,
    RetryPolicy,
)
from jetjobs.admin.dead_letters import ReplayOutcome
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream import client
from jetjobs.jetstream.messages import payloads as payloads_module
from jetjobs.model.errors import BrokerUnavailable, MalformedJob, StorageFull
from jetjobs.model.events import ConnectionLost, JobFinished
from jetjobs.model.settings import build_settings
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.proxy import Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=30)
MB = 1_000_000
LABELS = {"queue": "default", "task": "work", "id": "u1", "run": "r1"}
QUICK = RetryPolicy(max_attempts=2, base=timedelta(milliseconds=10))


def text_of(size: int) -> str:
    """Text whose pieces differ, so that a lost or swapped chunk is seen."""
    return "".join(f"{number:08d}" for number in range(size // 8 + 1))[:size]


def bytes_of(size: int) -> bytes:
    return text_of(size).encode()


async def nothing_stored(truth: Truth) -> bool:
    return not await truth.objects() and not await truth.chunks()


# The store itself


async def test_an_object_is_read_as_it_was_written_whatever_its_size(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        store = app.jetstream.payloads
        for size in (0, 1, 131_071, 131_072, 131_073, 3_000_000):
            data = bytes_of(size)
            await store.put(f"o{size}", data, LABELS)
            assert await store.get(f"o{size}") == data
        entry = (await truth.objects())["o131073"]
        assert (entry["chunks"], entry["size"]) == (2, 131_073)
        assert (await truth.chunks())[entry["nuid"]] == 2


async def test_other_clients_read_what_we_wrote_and_we_read_what_they_wrote(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        data = bytes_of(1_234_567)
        await app.jetstream.payloads.put("ours.1", data, LABELS)
        store = await truth.js.object_store("jobs-payloads")
        found = await store.get("ours.1")
        assert found.data == data
        assert (found.info.size, found.info.chunks, found.info.deleted) == (1_234_567, 10, False)
        await store.put("theirs", data)
        assert await app.jetstream.payloads.get("theirs") == data
        await store.delete("theirs")
        with pytest.raises(MalformedJob, match="'theirs' is not in jobs-payloads"):
            await app.jetstream.payloads.get("theirs")
        assert {entry.name for entry in await store.list(ignore_deletes=True)} == {"ours.1"}


async def test_a_put_takes_the_place_of_an_older_one_and_leaves_none_of_its_chunks(
    app: JetJobs, truth: Truth
) -> None:
    async with app:
        await app.provision(["default"])
        store = app.jetstream.payloads
        await store.put("o", bytes_of(500_000), LABELS)
        await store.put("o", bytes_of(300_000), LABELS)
        assert await store.get("o") == bytes_of(300_000)
        await store.put("o", bytes_of(300_000), LABELS)  # repeated
        assert await truth.chunks() == {(await truth.objects())["o"]["nuid"]: 3}
        await asyncio.gather(*(store.put("o", bytes_of(200_000 + n), LABELS) for n in range(8)))
        assert len(await store.get("o")) in range(200_000, 200_008)
        assert list(await truth.chunks()) == [(await truth.objects())["o"]["nuid"]]


async def test_a_deleted_object_leaves_nothing_behind(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        store = app.jetstream.payloads
        await store.put("o", bytes_of(500_000), LABELS)
        await store.delete("o")
        await store.delete("o")
        assert (await truth.api("STREAM.INFO.OBJ_jobs-payloads"))["state"]["messages"] == 0


@pytest.mark.parametrize("fault", ["a chunk is gone", "a chunk was changed", "no entry", "an entry is no JSON"])
async def test_a_broken_object_is_malformed_and_says_how(app: JetJobs, truth: Truth, fault: str) -> None:
    async with app:
        await app.provision(["default"])
        store = app.jetstream.payloads
        await store.put("o", bytes_of(500_000), LABELS)
        nuid = (await truth.objects())["o"]["nuid"]
        (subject,) = await truth.subjects("OBJ_jobs-payloads", "$O.jobs-payloads.M.>")
        if fault in ("a chunk is gone", "a chunk was changed"):
            await truth.api("STREAM.MSG.DELETE.OBJ_jobs-payloads", {"seq": 4})
        if fault == "a chunk was changed":
            await truth.js.publish(f"$O.jobs-payloads.C.{nuid}", b"x" * (500_000 - 3 * 131_072))
        if fault == "no entry":
            await truth.api("STREAM.PURGE.OBJ_jobs-payloads", {"filter": subject})
        if fault == "an entry is no JSON":
            await truth.js.publish(subject, b"{", headers={"Nats-Rollup": "sub"})
        said = {"a chunk is gone": "3 of 4 chunks", "a chunk was changed": "the digest differs"}
        with pytest.raises(MalformedJob, match=said.get(fault, "is not in")):
            await store.get("o")


async def test_a_chunk_whose_confirmation_is_lost_is_stored_once(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth
) -> None:
    proxy = Proxy(server.url)
    lost: list[bytes] = []

    def lose_one(data: bytes) -> bytes:
        if b'"stream":"OBJ_jobs-payloads"' in data and b'"seq":2' in data and not lost:
            lost.append(data)
            return b""
        return data

    async with proxy.running(), make_app(nats={"url": proxy.url}) as app:
        await app.provision(["default"])
        proxy.to_client = lose_one
        await app.jetstream.payloads.put("o", bytes_of(500_000), LABELS)
        assert lost
        assert await app.jetstream.payloads.get("o") == bytes_of(500_000)
        assert list((await truth.chunks()).values()) == [4]


async def test_reading_and_writing_outlast_a_server_restart(
    make_app: MakeApp, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 45.0)
    async with make_app() as app:
        await app.provision(["default"])
        store = app.jetstream.payloads
        await store.put("o", bytes_of(500_000), LABELS)
        server.kill()
        reading = asyncio.create_task(store.get("o"))
        writing = asyncio.create_task(store.put("p", bytes_of(400_000), LABELS))
        await asyncio.sleep(0)
        server.start()
        assert await reading == bytes_of(500_000)
        await writing
        assert await store.get("p") == bytes_of(400_000)


@pytest.mark.patient
async def test_a_server_that_stays_away_is_a_broker_error_and_not_a_missing_object(
    make_app: MakeApp, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 1.0)
    async with make_app() as app:
        await app.provision(["default"])
        await app.jetstream.payloads.put("o", bytes_of(500_000), LABELS)
        server.stop()
        with pytest.raises(BrokerUnavailable):
            await app.jetstream.payloads.get("o")
        with pytest.raises(BrokerUnavailable, match="store 10 bytes in jobs-payloads"):
            await app.jetstream.payloads.put("p", bytes_of(10), LABELS)
        server.start()


async def test_an_object_with_a_ttl_expires_whole(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        await app.jetstream.payloads.put("o", bytes_of(500_000), LABELS, ttl_s=1)
        assert (await truth.api("STREAM.INFO.OBJ_jobs-payloads"))["state"]["last_seq"] == 5

        async def gone() -> bool:
            return await nothing_stored(truth)

        await eventually(gone, timeout=30)


# Arguments


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
        assert set(entries) == {record["result_object"]}  # the argument is gone with its job
        assert entries[record["result_object"]]["size"] == 20 * MB + 2
        assert not probe.of(ConnectionLost)


async def test_a_large_result_has_the_life_of_its_record(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(result_ttl=timedelta(seconds=500))
    async def work() -> str:
        return text_of(2 * MB)

    async with provisioned(app):
        async with running(app.worker()):
            handle = await work.enqueue()
            # A second look, without the push: by the record alone.
            assert len(await handle.result(SOON)) == len(await handle.result(SOON)) == 2 * MB
        stored = await truth.subjects("OBJ_jobs-payloads", "$O.>")
        for subject in stored:
            message = await truth.js.get_last_msg("OBJ_jobs-payloads", subject)
            assert (message.headers or {})["Nats-TTL"] == "560s"
        (name,) = await truth.objects()
        await app.jetstream.payloads.delete(name)
        with pytest.raises(ResultExpired, match="its result is gone"):
            await handle.result(SOON)


async def test_the_first_record_of_a_run_stays_and_a_second_large_result_is_dropped(
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

            async def started() -> bool:
                return bool(ran)

            await eventually(started, timeout=30)
            record = {"state": "succeeded", "run": handle.run, "result": "first"}
            await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", json.dumps(record).encode())
            may_end.set()
            await probe.finished(1, "succeeded", timeout=30)
            assert await handle.result(SOON) == "first"
        assert await nothing_stored(truth)


async def test_enqueue_many_takes_small_and_large_jobs_together(app: JetJobs, truth: Truth, probe: Probe) -> None:
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


async def test_a_missing_object_makes_its_job_dead_with_the_cause(
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


async def test_a_second_copy_of_a_job_that_has_ended_is_let_go_though_its_body_is_gone(
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


async def test_a_lost_ack_leaves_the_body_for_the_run_that_follows(
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

        @app.task(store_result=False)  # so no record says that it has ended
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


async def test_a_store_that_is_away_puts_the_job_off_and_spends_nothing(
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
            await app.provision()  # restored from a backup, say
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


# Dead letters


async def test_a_large_dead_letter_is_shown_carried_off_brought_back_and_replayed(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> None:
        sizes.append(len(text))
        if len(sizes) == 1:
            raise RuntimeError("not yet")

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
            (letter,) = [letter async for letter in app.dead.list()]
            assert (letter.id, letter.body, letter.payload) == (handle.id, b"", f"{handle.id}.{handle.run}")
            exported = json.loads(json.dumps(await app.dead.to_json(letter)))
            assert await app.dead.delete(letter)
            assert await nothing_stored(truth)
            with pytest.raises(ValueError, match="it needs the objects"):
                await app.dead.from_json({**exported, "objects": {**exported["objects"], "other": "eA=="}})
            assert await nothing_stored(truth)
            assert await app.dead.from_json(exported)
            assert not await app.dead.from_json(exported)
            assert set(await truth.objects()) == {letter.payload}  # and no other that the file may bring
            again = await app.dead.get(handle.id)
            assert again is not None
            assert (await app.dead.replay(again)).outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded", timeout=30)
        assert sizes == [2 * MB] * 2

        async def gone() -> bool:
            return await nothing_stored(truth)

        await eventually(gone, timeout=30)


async def test_a_replay_takes_the_object_over_and_an_interrupted_one_is_finished(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    fail = True

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> int:
        if fail:
            raise RuntimeError("not yet")
        return len(text)

    async with provisioned(app):
        handle = await work.enqueue(text_of(2 * MB))
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
        entry = await truth.objects()
        letter = await app.dead.get(handle.id)
        assert letter is not None
        stored = await truth.js.get_last_msg("jobs-dead", f"jobs.dead.default.work.{handle.id}")
        assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
        assert await truth.objects() == entry  # not copied
        # As if we had died before the letter was removed: it stands beside the live job.
        headers = {k: v for k, v in (stored.headers or {}).items() if not k.startswith("Nats-")}
        await truth.js.publish(stored.subject or "", b"", headers=headers)
        fail = False
        async with running(app.worker()):
            await probe.finished(1, "succeeded", timeout=30)
        assert await truth.objects() == entry  # the letter needs it still
        left = await app.dead.get(handle.id)
        assert left is not None
        assert await app.dead.delete(left)
        assert await nothing_stored(truth)


async def test_edited_arguments_may_be_large_and_another_queue_gets_a_body_of_its_own(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work(text: str) -> None:
        sizes.append(len(text))
        if len(text) < 2 * MB:
            raise RuntimeError("too short")

    @app.task(queue="other")
    async def elsewhere() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue(text_of(MB + 400_000))
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered", timeout=30)
        letter = await app.dead.get(handle.id)
        assert letter is not None
        refused = await app.dead.replay(letter, to_queue="nowhere")
        assert refused.outcome is ReplayOutcome.REFUSED
        assert set(await truth.objects()) == {letter.payload}
        assert (await app.dead.replay(letter, to_queue="other")).outcome is ReplayOutcome.REPLAYED
        (moved,) = (await truth.objects()).values()
        assert moved["name"] != letter.payload
        assert moved["metadata"]["jetjobs.queue"] == "other"
        async with running(app.worker()):
            await probe.finished(2, "dead_lettered", timeout=30)
            letter = await app.dead.get(handle.id)
            assert letter is not None
            edited = await app.dead.replay(letter, arguments={"text": text_of(2 * MB)})
            assert edited.outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded", timeout=30)
        assert sizes == [MB + 400_000] * 2 + [2 * MB]

        async def gone() -> bool:
            return await nothing_stored(truth)

        await eventually(gone, timeout=30)


# Limits of the server


@pytest.fixture
def small(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that takes messages of 40,000 bytes."""
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


async def test_hand_made_jobs_around_the_servers_limit_fail_twice_die_and_are_replayed_whole(
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

        async def gone() -> bool:
            return await nothing_stored(truth)

        await eventually(gone, timeout=30)
    await truth.close()


async def test_full_storage_refuses_a_large_job_and_keeps_nothing_of_it(tmp_path: Path) -> None:
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
                # A result for which there is no room: the work is done, so the job ends without its record.
                handle = await give.enqueue()
                await probe.finished(2, "succeeded", timeout=30)
            assert handle.id not in await truth.done()
            assert (await truth.jobs(), await truth.dead()) == ([], {})
            assert await nothing_stored(truth)
        await truth.close()


def test_the_limit_is_64_mib() -> None:
    assert payloads_module.MAX_OBJECT == 64 * 1024 * 1024
