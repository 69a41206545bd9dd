"""List, cancel, retry and move jobs over HTTP, verified on the streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, Reject, Retry, Worker
from tests.support.http_api import Client, serving
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

pytestmark = pytest.mark.settings(http={"port": 0})


class Switch:
    def __init__(self) -> None:
        self.broken = True
        self.released = threading.Event()


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def tasks(app: JetJobs, switch: Switch) -> JetJobs:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def fragile(n: int) -> int:
        if switch.broken:
            raise Reject("on purpose")
        return n

    @app.task
    async def again() -> None:
        raise Retry(after=timedelta(hours=1))

    @app.task
    async def hold() -> None:
        await asyncio.sleep(600)

    @app.task
    def block() -> None:
        switch.released.wait(30)

    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    return app


@pytest.fixture
async def client(tasks: JetJobs) -> AsyncIterator[Client]:
    async with provisioned(tasks) as app, serving(app) as client:
        yield client


@pytest.fixture
async def worker(tasks: JetJobs, client: Client) -> AsyncIterator[Worker]:
    async with running(tasks.worker()) as worker:
        yield worker


async def post(client: Client, task: str, /, args: dict[str, Any] | None = None, **more: Any) -> str:
    job = await client.call("POST", "/jobs", 201, json={"task": task, "args": args or {}, **more})
    return str(job["id"])


async def in_state(client: Client, job_id: str, state: str) -> Any:
    async def job() -> Any:
        return await client.call("GET", f"/jobs/{job_id}")

    return await eventually(job, where=lambda found: found["state"] == state)


async def test_jobs_are_listed_by_state_queue_task_argument_and_key(client: Client) -> None:
    first = await post(client, "add", {"a": 1, "b": 2})
    later = await post(client, "add", {"a": 5, "b": 2}, delay="1h", key="k")
    mail = await post(client, "send", {"to": "ada"})

    async def ids(**query: Any) -> set[str]:
        page = await client.call("GET", "/jobs", params=query)
        assert (page["cursor"], page["scanned"] > 0) == (None, True)
        return {item["id"] for item in page["items"]}

    assert await ids() == {first, later, mail}
    assert await ids(state="scheduled") == {later}
    assert await ids(queue="mail") == {mail}
    assert await ids(task="add") == {first, later}
    assert await ids(where="args.a=5") == {later}
    assert await ids(where=["args.a=5", "args.b=2"]) == {later}
    assert await ids(key="k") == {later}
    assert await ids(since="1h") == {first, later, mail}


async def test_a_list_is_continued_by_its_cursor(client: Client) -> None:
    stored = [await post(client, "add", {"a": n, "b": 0}) for n in range(5)]
    found: list[str] = []
    cursor = None
    for expected in (2, 2, 1):
        query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = await client.call("GET", "/jobs", params=query)
        assert len(page["items"]) == expected
        found += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
    assert cursor is None
    assert found == stored
    problem = await client.call("GET", "/jobs", 422, params={"cursor": "eyJ4", "limit": 2})
    assert problem["code"] == "config_error"


async def test_a_waiting_job_is_cancelled(client: Client, truth: Truth) -> None:
    job_id = await post(client, "add", {"a": 1, "b": 2})
    answer = await client.call("DELETE", f"/jobs/{job_id}", params={"reason": "a mistake"})
    assert (answer["outcome"], answer["state"]) == ("cancelled", "cancelled")
    assert await truth.jobs() == []
    record = (await truth.done())[job_id]
    assert (record["state"], record["by"], record["reason"]) == ("cancelled", "local", "a mistake")
    assert (await client.call("DELETE", f"/jobs/{job_id}"))["outcome"] == "cancelled"


async def test_a_running_job_is_stopped(client: Client, worker: Worker, truth: Truth) -> None:
    job_id = await post(client, "hold")
    await in_state(client, job_id, "running")
    assert (await client.call("DELETE", f"/jobs/{job_id}"))["outcome"] == "cancelled"
    assert (await truth.done())[job_id]["how"] == "stopped"


async def test_a_running_job_that_does_not_stop_is_answered_202(
    client: Client, worker: Worker, switch: Switch, truth: Truth
) -> None:
    job_id = await post(client, "block")
    await in_state(client, job_id, "running")
    answer = await client.call("DELETE", f"/jobs/{job_id}?wait=0s", 202)
    assert (answer["outcome"], answer["state"]) == ("not stoppable", "running")
    switch.released.set()
    await truth.until_empty()


async def test_a_job_that_has_ended_cannot_be_cancelled(client: Client, worker: Worker) -> None:
    job = await client.call("POST", "/jobs?wait=10s", json={"task": "add", "args": {"a": 1, "b": 2}})
    problem = await client.call("DELETE", f"/jobs/{job['id']}", 409)
    assert (problem["code"], problem["state"]) == ("conflict", "succeeded")


async def test_all_jobs_that_match_are_cancelled(client: Client, truth: Truth) -> None:
    kept = await post(client, "send", {"to": "ada"})
    for n in range(3):
        await post(client, "add", {"a": n, "b": 0})
    dry = await client.call("POST", "/jobs:cancel", json={"task": "add", "dry_run": True})
    assert (dry["matching"], dry["states"], len(dry["first"])) == (3, {"queued": 3}, 3)
    assert len(await truth.jobs()) == 3
    done = await client.call("POST", "/jobs:cancel", json={"task": "add", "reason": "cleaning"})
    assert done == {"matching": 3, "counts": {"cancelled": 3}, "failed": [], "complete": True}
    assert await truth.jobs() == []
    assert await truth.jobs("mail") == [f"jobs.work.mail.normal.send.-.{kept}"]


async def test_a_dead_job_is_replayed_with_other_arguments(
    client: Client, worker: Worker, switch: Switch, truth: Truth
) -> None:
    job_id = await post(client, "fragile", {"n": 1})
    await in_state(client, job_id, "dead")
    problem = await client.call("POST", f"/jobs/{job_id}/retry", 422, json={"args": {"n": "x"}})
    assert problem["code"] == "refused"
    assert job_id in await truth.dead()
    switch.broken = False
    answer = await client.call("POST", f"/jobs/{job_id}/retry", json={"args": {"n": 7}, "reason": "fixed"})
    assert (answer["outcome"], answer["state"]) == ("replayed", "queued")
    job = await client.call("GET", f"/jobs/{job_id}?wait=10s")
    assert (job["result"], job["replays"][0]["by"], job["replays"][0]["why"]) == (7, "local", "fixed")
    assert await truth.dead() == {}


async def test_a_scheduled_and_a_retrying_job_are_run_now(client: Client, truth: Truth, tasks: JetJobs) -> None:
    later = await post(client, "add", {"a": 1, "b": 2}, delay="1h")
    async with running(tasks.worker()):
        again = await post(client, "again")
        await in_state(client, again, "retrying")
    for job_id in (later, again):
        answer = await client.call("POST", f"/jobs/{job_id}/retry")
        assert answer["outcome"] == "moved"
    assert {subject.split(".")[3] for subject in await truth.jobs()} == {"normal"}


async def test_a_queued_a_running_and_an_ended_job_are_not_retried(
    client: Client, tasks: JetJobs, truth: Truth
) -> None:
    job_id = await post(client, "add", {"a": 1, "b": 2})
    assert (await client.call("POST", f"/jobs/{job_id}/retry", 409))["state"] == "queued"
    async with running(tasks.worker()):
        await in_state(client, job_id, "succeeded")
        assert (await client.call("POST", f"/jobs/{job_id}/retry", 409))["state"] == "succeeded"
        held = await post(client, "hold")
        await in_state(client, held, "running")
        assert (await client.call("POST", f"/jobs/{held}/retry", 409))["state"] == "running"
        await client.request("DELETE", f"/jobs/{held}")


async def test_a_waiting_job_gets_another_time_and_another_priority(client: Client, truth: Truth) -> None:
    job_id = await post(client, "add", {"a": 1, "b": 2}, delay="1h")
    at = datetime.now(UTC) + timedelta(hours=5)
    assert (await client.call("PATCH", f"/jobs/{job_id}", json={"run_at": at.isoformat()}))["outcome"] == "moved"
    job = await client.call("GET", f"/jobs/{job_id}")
    assert abs(datetime.fromisoformat(job["due_at"]) - at) < timedelta(seconds=1)
    assert (await client.call("PATCH", f"/jobs/{job_id}", json={"priority": "high"}))["outcome"] == "moved"
    [subject] = await truth.jobs(lane="later")
    headers = (await truth.js.get_last_msg("jobs-work-default", subject)).headers or {}
    assert headers["Nats-Schedule-Target"] == f"jobs.work.default.high.add.-.{job_id}"
    assert (await client.call("PATCH", f"/jobs/{job_id}", json={"delay": "2h"}))["outcome"] == "moved"
    await client.call("PATCH", f"/jobs/{job_id}", 422, json={"delay": "2h", "priority": "low"})
    await client.call("PATCH", f"/jobs/{job_id}", 422, json={"run_at": "2020-01-01T00:00:00Z"})


async def test_an_unknown_job_is_not_found(client: Client) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/retry"), ("PATCH", "")):
        body = {"json": {"priority": "low"}} if method == "PATCH" else {}
        problem = await client.call(method, f"/jobs/{'0' * 32}{path}", 404, **body)
        assert problem["code"] == "job_not_found"


async def test_changes_are_recorded_in_the_audit(client: Client, tasks: JetJobs) -> None:
    job_id = await post(client, "add", {"a": 1, "b": 2}, delay="1h")
    await client.call("PATCH", f"/jobs/{job_id}", json={"delay": "2h", "reason": "not now"})
    await client.call("POST", "/jobs:cancel", json={"task": "add", "reason": "cleaning"})
    entries = [entry async for entry in tasks.audit.list()]
    found = [(entry.action, entry.target, entry.by, entry.via, entry.reason) for entry in entries]
    assert ("job.reschedule", job_id, "local", "http", "not now") in found
    assert ("job.cancel", "task=add", "local", "http", "cleaning") in found
