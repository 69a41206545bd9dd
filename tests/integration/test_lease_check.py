"""A held job is compared with the message at its sequence before it is acked or extended again. ADR 41."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, Worker
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import BrokerUnavailable
from jetjobs.jetstream.queues.purge import Purge
from jetjobs.jetstream.transport import api
from jetjobs.model.events import (
    ConnectionLost,
    ConnectionRestored,
    JobFinished,
    JobStarted,
    LeaseLostEvent,
    WorkerChanged,
)
from jetjobs.model.settings import build_settings
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from jetjobs.worker.leases import lease_table
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually, wait_until
from tests.support.proxy import Frames, Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

STREAM = "jobs-work-default"


class Restorable(EmbeddedServer):
    """A server whose store can be replaced by an older copy of it."""

    def __init__(self, folder: Path) -> None:
        self._store, self._copy = folder / "store", folder / "copy"
        super().__init__(self._store)

    def save(self) -> None:
        self.stop()
        shutil.copytree(self._store, self._copy)
        self.start()

    def replace_store(self) -> None:
        """Use the saved store. The server must have been killed."""
        shutil.rmtree(self._store)
        shutil.copytree(self._copy, self._store)

    def restore(self) -> None:
        self.kill()
        self.replace_store()
        self.start()

    @contextlib.asynccontextmanager
    async def elsewhere(self) -> AsyncIterator[Truth]:
        """Run the server on another port, where the app does not find it."""
        with EmbeddedServer(self._store) as other:
            truth = await Truth.connect(other.url)
            yield truth
            await truth.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Restorable]:
    with Restorable(tmp_path) as running_server:
        yield running_server


@pytest.fixture
async def proxy(server: Restorable) -> AsyncIterator[Proxy]:
    made = Proxy(server.url)
    async with made.running():
        yield made


class Tasks:
    """Tasks that end when the test says so, even if they are cancelled."""

    def __init__(self, app: JetJobs) -> None:
        self.app = app
        self.probe = Probe()
        app.observe(self.probe)
        self.ran: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.hold = app.task(name="hold")(self._hold)
        self.forget = app.task(name="forget", store_result=False)(self._hold)

    async def _hold(self, name: str) -> str:
        self.ran.append(name)
        ended = self._ends.setdefault(name, asyncio.Event())
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue  # a success is still a success
        return name

    def end(self, name: str) -> None:
        self._ends.setdefault(name, asyncio.Event()).set()

    async def started(self, name: str) -> None:
        await self.probe.wait(JobStarted, where=lambda event: name in self.ran)

    async def finished(self, job_id: str) -> None:
        await self.probe.wait(JobFinished, where=lambda event: event.job_id == job_id)

    @contextlib.asynccontextmanager
    async def working(self, slots: int) -> AsyncIterator[Worker]:
        """Run a worker. What still runs at the end of the block ends."""
        worker = self.app.worker(slots=slots)
        async with running(worker):
            try:
                yield worker
            finally:
                for name in self.ran:
                    self.end(name)

    async def sent(self) -> None:
        """Return when the server has processed everything that the worker has sent so far."""
        await self.app.jetstream.connection.nc.flush()


async def sequence_of(truth: Truth, job_id: str) -> int:
    (subject,) = [subject for subject in await truth.jobs() if subject.endswith(job_id)]
    found = await truth.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": subject})
    return int(found["message"]["seq"])


async def pull(truth: Truth) -> None:
    """Take a job as another worker would."""
    await truth.nc.request(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.normal", b"", timeout=10, old_style=True)


async def test_a_record_that_an_older_store_has_forgotten_is_stored_again_before_the_ack(
    make_app: MakeApp, server: Restorable, proxy: Proxy, truth: Truth
) -> None:
    tasks = Tasks(make_app(nats={"url": proxy.url}))
    async with provisioned(tasks.app), tasks.working(slots=1):
        x = await tasks.hold.enqueue("x")
        await tasks.started("x")
        await asyncio.to_thread(server.save)
        restored = len(await tasks.probe.wait(ConnectionRestored))
        proxy.to_server = Frames(r"\$JS\.API\.STREAM\.MSG\.GET\.\S+", ".*?", lambda: True, times=1000)
        proxy.cut()  # the held job is in doubt, and cannot be compared
        await tasks.probe.wait(ConnectionRestored, restored + 1)
        tasks.end("x")
        await eventually(truth.done, where=lambda done: x.id in done)
        await asyncio.to_thread(server.restore)
        assert x.id not in await truth.done()
        proxy.pass_on()
        await tasks.finished(x.id)
        assert (await truth.done())[x.id]["state"] == "succeeded"
        await truth.until_empty()
        assert tasks.ran == ["x"]


@pytest.mark.parametrize("owner", ["this worker", "another worker"])
async def test_an_older_store_gives_a_held_sequence_to_another_job_which_is_not_deleted(
    make_app: MakeApp, server: Restorable, truth: Truth, owner: str
) -> None:
    tasks = Tasks(make_app())
    async with provisioned(tasks.app):
        await asyncio.to_thread(server.save)
        x = await tasks.hold.enqueue("x")
        async with tasks.working(2 if owner == "this worker" else 1):
            await tasks.started("x")
            sequence = await sequence_of(truth, x.id)
            lost = len(tasks.probe.of(ConnectionLost))
            await asyncio.to_thread(server.restore)
            await tasks.probe.wait(ConnectionRestored, lost + 1)
            y = await tasks.hold.enqueue("y")
            if owner == "this worker":
                await tasks.started("y")
            else:
                await pull(truth)
            tasks.end("x")
            await tasks.finished(x.id)
            await tasks.sent()
            assert await sequence_of(truth, y.id) == sequence
        assert (await truth.done())[x.id]["result"] == "x"
    assert [event.job_id for event in tasks.probe.of(LeaseLostEvent)] == [x.id]


async def test_an_ack_of_a_job_that_ended_while_disconnected_does_not_delete_another_job(
    make_app: MakeApp, server: Restorable, truth: Truth
) -> None:
    tasks = Tasks(make_app())
    async with provisioned(tasks.app):
        await asyncio.to_thread(server.save)
        x = await tasks.forget.enqueue("x")
        async with tasks.working(1):
            await tasks.started("x")
            sequence = await sequence_of(truth, x.id)
            lost = len(tasks.probe.of(ConnectionLost))
            await asyncio.to_thread(server.kill)
            await tasks.probe.wait(ConnectionLost, lost + 1)
            tasks.end("x")
            await asyncio.to_thread(server.replace_store)
            async with server.elsewhere() as other:
                y = await other.js.publish("jobs.work.default.normal.forget", b'{"name": "y"}')
                assert y.seq == sequence
                await pull(other)
            await asyncio.to_thread(server.start)
            await tasks.probe.wait(ConnectionRestored, lost + 1)
            await tasks.finished(x.id)
            await tasks.sent()
            assert await truth.jobs() == ["jobs.work.default.normal.forget"]


@pytest.mark.parametrize("owner", ["this worker", "another worker"])
async def test_a_stream_that_is_recreated_while_connected_keeps_its_new_job(
    make_app: MakeApp, truth: Truth, owner: str
) -> None:
    tasks = Tasks(make_app())
    async with provisioned(tasks.app):
        x = await tasks.hold.enqueue("x")
        async with tasks.working(2):
            await tasks.started("x")
            sequence = await sequence_of(truth, x.id)
            await truth.js.delete_stream(STREAM)
            await tasks.app.provision()
            y = await tasks.hold.enqueue("y")
            if owner == "this worker":
                await tasks.started("y")
            else:
                await pull(truth)  # the worker pulls again only a second after the refusal
            tasks.end("x")
            await tasks.finished(x.id)
            await tasks.sent()
            assert await sequence_of(truth, y.id) == sequence
        assert (await truth.done())[x.id]["result"] == "x"


async def test_a_worker_without_open_pull_requests_compares_a_job_that_it_has_held_for_long(
    make_app: MakeApp, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_table, "SEEN_S", 0.0)
    tasks = Tasks(make_app())
    async with provisioned(tasks.app):
        x = await tasks.hold.enqueue("x")
        async with tasks.working(slots=1) as worker:
            await tasks.started("x")
            sequence = await sequence_of(truth, x.id)
            worker.quiet()
            await tasks.probe.wait(WorkerChanged, where=lambda event: event.phase == "quiet")
            await truth.js.delete_stream(STREAM)
            await tasks.app.provision()
            y = await tasks.hold.enqueue("y")
            await pull(truth)
            tasks.end("x")
            await tasks.finished(x.id)
            await tasks.sent()
            assert await sequence_of(truth, y.id) == sequence
        assert (await truth.done())[x.id]["result"] == "x"


@pytest.mark.parametrize("action", ["cancel", "set_priority"])
async def test_an_operator_who_loses_the_connection_deletes_nothing_from_an_older_store(
    make_app: MakeApp, server: Restorable, proxy: Proxy, truth: Truth, action: str
) -> None:
    operator, producer = make_app(nats={"url": proxy.url}), Tasks(make_app())

    def lose() -> bool:
        proxy.hold()
        return True

    async with provisioned(producer.app), operator:
        await asyncio.to_thread(server.save)
        x = await producer.hold.enqueue("x")
        proxy.to_server = asked = Frames(r"\$JS\.API\.STREAM\.MSG\.DELETE\.\S+", ".*?", lose)
        acting = operator.jobs.cancel(x.id) if action == "cancel" else operator.jobs.set_priority(x.id, "high")
        doing = asyncio.create_task(acting)
        await wait_until(lambda: asked.seen)
        await asyncio.to_thread(server.restore)
        y = await producer.hold.enqueue("y")
        proxy.resume()
        with pytest.raises(BrokerUnavailable, match="the connection was lost"):
            await doing
        assert [subject for subject in await truth.jobs() if subject.endswith(y.id)]


async def test_after_a_restart_with_the_same_store_a_held_job_is_extended_and_acked_once(
    make_app: MakeApp, server: Restorable, truth: Truth
) -> None:
    tasks = Tasks(make_app(queues={"lease": "1500ms"}))
    acks: list[bytes] = []

    async def heard(message: Any) -> None:
        if api.parse_ack(message.subject)[1]:  # not the check of the permission, which names no message
            acks.append(message.data)

    async with provisioned(tasks.app):
        x = await tasks.hold.enqueue("x")
        async with tasks.working(1):
            await tasks.started("x")
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await tasks.probe.wait(ConnectionRestored)
            await truth.nc.subscribe(f"$JS.ACK.{STREAM}.>", cb=heard)
            await truth.nc.flush()
            back_at = time.monotonic()
            await eventually(lambda: asyncio.sleep(0, acks), where=lambda found: found.count(b"+WPI") >= 4)
            assert time.monotonic() - back_at > 1.5  # longer than a lease
            tasks.end("x")
            await tasks.finished(x.id)
            await truth.until_empty()
        assert (await truth.done())[x.id]["result"] == "x"
    assert acks.count(b"+ACK") == 1
    assert tasks.ran == ["x"]
    assert not tasks.probe.of(LeaseLostEvent)


async def test_two_hundred_held_jobs_are_compared_and_acked_within_a_second_of_a_reconnect(
    make_app: MakeApp, server: Restorable, proxy: Proxy, truth: Truth
) -> None:
    tasks = Tasks(make_app(nats={"url": proxy.url}))
    async with provisioned(tasks.app):
        await tasks.app.enqueue_many([tasks.forget.bind(str(number)) for number in range(200)])
        async with tasks.working(200):
            await tasks.probe.wait(JobStarted, 200)
            proxy.cut()
            await tasks.probe.wait(ConnectionLost)
            for name in tasks.ran:
                tasks.end(name)
            await tasks.probe.wait(ConnectionRestored)
            back_at = time.monotonic()
            await truth.until_empty()
            assert time.monotonic() - back_at < 1.0
    assert len(tasks.ran) == 200
    assert not tasks.probe.of(LeaseLostEvent)


async def test_a_worker_that_may_not_read_the_stream_continues_without_the_comparison_and_logs_that_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "nats.conf"
    denied = '{deny: ["$JS.API.STREAM.MSG.GET.jobs-work-default"]}'
    config.write_text(
        "authorization { users = [{user: root, password: x}, "
        f"{{user: worker, password: x, permissions: {{publish: {denied}}}}}] }}"
    )
    with EmbeddedServer(extra=("-c", str(config))) as server:
        login = {"url": server.url, "user": "worker", "password": "x"}
        tasks = Tasks(JetJobs("test", settings=build_settings({"nats": login})))
        async with provisioned(tasks.app), tasks.working(2):
            await tasks.hold.enqueue("x")
            await tasks.hold.enqueue("y")
            await tasks.started("x")
            await tasks.started("y")
            for restarts in (1, 2):
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                await tasks.probe.wait(ConnectionRestored, restarts)
            tasks.end("x")
            tasks.end("y")
            await tasks.probe.finished(2, "succeeded")
    assert not tasks.probe.of(LeaseLostEvent)
    assert sorted(tasks.ran) == ["x", "y"]
    logged = [record for record in caplog.records if getattr(record, "event", "") == "lease.unchecked"]
    assert len(logged) == 1


# Others that act on sequences


async def test_a_purge_stops_when_the_connection_was_lost_since_it_began(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    tasks = Tasks(make_app(nats={"url": proxy.url}))
    async with provisioned(tasks.app):
        await tasks.hold.enqueue("x")
        client = tasks.app.jetstream
        purge = Purge(client.connection, client.publisher, client.names, "default")
        proxy.cut()
        await tasks.probe.wait(ConnectionRestored)
        with pytest.raises(BrokerUnavailable, match="purge"):
            await purge.run()
        assert len(await truth.jobs()) == 1
        again = Purge(client.connection, client.publisher, client.names, "default")
        assert (await again.run()).queued == 1


async def test_a_stranded_job_is_searched_for_again_when_the_connection_was_lost(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    tasks = Tasks(make_app(nats={"url": proxy.url}))
    async with provisioned(tasks.app):
        job = await tasks.hold.enqueue("x")
        sequence = await sequence_of(truth, job.id)
        stranded = StrandedJobs(tasks.app.jetstream, "w", 0.0, lambda event: None)
        await stranded.sweep("default")
        proxy.cut()
        await tasks.probe.wait(ConnectionRestored)
        with pytest.raises(BrokerUnavailable, match="stranded"):
            await stranded._dead_letter("default", "normal", sequence)
        assert len(await truth.jobs()) == 1
        assert await truth.dead() == {}


# The connection


async def test_what_was_written_when_the_connection_was_lost_is_not_sent_on_the_next_one(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    app, probe = make_app(nats={"url": proxy.url}), Probe()
    app.observe(probe)
    received: list[bytes] = []

    async def heard(message: Any) -> None:
        received.append(message.data)

    await truth.nc.subscribe("heard", cb=heard)
    await truth.nc.flush()
    async with app:
        connection = app.jetstream.connection
        proxy.cut()
        assert connection.post("heard", b"before the loss is noticed")
        await probe.wait(ConnectionLost)
        assert not connection.post("heard", b"while disconnected")
        began_at = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await connection.ask("heard", b"a request while disconnected")
        assert time.monotonic() - began_at < 0.1
        await probe.wait(ConnectionRestored)
        assert connection.post("heard", b"connected")
        await connection.nc.flush()
        await eventually(lambda: asyncio.sleep(0, received))
    assert received == [b"connected"]
