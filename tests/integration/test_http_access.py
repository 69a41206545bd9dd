"""Who may call: loopback, tokens, queues, mounted applications, and the limits for each caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from jetjobs import JetJobs
from jetjobs.errors import ConfigError
from jetjobs.http import Access, api
from jetjobs.http.server import Server
from tests.conftest import MakeApp
from tests.support.http_api import Client, check, serving
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

LOCAL: dict[str, Any] = {"port": 0}
TOKENS: dict[str, Any] = {"port": 0, "require_token": True}


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


async def bearer(app: JetJobs, name: str, *scopes: str, queues: list[str] | None = None) -> dict[str, str]:
    return {"Authorization": "Bearer " + await app.tokens.new(name, scopes, queues)}


# Loopback


@pytest.mark.settings(http=LOCAL)
async def test_on_loopback_a_request_without_a_token_may_do_everything(client: Client) -> None:
    await client.call("POST", "/queues/mail/purge")


@pytest.mark.settings(http=LOCAL)
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8400", "[::1]:8400", "LOCALHOST"])
async def test_a_loopback_name_is_answered(client: Client, host: str) -> None:
    await client.call("GET", "/queues", headers={"Host": host})


@pytest.mark.settings(http=LOCAL)
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7:8400", "x@127.0.0.1:y"])
async def test_another_name_is_refused_since_dns_may_have_been_rebound(client: Client, host: str) -> None:
    assert (await client.call("GET", "/queues", 421, headers={"Host": host}))["code"] == "not_loopback"


@pytest.mark.settings(http=LOCAL)
async def test_a_token_that_is_given_must_be_valid_and_counts(tasks: JetJobs, client: Client) -> None:
    await client.call("GET", "/queues", 401, headers={"Authorization": "Bearer wrong"})
    await client.call("GET", "/queues", 401, headers={"Authorization": "Basic YTpi"})
    headers = await bearer(tasks, "reader", "read")
    await client.call("GET", "/queues", headers={**headers, "Host": "jobs.example"})
    await client.call("POST", "/queues/mail/pause", 403, headers=headers)


@pytest.mark.settings(http=LOCAL)
async def test_a_page_of_another_origin_changes_nothing(client: Client, truth: Truth) -> None:
    evil = {"Origin": "https://evil.example"}
    assert (await client.call("POST", "/queues/mail/pause", 403, headers=evil))["code"] == "other_origin"
    assert not (await truth.consumer("normal", "mail")).get("paused")
    own = {"Origin": client.server.url}
    await client.call("POST", "/queues/mail/pause", headers=own)
    answer = await client.get("/queues", headers=evil)
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.settings(http=LOCAL)
@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"])
async def test_a_request_through_a_proxy_needs_a_token(client: Client, name: str) -> None:
    problem = await client.call("GET", "/queues", 401, headers={name: "127.0.0.1"})
    assert problem["code"] == "token_required"


@pytest.mark.settings(http=TOKENS)
async def test_with_required_tokens_loopback_needs_one_too(tasks: JetJobs, client: Client) -> None:
    answer = await client.get("/queues")
    check(answer)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    await client.call("GET", "/queues", headers=await bearer(tasks, "reader", "read"))


@pytest.mark.settings(http={"port": 0, "host": "0.0.0.0"})
async def test_another_address_is_served_only_if_there_is_a_token(tasks: JetJobs) -> None:
    async with provisioned(tasks) as app:
        with pytest.raises(ConfigError, match="need a token"):
            await Server(app).run_until_stopped()
        headers = await bearer(app, "reader", "read")
        async with serving(app) as client:
            await client.call("GET", "/queues", 401)
            await client.call("GET", "/queues", headers=headers)


# Tokens


@pytest.mark.settings(http=TOKENS)
async def test_a_revoked_token_is_refused(tasks: JetJobs, client: Client) -> None:
    headers = await bearer(tasks, "reader", "read")
    await client.call("GET", "/queues", headers=headers)
    await tasks.tokens.revoke("reader")
    await client.call("GET", "/queues", 401, headers=headers)


@pytest.mark.settings(http=TOKENS)
async def test_an_expired_token_is_refused(tasks: JetJobs, client: Client) -> None:
    text = await tasks.tokens.new("short", ["read"], expires="1s")
    headers = {"Authorization": f"Bearer {text}"}

    async def status() -> int:
        return (await client.get("/queues", headers=headers)).status_code

    await eventually(status, where=lambda found: found == 401)


@pytest.mark.settings(http=TOKENS)
async def test_a_job_carries_the_name_of_the_token(tasks: JetJobs, client: Client, truth: Truth) -> None:
    headers = await bearer(tasks, "billing", "enqueue:work")
    job = await client.call("POST", "/jobs", 201, json={"task": "work"}, headers=headers)
    stored = await truth.js.get_last_msg("jobs-work-default", f"jobs.work.default.normal.work.-.{job['id']}")
    assert (stored.headers or {})["Jetjobs-Producer"] == "billing"


@pytest.mark.settings(http=TOKENS)
async def test_the_same_idempotency_key_of_two_tokens_is_two_jobs(tasks: JetJobs, client: Client) -> None:
    ids = set()
    for name in ("a", "b"):
        headers = {**await bearer(tasks, name, "enqueue:*"), "Idempotency-Key": "same"}
        ids.add((await client.call("POST", "/jobs", 201, json={"task": "work"}, headers=headers))["id"])
    assert len(ids) == 2


@pytest.mark.settings(http=TOKENS)
async def test_without_the_scope_read_an_enqueue_shows_neither_a_job_nor_a_result(
    tasks: JetJobs, client: Client
) -> None:
    headers = await bearer(tasks, "billing", "enqueue:work")
    body = {"task": "work", "args": {"n": 7}, "key": "k"}
    await client.call("POST", "/jobs", 201, json=body, headers=headers)
    shown = await client.call("POST", "/jobs", 200, json=body, headers=headers)
    assert (shown["duplicate"], shown["state"], "arguments" in shown) == (True, "queued", False)
    problem = await client.call("POST", "/jobs?wait=1s", 403, json=body, headers=headers)
    assert problem["scope"] == "read"


@pytest.mark.settings(http=TOKENS)
async def test_a_refusal_is_audited_once_a_minute_for_each_token_and_task(tasks: JetJobs, client: Client) -> None:
    one = await bearer(tasks, "one", "enqueue:work")
    two = await bearer(tasks, "two", "enqueue:work", queues=["default"])
    for _ in range(3):
        await client.call("POST", "/jobs", 403, json={"task": "send"}, headers=one)
        await client.call("POST", "/jobs", 403, json={"task": "send"}, headers=two)
        await client.call("POST", "/jobs", 403, json={"task": "work", "queue": "mail"}, headers=two)
        await client.call("POST", "/queues/mail/purge", 403, headers=one)
    found = [e for e in [entry async for entry in tasks.audit.list()] if e.action == "http.refused"]
    assert sorted((e.by, e.target, e.via, e.outcome) for e in found) == [
        ("one", "admin", "http", "refused"),
        ("one", "enqueue:send", "http", "refused"),
        ("two", "enqueue:send", "http", "refused"),
        ("two", "queue:mail", "http", "refused"),
    ]


# Queues of a token


@pytest.mark.settings(http=TOKENS)
async def test_a_token_sees_only_jobs_of_its_queues(tasks: JetJobs, client: Client, truth: Truth) -> None:
    everything = await bearer(tasks, "all", "admin")
    mail = await bearer(tasks, "mail", "admin", queues=["mail"])
    hidden = (await client.call("POST", "/jobs", 201, json={"task": "work"}, headers=everything))["id"]
    own = (await client.call("POST", "/jobs", 201, json={"task": "send"}, headers=mail))["id"]
    page = await client.call("GET", "/jobs", headers=mail)
    assert [item["id"] for item in page["items"]] == [own]
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/retry", {}),
        ("PATCH", "", {"priority": "low"}),
    ):
        options = {"json": body} if body is not None else {}
        problem = await client.call(method, f"/jobs/{hidden}{path}", 404, headers=mail, **options)
        assert problem["code"] == "job_not_found"
    await client.call("GET", "/jobs?queue=default", 404, headers=mail)
    done = await client.call("POST", "/jobs:cancel", json={}, headers=mail)
    assert done["counts"] == {"cancelled": 1}
    assert await truth.jobs() == [f"jobs.work.default.normal.work.-.{hidden}"]
    await client.call("POST", "/jobs", 403, json={"task": "work"}, headers=mail)
    await client.call("POST", "/jobs", 201, json={"task": "work", "queue": "mail"}, headers=mail)


@pytest.mark.settings(http=TOKENS)
async def test_a_token_sees_only_its_queues_and_what_belongs_to_them(
    tasks: JetJobs, client: Client, truth: Truth
) -> None:
    everything = await bearer(tasks, "all", "admin")
    mail = await bearer(tasks, "mail", "admin", queues=["mail"])
    for name, task in (("a", "work"), ("b", "send")):
        await client.call("PUT", f"/schedules/{name}", json={"task": task, "every": "1h"}, headers=everything)
    async with running(tasks.worker(name="both")):
        await eventually(tasks.workers.list, where=lambda found: [w.phase for w in found] == ["ready"])

        async def names(path: str, key: str) -> list[str]:
            return [one[key] for one in (await client.call("GET", path, headers=mail))["items"]]

        assert await names("/queues", "queue") == ["mail"]
        assert await names("/schedules", "name") == ["b"]
        assert await names("/tasks", "task") == ["send"]
        assert await names("/workers", "name") == ["both"]
        for path in (
            "/queues/default",
            "/schedules/a",
            "/schedules/a/next",
            "/tasks/work",
            "/workers?queue=default",
        ):
            await client.call("GET", path, 404, headers=mail)
        await client.call("POST", "/queues/default/purge", 404, headers=mail)
        await client.call("POST", "/schedules/a/run", 404, headers=mail)
        await client.call("PUT", "/schedules/a", 404, json={"task": "send", "every": "1h"}, headers=mail)
        await client.call("PUT", "/schedules/c", 403, json={"task": "work", "every": "1h"}, headers=mail)
        # The worker serves a queue of others too.
        await client.call("POST", "/workers/both/stop", 403, headers=mail)
    assert await truth.jobs() == []


@pytest.mark.settings(http=TOKENS)
async def test_a_token_sees_only_dead_letters_of_its_queues(tasks: JetJobs, client: Client, truth: Truth) -> None:
    for queue in ("default", "mail"):
        await truth.js.publish(f"jobs.work.{queue}.normal.work", b"not json")
    async with running(tasks.worker()):
        await eventually(truth.dead, where=lambda found: len(found) == 2)
    mail = await bearer(tasks, "mail", "admin", queues=["mail"])
    [own] = (await client.call("GET", "/dead", headers=mail))["items"]
    assert own["queue"] == "mail"
    assert [g["queue"] for g in (await client.call("GET", "/dead:groups", headers=mail))["items"]] == ["mail"]
    [listed] = (await client.call("GET", "/jobs?state=dead", headers=mail))["items"]
    assert listed["id"] == own["id"]
    [other] = set(await truth.dead()) - {own["id"]}
    await client.call("GET", f"/dead/{other}", 404, headers=mail)
    await client.call("POST", "/dead:delete", 404, json={"ids": [other]}, headers=mail)
    await client.call("POST", "/dead:replay", 403, json={"all": True, "to_queue": "default"}, headers=mail)
    assert await client.call("POST", "/dead:delete", json={"all": True}, headers=mail) == {"deleted": 1}
    assert set(await truth.dead()) == {other}


# Limits


@pytest.mark.settings(http={**TOKENS, "rate": 1, "burst": 3})
async def test_a_token_that_calls_too_often_is_slowed_down_without_the_others(
    tasks: JetJobs, client: Client
) -> None:
    eager, calm = await bearer(tasks, "eager", "read"), await bearer(tasks, "calm", "read")
    statuses = [(await client.get("/queues", headers=eager)).status_code for _ in range(6)]
    assert statuses.count(200) >= 3
    assert 429 in statuses
    answer = await client.get("/tasks", headers=eager)
    while answer.status_code != 429:
        answer = await client.get("/tasks", headers=eager)
    check(answer)
    assert answer.headers["retry-after"] == "1"
    await client.call("GET", "/queues", headers=calm)


@pytest.mark.settings(http={**LOCAL, "max_requests": 1})
async def test_too_many_requests_in_progress_are_answered_503(client: Client) -> None:
    waiting = asyncio.create_task(client.post("/jobs?wait=30s", json={"task": "work"}))
    await eventually(lambda: _is(client.server.application.limits.requests == 1))
    problem = await client.call("GET", "/queues", 503)
    assert problem["code"] == "too_many_requests"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: _is(client.server.application.limits.requests == 0))
    await client.call("GET", "/queues")


async def _is(value: bool) -> bool:
    return value


@pytest.mark.settings(http=LOCAL)
async def test_behind_a_proxy_the_path_is_part_of_locations_and_of_the_document(tasks: JetJobs) -> None:
    async with provisioned(tasks) as app, serving(app, root_path="/shop/") as client:
        answer = await client.post("/jobs", json={"task": "work"})
        assert answer.headers["location"] == f"/shop/api/v1/jobs/{answer.json()['id']}"
        document = await client.get(f"{client.server.url}/openapi.json")
        assert document.json()["servers"] == [{"url": "/shop"}]
        page = await client.get(f"{client.server.url}/docs")
        assert "script-src" not in page.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]


@pytest.mark.settings(http=TOKENS)
async def test_health_needs_no_token_and_metrics_need_the_scope_read(tasks: JetJobs, client: Client) -> None:
    root = client.server.url
    for path in ("/livez", "/readyz"):
        assert (await client.get(root + path)).status_code == 200
    assert (await client.get(root + "/metrics")).status_code == 401
    producer = await bearer(tasks, "producer", "enqueue:*")
    assert (await client.get(root + "/metrics", headers=producer)).status_code == 403
    page = await client.get(root + "/metrics", headers=await bearer(tasks, "reader", "read"))
    assert "jetjobs_jobs_enqueued_total" in page.text


# Mounted


@contextlib.asynccontextmanager
async def mounted(app: JetJobs, authorize: Any) -> AsyncIterator[httpx.AsyncClient]:
    outer = Starlette(routes=[Mount("/inner", api(app, authorize=authorize))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://shop.example") as client:
        yield client


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_mounted_api_asks_the_program_who_calls(tasks: JetJobs, truth: Truth, kind: str) -> None:
    def by_header(request: Request) -> Access | None:
        name = request.headers.get("x-user")
        return Access(name, frozenset({"enqueue:work", "read"})) if name else None

    async def later(request: Request) -> Access | None:
        return by_header(request)

    async with provisioned(tasks) as app, mounted(app, by_header if kind == "sync" else later) as client:
        assert (await client.get("/inner/api/v1/queues")).status_code == 401
        ada = {"x-user": "ada"}
        answer = await client.post("/inner/api/v1/jobs", json={"task": "work"}, headers=ada)
        job_id = answer.json()["id"]
        assert (answer.status_code, answer.headers["location"]) == (201, f"/inner/api/v1/jobs/{job_id}")
        assert (await client.get(answer.headers["location"], headers=ada)).status_code == 200
        assert (await client.post("/inner/api/v1/jobs:cancel", json={}, headers=ada)).status_code == 403
        assert (await client.get("/inner/openapi.json")).json()["servers"] == [{"url": "/inner"}]
        stored = await truth.js.get_last_msg("jobs-work-default", f"jobs.work.default.normal.work.-.{job_id}")
        assert (stored.headers or {})["Jetjobs-Producer"] == "ada"


async def test_a_mounted_api_without_authorize_needs_a_token(tasks: JetJobs) -> None:
    async with provisioned(tasks) as app, mounted(app, None) as client:
        assert (await client.get("/inner/api/v1/queues")).status_code == 401
        headers = await bearer(app, "reader", "read")
        assert (await client.get("/inner/api/v1/queues", headers=headers)).status_code == 200


async def test_the_api_opens_the_app_when_it_is_served_by_itself(make_app: MakeApp) -> None:
    app = make_app()
    application = api(app)
    sent: list[str] = []
    events = asyncio.Queue[dict[str, str]]()

    async def send(message: Any) -> None:
        sent.append(message["type"])

    events.put_nowait({"type": "lifespan.startup"})
    serving_it = asyncio.ensure_future(application({"type": "lifespan"}, events.get, send))
    await eventually(lambda: _is(sent == ["lifespan.startup.complete"]))
    assert app.is_open
    events.put_nowait({"type": "lifespan.shutdown"})
    await serving_it
    assert (sent[-1], app.is_open) == ("lifespan.shutdown.complete", False)
