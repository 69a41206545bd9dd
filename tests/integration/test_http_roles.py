"""The HTTP API as the user `http` of the example configuration: every call has the permissions it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, Reject
from jetjobs.model.settings import HttpSettings
from tests.support.http_api import Client, serving
from tests.support.probe import eventually
from tests.support.roles import GuardedServer
from tests.support.workers import running


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedServer]:
    with GuardedServer(tmp_path) as server:
        yield server


def app_of(server: GuardedServer, role: str) -> JetJobs:
    settings = server.settings_of(role).model_copy(update={"http": HttpSettings(port=0)})
    app = JetJobs("t", settings=settings)

    @app.task
    async def quick(text: str = "") -> str:
        return text

    @app.task
    async def refuse() -> None:
        raise Reject("on purpose")

    return app


async def test_the_user_http_may_make_every_call(guarded: GuardedServer) -> None:
    async with app_of(guarded, "setup") as setup:
        await setup.provision()
    async with (
        app_of(guarded, "worker") as workers,
        running(workers.worker(name="one")),
        app_of(guarded, "http") as app,
        serving(app) as client,
    ):
        await eventually(app.workers.list, where=lambda found: [w.phase for w in found] == ["ready"])
        await jobs(client)
        await letters(client)
        await the_rest(client)


async def jobs(client: Client) -> None:
    body: dict[str, Any] = {"task": "quick", "args": {"text": "x"}}
    done = await client.call("POST", "/jobs?wait=10s", 200, json=body, headers={"Idempotency-Key": "k"})
    assert done["result"] == "x"
    await client.call("GET", f"/jobs/{done['id']}")
    await client.call("POST", "/jobs:batch", 201, json={"jobs": [body]})
    later = (await client.call("POST", "/jobs", 201, json={**body, "delay": "1h"}))["id"]
    await client.call("PATCH", f"/jobs/{later}", json={"delay": "2h"})
    await client.call("PATCH", f"/jobs/{later}", json={"priority": "high"})
    await client.call("GET", "/jobs?state=scheduled")
    await client.call("DELETE", f"/jobs/{later}")
    now = (await client.call("POST", "/jobs", 201, json={**body, "delay": "1h"}))["id"]
    await client.call("POST", f"/jobs/{now}/retry")
    await client.call("POST", "/jobs:cancel", json={"state": "scheduled"})
    async with client.stream("GET", "/events") as answer:
        assert answer.status_code == 200


async def letters(client: Client) -> None:
    dead = await client.call("POST", "/jobs?wait=10s", 200, json={"task": "refuse"})
    assert dead["state"] == "dead"
    await client.call("GET", "/dead")
    await client.call("GET", "/dead:groups")
    await client.call("GET", f"/dead/{dead['id']}")
    await client.call("POST", "/dead:replay", json={"all": True})

    async def count() -> int:
        return len((await client.call("GET", "/dead"))["items"])

    await eventually(count)
    assert await client.call("POST", "/dead:delete", json={"all": True}) == {"deleted": 1}


async def the_rest(client: Client) -> None:
    for path in ("/queues", "/queues/default", "/workers", "/workers/one", "/schedules", "/tasks", "/tasks/quick"):
        await client.call("GET", path)
    await client.call("PUT", "/schedules/s", json={"task": "quick", "every": "1h"})
    for verb, status in (("pause", 200), ("resume", 200), ("run", 201)):
        await client.call("POST", f"/schedules/s/{verb}", status)
    await client.call("GET", "/schedules/s")
    await client.call("DELETE", "/schedules/s")
    for verb in ("pause", "resume", "purge"):
        await client.call("POST", f"/queues/default/{verb}")
    await client.call("POST", "/workers/one/quiet")
    # What the example leaves out is answered with the subject that is missing.
    problem = await client.call("DELETE", "/queues/default?force=true", 502)
    assert problem["code"] == "access_denied"
    assert "$JS.API" in problem["detail"] + (problem["hint"] or "")
