"""The object store of large bodies: reading, writing, deleting and damage."""

from __future__ import annotations

import asyncio

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream import client
from jetjobs.model.errors import BrokerUnavailable, MalformedJob
from tests.conftest import MakeApp
from tests.support.payloads import nothing_stored, text_of
from tests.support.probe import eventually
from tests.support.proxy import Proxy
from tests.support.server import Truth

LABELS = {"queue": "default", "task": "work", "id": "u1", "run": "r1"}


def bytes_of(size: int) -> bytes:
    return text_of(size).encode()


async def test_objects_of_any_size_are_read_as_written(app: JetJobs, truth: Truth) -> None:
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


async def test_objects_are_interchangeable_with_other_clients(app: JetJobs, truth: Truth) -> None:
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


async def test_a_put_replaces_an_older_object_and_leaves_none_of_its_chunks(app: JetJobs, truth: Truth) -> None:
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


@pytest.mark.parametrize("fault", ["a chunk is gone", "a chunk was changed", "no entry", "an entry is not JSON"])
async def test_a_broken_object_is_malformed_with_a_reason(app: JetJobs, truth: Truth, fault: str) -> None:
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
        if fault == "an entry is not JSON":
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


async def test_reading_and_writing_survive_a_server_restart(
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
async def test_an_unavailable_server_is_a_broker_error_and_not_a_missing_object(
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


async def test_an_object_with_a_ttl_expires_completely(app: JetJobs, truth: Truth) -> None:
    async with app:
        await app.provision(["default"])
        await app.jetstream.payloads.put("o", bytes_of(500_000), LABELS, ttl_s=1)
        assert (await truth.api("STREAM.INFO.OBJ_jobs-payloads"))["state"]["last_seq"] == 5
        await eventually(lambda: nothing_stored(truth), timeout=30)
