"""Which scope may make which call: exact, for every row of the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from jetjobs import JetJobs
from jetjobs.http.routes import TABLE
from tests.support.http_api import Client, serving
from tests.support.workers import provisioned

pytestmark = pytest.mark.settings(http={"port": 0, "rate": 0, "require_token": True})

E, R, OP, A = "enqueue:*", "read", "operate", "admin"
EXPECTED = {
    "POST /jobs": {E, A},
    "POST /jobs:batch": {E, A},
    "GET /jobs/{id}": {R, A},
    "GET /jobs": {R, A},
    "DELETE /jobs/{id}": {OP, A},
    "POST /jobs:cancel": {OP, A},
    "POST /jobs/{id}/retry": {OP, A},
    "PATCH /jobs/{id}": {OP, A},
    "GET /events": {R, A},
    "GET /queues": {R, A},
    "GET /queues/{queue}": {R, A},
    "POST /queues/{queue}/pause": {OP, A},
    "POST /queues/{queue}/resume": {OP, A},
    "POST /queues/{queue}/purge": {A},
    "DELETE /queues/{queue}": {A},
    "GET /workers": {R, A},
    "GET /workers/{worker}": {R, A},
    "POST /workers/{worker}/quiet": {OP, A},
    "POST /workers/{worker}/stop": {A},
    "GET /schedules": {R, A},
    "GET /schedules:next": {R, A},
    "GET /schedules/{schedule}": {R, A},
    "PUT /schedules/{schedule}": {OP, A},
    "DELETE /schedules/{schedule}": {OP, A},
    "GET /schedules/{schedule}/next": {R, A},
    "POST /schedules/{schedule}/pause": {OP, A},
    "POST /schedules/{schedule}/resume": {OP, A},
    "POST /schedules/{schedule}/run": {OP, A},
    "GET /tasks": {R, A},
    "GET /tasks/{task}": {R, A},
    "GET /dead": {R, A},
    "GET /dead:groups": {R, A},
    "GET /dead/{id}": {R, A},
    "POST /dead:replay": {OP, A},
    "POST /dead:delete": {A},
}
BODIES: dict[str, Any] = {
    "POST /jobs": {"task": "work"},
    "POST /jobs:batch": {"jobs": [{"task": "work"}]},
    "PATCH /jobs/{id}": {"priority": "low"},
    "PUT /schedules/{schedule}": {"task": "work", "cron": "x"},
    "POST /jobs:cancel": {"dry_run": True},
    "POST /dead:replay": {"all": True, "dry_run": True},
    "POST /dead:delete": {"all": True, "dry_run": True},
}
"""Of calls whose body has no defaults, and of calls that would change something."""


@pytest.fixture
async def client(app: JetJobs, work: Any) -> AsyncIterator[Client]:
    async with provisioned(app), serving(app) as client:
        yield client


def test_the_matrix_has_every_call() -> None:
    assert list(EXPECTED) == [f"{row.method} {row.path.removeprefix('/api/v1')}" for row in TABLE]


async def status_of(client: Client, call: str, token: str | None) -> int:
    """The status of a call on things that do not exist. The answer of an event stream is not awaited."""
    method, path = call.split()
    for name in ("id", "queue", "worker", "schedule", "task"):
        path = path.replace(f"{{{name}}}", "missing")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"json": BODIES.get(call, {})} if method in ("POST", "PUT", "PATCH") else {}
    request = client.build_request(method, path, headers=headers, **body)
    answer: httpx.Response = await client.send(request, stream=True)
    try:
        return answer.status_code
    finally:
        await answer.aclose()


@pytest.mark.parametrize("scope", [E, R, OP, A])
async def test_a_token_with_one_scope_may_make_exactly_these_calls(
    app: JetJobs, client: Client, scope: str
) -> None:
    token = await app.tokens.new("one", [scope])
    statuses = {call: await status_of(client, call, token) for call in EXPECTED}
    assert set(statuses.values()) <= {200, 201, 403, 404, 422}
    assert {call for call, status in statuses.items() if status != 403} == {
        call for call, scopes in EXPECTED.items() if scope in scopes
    }


async def test_without_a_token_and_with_a_wrong_one_no_call_is_answered(app: JetJobs, client: Client) -> None:
    good = await app.tokens.new("one", [A])
    wrong = [None, "x", good[:-1] + ("a" if good[-1] != "a" else "b")]
    for call in EXPECTED:
        assert [await status_of(client, call, token) for token in wrong] == [401, 401, 401], call


async def test_a_token_for_one_task_enqueues_only_that_one(app: JetJobs, client: Client) -> None:
    @app.task
    async def other() -> None: ...

    headers = {"Authorization": "Bearer " + await app.tokens.new("billing", ["enqueue:work"])}
    await client.call("POST", "/jobs", 201, json={"task": "work"}, headers=headers)
    problem = await client.call("POST", "/jobs", 403, json={"task": "other"}, headers=headers)
    assert (problem["code"], problem["scope"]) == ("missing_scope", "enqueue:other")
    both = {"jobs": [{"task": "work"}, {"task": "other"}]}
    await client.call("POST", "/jobs:batch", 403, json=both, headers=headers)
    await client.call("POST", "/jobs", 403, json={"task": "unknown"}, headers=headers)
