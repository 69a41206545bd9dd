"""GET /events: server-sent events with filters, heartbeats, replays and limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from jetjobs import JetJobs, Worker
from jetjobs.dev_server import EmbeddedServer
from jetjobs.http import event_feed
from jetjobs.http.models.answers import Event
from tests.support.http_api import Client, serving
from tests.support.probe import eventually, wait_until
from tests.support.workers import provisioned, running

pytestmark = pytest.mark.settings(http={"port": 0, "max_streams": 3, "max_streams_per_token": 2})


@pytest.fixture
def tasks(app: JetJobs) -> JetJobs:
    @app.task
    async def work(n: int = 0) -> int:
        return n

    @app.task(queue="mail")
    async def send() -> None: ...

    return app


@pytest.fixture
async def client(tasks: JetJobs) -> AsyncIterator[Client]:
    async with provisioned(tasks) as app, serving(app) as client:
        yield client


@pytest.fixture
async def worker(tasks: JetJobs, client: Client) -> AsyncIterator[Worker]:
    async with running(tasks.worker()) as worker:
        await eventually(tasks.workers.list, where=lambda found: [w.phase for w in found] == ["ready"])
        yield worker


class Stream:
    """The events of one connection, parsed as a browser does."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()
        self.comments: list[str] = []

    async def next(self) -> dict[str, Any]:
        """The next event: its name, id and data."""
        found: dict[str, Any] = {}
        async with asyncio.timeout(15):
            async for line in self._lines:
                if not line and "data" in found:
                    found["data"] = json.loads(found["data"])
                    if found["event"] != "gap":
                        Event.model_validate_json(json.dumps(found["data"]), strict=True)
                    return found
                name, _, value = line.partition(":")
                if line.startswith(":"):
                    self.comments.append(line)
                elif name:
                    found[name] = value.removeprefix(" ")
        raise AssertionError("the stream has ended")

    async def kinds(self, count: int) -> list[str]:
        return [(await self.next())["event"] for _ in range(count)]


@contextlib.asynccontextmanager
async def following(client: Client, **options: Any) -> AsyncIterator[Stream]:
    async with client.stream("GET", "/events", **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer)


async def run(client: Client, task: str = "work") -> str:
    return str((await client.call("POST", "/jobs?wait=10s", json={"task": task}))["id"])


async def test_events_of_jobs_are_sent_as_they_happen(client: Client, worker: Worker) -> None:
    async with following(client) as stream:
        job_id = await run(client)
        started, ended = await stream.next(), await stream.next()
    assert (started["event"], ended["event"]) == ("job.started", "job.succeeded")
    assert (ended["data"]["job_id"], ended["data"]["queue"]) == (job_id, "default")
    assert started["id"] != ended["id"]


async def test_filters_select_events(client: Client, worker: Worker) -> None:
    async with following(client, params={"queue": "mail", "kind": ["job.succeeded", "job.dead*"]}) as stream:
        await run(client)
        await run(client, "send")
        found = await stream.next()
    assert (found["event"], found["data"]["task"]) == ("job.succeeded", "send")
    assert (await client.call("GET", "/events?kind=nothing", 422))["code"] == "config_error"


async def test_a_client_that_connects_again_gets_what_it_has_missed(client: Client, worker: Worker) -> None:
    async with following(client) as stream:
        await run(client)
        last = await stream.next()
    second = await run(client)
    async with following(client, headers={"Last-Event-ID": last["id"]}) as stream:
        assert await stream.kinds(2) == ["job.succeeded", "job.started"]
        found = await stream.next()
        assert (found["event"], found["data"]["job_id"]) == ("job.succeeded", second)
        await run(client)
        assert await stream.kinds(2) == ["job.started", "job.succeeded"]  # nothing twice


async def test_what_happens_while_a_client_connects_again_is_sent_once(
    client: Client, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = client.server.application.services.feed
    async with following(client) as stream:
        await run(client)
        await stream.next()
        last = await stream.next()
    begin = feed._begin

    async def begin_with_an_event() -> None:
        await begin()
        await run(client)
        await wait_until(lambda: feed._kept[-1].event is not None and feed._kept[-1].event.kind == "job.succeeded")

    monkeypatch.setattr(feed, "_begin", begin_with_an_event)
    async with following(client, headers={"Last-Event-ID": last["id"]}) as stream:
        numbers = [int((await stream.next())["id"].rpartition("-")[2]) for _ in range(2)]
        await run(client)
        numbers.append(int((await stream.next())["id"].rpartition("-")[2]))
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("last", ["elsewhere-7", "x", "", "9" * 30])
async def test_an_id_of_another_process_is_answered_by_a_gap(client: Client, worker: Worker, last: str) -> None:
    async with following(client, headers={"Last-Event-ID": last}) as stream:
        assert (await stream.next())["event"] == "gap"
        await run(client)
        assert await stream.kinds(2) == ["job.started", "job.succeeded"]


async def test_an_id_older_than_the_kept_events_is_answered_by_a_gap(
    client: Client, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = client.server.application.services.feed
    monkeypatch.setattr(feed, "_kept", type(feed._kept)(maxlen=3))
    async with following(client) as stream:
        await run(client)
        first = await stream.next()
        for _ in range(3):
            await run(client)
        await stream.kinds(7)
    async with following(client, headers={"Last-Event-ID": first["id"]}) as stream:
        assert await stream.kinds(4) == ["gap", "job.succeeded", "job.started", "job.succeeded"]


async def test_a_lost_connection_to_the_server_is_a_gap(
    client: Client, worker: Worker, server: EmbeddedServer
) -> None:
    async with following(client) as stream:
        server.kill()
        server.start()
        assert (await stream.next())["event"] == "gap"


async def test_heartbeats_keep_the_connection_open(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "HEARTBEAT_S", 0.05)
    async with following(client) as stream:
        reading = asyncio.create_task(stream.next())
        await wait_until(lambda: sum(comment.startswith(": ping") for comment in stream.comments) >= 2)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_streams_are_limited_for_each_token_and_for_the_process(tasks: JetJobs, client: Client) -> None:
    reader = {"Authorization": "Bearer " + await tasks.tokens.new("reader", ["read"])}
    async with following(client, headers=reader), following(client, headers=reader):
        problem = await client.call("GET", "/events", 429, headers=reader)
        assert "streams of 'reader'" in problem["detail"]
        async with following(client):
            assert (await client.call("GET", "/events", 429))["code"] == "too_many_streams"
            await client.call("GET", "/queues")  # other calls are not affected
    feed = client.server.application.services.feed
    await wait_until(lambda: not feed._clients)
    async with following(client, headers=reader):
        pass


async def test_a_client_that_leaves_at_once_frees_its_place(client: Client) -> None:
    for _ in range(5):
        with contextlib.suppress(httpx.TimeoutException):
            await client.get("/events", timeout=0.001)
    feed = client.server.application.services.feed
    await wait_until(lambda: not feed._clients)
    assert (await client.head("/events")).status_code == 405


async def test_a_token_gets_only_events_of_its_queues(tasks: JetJobs, client: Client, worker: Worker) -> None:
    text = await tasks.tokens.new("mail", ["read"], ["mail"])
    async with following(client, headers={"Authorization": f"Bearer {text}"}) as stream:
        await run(client)
        await run(client, "send")
        found = await stream.next()
    assert found["data"]["queue"] == "mail"


async def test_a_stream_ends_when_its_token_is_revoked(
    tasks: JetJobs, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "RENEW_S", 0.05)
    text = await tasks.tokens.new("mail", ["read"])
    feed = client.server.application.services.feed
    async with following(client, headers={"Authorization": f"Bearer {text}"}), following(client):
        assert len(feed._clients) == 2
        await tasks.tokens.revoke("mail")
        await wait_until(lambda: [one.access.name for one in feed._clients] == ["local"])


async def test_a_client_that_is_too_slow_is_disconnected(
    client: Client, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "KEPT", 1)
    async with following(client) as stream:
        feed = client.server.application.services.feed
        [slow] = feed._clients
        for _ in range(3):  # more at once than it may have waiting
            feed._publish(None)
        with pytest.raises(AssertionError, match="has ended"):
            await stream.kinds(3)
        assert slow not in feed._clients


async def test_streams_end_when_the_server_stops(tasks: JetJobs) -> None:
    async with provisioned(tasks) as app, serving(app) as client, following(client) as stream:
        client.server.stop()
        with pytest.raises(AssertionError, match="has ended"):
            await stream.next()
