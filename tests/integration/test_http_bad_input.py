"""What clients do wrong, and what goes wrong beside them: each is answered with a problem."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.http import server as http_server
from jetjobs.model.settings import HttpSettings
from tests.support.http_api import Client, check, serving
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned

pytestmark = pytest.mark.settings(http={"port": 0, "max_body": 2000, "body_timeout": "1s"})
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def client(app: JetJobs, work: Any) -> AsyncIterator[Client]:
    async with provisioned(app), serving(app) as client:
        yield client


@pytest.fixture
async def nothing_stored(client: Client, truth: Truth) -> AsyncIterator[None]:
    yield
    assert await truth.jobs() == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b'{"task": "work", "args": {"n": NaN}}', 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
        (b"[" * 1500, 400, "malformed_json"),
        (b"[]", 422, "invalid_body"),
        (b"", 422, "invalid_body"),
        (b'{"task": "work", "tusk": 1}', 422, "invalid_body"),
        (b'{"task": 7}', 422, "invalid_body"),
        (b'{"task": "a.b"}', 422, "invalid_body"),
        (b'{"task": "none"}', 422, "unknown_task"),
        (b'{"task": "work", "args": {"n": "x"}}', 422, "invalid_arguments"),
        (b'{"task": "work", "args": {"m": 1}}', 422, "invalid_arguments"),
        (b'{"task": "work", "args": []}', 422, "invalid_body"),
        (b'{"task": "work", "queue": "nowhere"}', 422, "queue_not_found"),
        (b'{"task": "work", "queue": "a>b"}', 422, "invalid_body"),
        (b'{"task": "work", "priority": "urgent"}', 422, "invalid_body"),
        (b'{"task": "work", "delay": "1h", "run_at": "2100-01-01T00:00:00Z"}', 422, "invalid_body"),
        (b'{"task": "work", "delay": -1}', 422, "invalid_body"),
        (b'{"task": "work", "delay": "soon"}', 422, "invalid_body"),
        (b'{"task": "work", "delay": "9999999d"}', 422, "invalid_body"),
        (b'{"task": "work", "run_at": "2020-01-01T00:00:00Z"}', 422, "invalid_body"),
        (b'{"task": "work", "run_at": "2100-01-01T00:00:00"}', 422, "invalid_body"),
        (b'{"task": "work", "run_at": 4102444800}', 422, "invalid_body"),
        (b'{"task": "work", "deadline": "2020-01-01T00:00:00Z"}', 422, "invalid_body"),
        (b'{"task": "work", "max_attempts": 0}', 422, "invalid_body"),
        (b'{"task": "work", "key": ""}', 422, "invalid_body"),
        (b'{"task": "work", "key": "a\\nb"}', 422, "definition_error"),
    ],
)
@pytest.mark.usefixtures("nothing_stored")
async def test_a_bad_body_is_refused(client: Client, body: bytes, status: int, code: str) -> None:
    problem = await client.call("POST", "/jobs", status, content=body, headers=JSON)
    assert problem["code"] == code


async def test_an_invalid_argument_is_named_and_its_value_is_not_repeated(client: Client) -> None:
    body = {"task": "work", "args": {"n": "hunter2"}}
    problem = await client.call("POST", "/jobs", 422, json=body)
    assert [error["field"] for error in problem["errors"]] == ["args.n"]
    assert problem["hint"] == "the task is work(n: int = ...)"
    assert "hunter2" not in json.dumps(problem)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {},
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
@pytest.mark.usefixtures("nothing_stored")
async def test_another_media_type_is_refused(client: Client, headers: dict[str, str]) -> None:
    problem = await client.call("POST", "/jobs", 415, content=b'{"task": "work"}', headers=headers)
    assert problem["code"] == "unsupported_media_type"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.usefixtures("nothing_stored")
async def test_a_body_that_is_too_large_is_refused_whatever_its_length_says(
    client: Client, declared: bool
) -> None:
    body = json.dumps({"task": "work", "args": {"n": 1}, "key": "x" * 3000}).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    content: Any = body if declared else chunks()
    problem = await client.call("POST", "/jobs", 413, content=content, headers=JSON)
    assert problem["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("header", "code"), [("", "invalid_header"), ("x" * 256, "invalid_header"), ("a\tb", "invalid_header")]
)
@pytest.mark.usefixtures("nothing_stored")
async def test_a_bad_idempotency_key_is_refused(client: Client, header: str, code: str) -> None:
    headers = {"Idempotency-Key": header}
    assert (await client.call("POST", "/jobs", 422, json={"task": "work"}, headers=headers))["code"] == code


@pytest.mark.usefixtures("nothing_stored")
async def test_a_repeatable_request_for_a_missing_queue_names_the_queue(client: Client) -> None:
    body = {"task": "work", "queue": "nowhere"}
    problem = await client.call("POST", "/jobs", 422, json=body, headers={"Idempotency-Key": "x"})
    assert (problem["code"], problem["errors"][0]["field"]) == ("queue_not_found", "queue")


@pytest.mark.usefixtures("nothing_stored")
async def test_an_idempotency_key_excludes_a_key_and_a_batch(client: Client) -> None:
    headers = {"Idempotency-Key": "x"}
    await client.call("POST", "/jobs", 422, json={"task": "work", "key": "k"}, headers=headers)
    await client.call("POST", "/jobs:batch", 422, json={"jobs": [{"task": "work"}]}, headers=headers)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/jobs?limit=0", 422, "invalid_query"),
        ("/jobs?limit=1.0", 422, "invalid_query"),
        ("/jobs?limit=1001", 422, "invalid_query"),
        ("/jobs?limit=1&limit=2", 422, "invalid_query"),
        ("/jobs?state=lost", 422, "invalid_query"),
        ("/jobs?cursor=x", 422, "config_error"),
        ("/jobs?cursor=%FF", 400, "malformed_query"),
        ("/jobs?where=n=1", 422, "invalid_query"),
        ("/jobs?since=99999999d", 422, "invalid_query"),
        ("/jobs?queue=nowhere", 404, "queue_not_found"),
        ("/jobs?unknown=1", 422, "invalid_query"),
        ("/queues?unknown=1", 422, "invalid_query"),
        ("/queues/a.b", 422, "definition_error"),
        ("/queues/a%3Eb", 422, "definition_error"),
        ("/jobs/a.b%3E*", 404, "job_not_found"),
        ("/jobs/" + "x" * 500, 404, "job_not_found"),
        ("/jobs/%00", 404, "job_not_found"),
        ("/jobs/x?wait=61s", 422, "invalid_query"),
        ("/jobs/x?wait=soon", 422, "invalid_query"),
        ("/dead?cursor=-1", 422, "invalid_query"),
        ("/dead/x", 404, "job_not_found"),
        ("/schedules/x", 404, "schedule_not_found"),
        ("/schedules/_x", 422, "definition_error"),
        ("/tasks/x", 404, "unknown_task"),
        ("/nothing", 404, "no_such_path"),
        ("/jobs/", 404, "no_such_path"),
        ("/jobs/x/y", 404, "no_such_path"),
    ],
)
async def test_a_bad_path_or_query_is_refused(client: Client, path: str, status: int, code: str) -> None:
    assert (await client.call("GET", path, status))["code"] == code


async def test_an_unknown_method_is_answered_with_the_known_ones(client: Client) -> None:
    answer = await client.put("/jobs")
    check(answer)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await client.head("/queues")).status_code == 200
    assert (await client.options("/jobs")).status_code == 405


# Slow and broken clients


@contextlib.asynccontextmanager
async def connected(client: Client) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        yield reader, writer
    finally:
        writer.close()


HEAD = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 16\r\n"


@pytest.mark.usefixtures("nothing_stored")
async def test_a_body_that_does_not_come_is_answered_408(client: Client) -> None:
    async with connected(client) as (reader, writer):
        writer.write(HEAD + b'\r\n{"task"')
        answer = await asyncio.wait_for(reader.read(), 15)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"body_timeout"' in answer


@pytest.mark.parametrize("sent", [b"", b"POST /api/v1/jobs HTTP/1.1\r\nHost: 12"])
async def test_headers_that_do_not_come_end_the_connection(
    client: Client, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEADERS_S", 0.2)
    async with connected(client) as (reader, writer):
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 15) == b""


async def test_headers_that_are_too_large_are_refused(client: Client) -> None:
    async with connected(client) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 70_000)
        answer = await asyncio.wait_for(reader.read(), 15)
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.usefixtures("nothing_stored")
async def test_a_client_that_leaves_before_its_body_is_complete_stores_nothing(client: Client) -> None:
    async with connected(client) as (_, writer):
        writer.write(HEAD + b'\r\n{"task"')
        await writer.drain()

    async def idle() -> bool:
        return client.server.application.limits.requests == 0

    await eventually(idle)
    await client.call("GET", "/queues")


# NATS


async def test_without_the_server_calls_are_answered_503_and_again_when_it_is_back(
    client: Client, server: EmbeddedServer, truth: Truth
) -> None:
    root = client.server.url
    assert (await client.get(f"{root}/readyz")).status_code == 200
    server.kill()

    async def problem() -> Any:
        answer = await client.post("/jobs", json={"task": "work"})
        return answer if answer.status_code == 503 else None

    answer = await eventually(problem, timeout=30)
    check(answer)
    assert (answer.json()["code"], answer.headers["retry-after"]) == ("broker_unavailable", "1")
    assert (await client.get(f"{root}/readyz")).status_code == 503
    assert (await client.get(f"{root}/livez")).status_code == 200
    server.start()

    async def stored() -> bool:
        return (await client.post("/jobs", json={"task": "work"})).status_code == 201

    await eventually(stored, timeout=30)
    assert (await client.get(f"{root}/readyz")).status_code == 200


async def test_an_enqueue_that_is_not_confirmed_is_answered_504_with_the_id(
    app: JetJobs, client: Client, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.jetstream.publisher, "_timeout_s", 0.3, raising=True)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        problem = await client.call("POST", "/jobs", 504, json={"task": "work"})
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert problem["code"] == "enqueue_unconfirmed"
    job = await client.call("GET", f"/jobs/{problem['job_id']}")
    assert job["state"] == "queued"


def test_settings_have_the_documented_limits() -> None:
    settings = HttpSettings()
    assert (settings.max_body, settings.rate, settings.burst) == (2**20, 100.0, 200)
    assert (settings.max_streams, settings.max_streams_per_token) == (100, 10)
