"""POST /jobs and GET /jobs/{id} over a real socket, verified on the streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, Reject, Worker
from tests.conftest import MakeApp
from tests.support.http_api import Client, serving
from tests.support.probe import eventually, wait_until
from tests.support.server import Truth
from tests.support.workers import provisioned, running

pytestmark = pytest.mark.settings(http={"port": 0})
ADD = {"task": "add", "args": {"a": 1, "b": 2}}


@pytest.fixture
def tasks(app: JetJobs) -> JetJobs:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def refuse() -> None:
        raise Reject("on purpose")

    @app.task
    async def wait() -> None:
        await asyncio.sleep(600)

    @app.task(store_result=False)
    async def forget() -> None: ...

    @app.task
    async def large() -> str:
        return "x" * 1_200_000

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


async def headers_of(truth: Truth, subject: str, queue: str = "default") -> dict[str, str]:
    return (await truth.js.get_last_msg(f"jobs-work-{queue}", subject)).headers or {}


async def test_a_job_is_stored_with_its_arguments_and_its_producer(client: Client, truth: Truth) -> None:
    answer = await client.post("/jobs", json=ADD)
    job = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert job == {
        "id": job["id"],
        "queue": "default",
        "task": "add",
        "duplicate": False,
        "state": "queued",
        "estimated_start": None,  # no worker runs
    }
    subject = f"jobs.work.default.normal.add.-.{job['id']}"
    assert await truth.jobs() == [subject]
    stored = await truth.js.get_last_msg("jobs-work-default", subject)
    assert json.loads(stored.data or b"") == ADD["args"]
    assert (stored.headers or {})["Jetjobs-Producer"] == "local"


async def test_every_option_arrives_on_the_stream(client: Client, truth: Truth) -> None:
    deadline = datetime(2100, 1, 1, tzinfo=UTC)
    more = {"queue": "mail", "priority": "high", "key": "k1", "deadline": deadline.isoformat(), "max_attempts": 7}
    job = await client.call("POST", "/jobs", 201, json={**ADD, **more})
    [subject] = await truth.jobs("mail")
    assert subject.startswith("jobs.work.mail.high.add.k")
    assert job["id"] == "-".join(subject.split(".")[-2:])
    headers = await headers_of(truth, subject, "mail")
    assert headers["Jetjobs-Max-Attempts"] == "7"
    assert float(headers["Jetjobs-Deadline"]) == deadline.timestamp()


@pytest.mark.parametrize("time", [{"delay": "1h"}, {"delay": 3600}, {"run_at": "2100-01-01T00:00:00Z"}])
async def test_a_delayed_job_is_scheduled_and_starts_when_it_is_due(
    client: Client, truth: Truth, time: dict[str, Any]
) -> None:
    job = await client.call("POST", "/jobs", 201, json={**ADD, **time})
    assert job["state"] == "scheduled"
    assert await truth.jobs(lane="later") == [f"jobs.work.default.later.add.-.{job['id']}"]
    start = datetime.fromisoformat(job["estimated_start"])
    due = datetime.fromisoformat(time["run_at"]) if "run_at" in time else datetime.now(UTC) + timedelta(hours=1)
    assert abs(start - due) < timedelta(seconds=5)


async def test_a_live_job_with_the_same_key_is_answered_instead_of_a_second_one(
    client: Client, truth: Truth
) -> None:
    first = await client.call("POST", "/jobs", 201, json={**ADD, "key": "same"})
    second = await client.call("POST", "/jobs", 200, json={**ADD, "key": "same"})
    assert (second["id"], second["state"], second["arguments"]) == (first["id"], "queued", ADD["args"])
    assert len(await truth.jobs()) == 1


async def test_a_repeated_request_gets_its_job_while_it_waits_and_after_its_end(
    tasks: JetJobs, client: Client, truth: Truth
) -> None:
    same = {"headers": {"Idempotency-Key": "order 17"}, "json": ADD}
    first = await client.call("POST", "/jobs", 201, **same)
    assert first["id"][0] == "i"
    assert len(first["id"]) == 27
    assert (await client.call("POST", "/jobs", 200, **same))["state"] == "queued"
    async with running(tasks.worker()):
        ended = await client.call("POST", "/jobs?wait=10s", 200, **same)
        assert (ended["id"], ended["state"], ended["result"]) == (first["id"], "succeeded", 3)
    assert (await client.call("POST", "/jobs", 200, **same))["result"] == 3
    assert len(await truth.done()) == 1
    assert await truth.jobs() == []


async def test_a_repeated_request_with_another_body_is_refused(client: Client, truth: Truth) -> None:
    header = {"Idempotency-Key": "order 17"}
    first = await client.call("POST", "/jobs", 201, json=ADD, headers=header)
    other = {"task": "add", "args": {"a": 1, "b": 3}}
    problem = await client.call("POST", "/jobs", 422, json=other, headers=header)
    assert (problem["code"], problem["job_id"]) == ("job_conflict", first["id"])
    reordered = {"args": {"b": 2, "a": 1}, "task": "add"}
    assert (await client.call("POST", "/jobs", 200, json=reordered, headers=header))["id"] == first["id"]
    assert len(await truth.jobs()) == 1


async def test_a_task_without_results_keeps_the_record_of_a_repeatable_request(
    client: Client, worker: Worker, truth: Truth
) -> None:
    same = {"headers": {"Idempotency-Key": "x"}, "json": {"task": "forget"}}
    job = await client.call("POST", "/jobs", 201, **same)
    await truth.until_empty()
    assert (await client.call("POST", "/jobs", 200, **same))["id"] == job["id"]
    assert (await truth.done())[job["id"]]["state"] == "succeeded"
    assert (await client.call("POST", "/jobs?wait=10s", 200, **same))["state"] == "succeeded"


@pytest.mark.parametrize("wait", [{"params": {"wait": "10s"}}, {"headers": {"Prefer": "wait=10"}}])
async def test_a_call_that_waits_gets_the_result(client: Client, worker: Worker, wait: dict[str, Any]) -> None:
    job = await client.call("POST", "/jobs", 200, json=ADD, **wait)
    assert (job["state"], job["result"]) == ("succeeded", 3)


async def test_a_call_that_waits_gets_a_result_that_is_too_large_for_a_message(
    client: Client, worker: Worker
) -> None:
    job = await client.call("POST", "/jobs?wait=10s", 200, json={"task": "large"})
    assert len(job["result"]) == 1_200_000


async def test_a_call_that_waits_gets_a_dead_job(client: Client, worker: Worker) -> None:
    job = await client.call("POST", "/jobs?wait=10s", 200, json={"task": "refuse"})
    assert (job["state"], job["reason"]) == ("dead", "permanent")
    assert "on purpose" in job["error"]


async def test_a_call_that_waits_too_short_gets_the_live_job(client: Client, truth: Truth) -> None:
    job = await client.call("POST", "/jobs?wait=50ms", 202, json=ADD)
    assert (job["state"], job["duplicate"]) == ("queued", False)
    assert (await client.call("GET", f"/jobs/{job['id']}?wait=50ms"))["state"] == "queued"
    assert len(await truth.jobs()) == 1


async def test_a_client_that_disconnects_during_a_wait_leaves_its_job_alone(
    tasks: JetJobs, client: Client, truth: Truth
) -> None:
    waiting = asyncio.create_task(client.post("/jobs?wait=30s", json={**ADD, "key": "left"}))
    await eventually(truth.jobs)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await wait_until(lambda: client.server.application.limits.requests == 0)
    async with running(tasks.worker()):
        await truth.until_empty()
    assert [record["result"] for record in (await truth.done()).values()] == [3]


async def test_an_estimated_start_is_now_while_a_worker_is_idle(
    tasks: JetJobs, client: Client, worker: Worker
) -> None:
    await eventually(tasks.workers.list)
    for _ in range(2):  # the second answer is computed from the same state of the queue
        job = await client.call("POST", "/jobs", 201, json=ADD)
        assert abs(datetime.fromisoformat(job["estimated_start"]) - datetime.now(UTC)) < timedelta(seconds=5)


async def test_a_job_is_shown_with_an_etag(client: Client, truth: Truth) -> None:
    job = await client.call("POST", "/jobs", 201, json=ADD)
    answer = await client.get(f"/jobs/{job['id']}")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    same = await client.get(f"/jobs/{job['id']}", headers={"If-None-Match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    other = await client.get(f"/jobs/{job['id']}", headers={"If-None-Match": '"x"'})
    assert other.status_code == 200


async def test_a_batch_is_stored_with_an_answer_for_each_job(client: Client, truth: Truth) -> None:
    await client.call("POST", "/jobs", 201, json={**ADD, "key": "taken"})
    wanted = [ADD, {"task": "send", "args": {"to": "ada"}}, {**ADD, "key": "taken"}, {**ADD, "delay": "1h"}]
    report = await client.call("POST", "/jobs:batch", 201, json={"jobs": wanted})
    assert (report["stored"], report["duplicates"], report["refused"]) == (3, 1, 0)
    assert [item["duplicate"] for item in report["items"]] == [False, False, True, False]
    assert [item["queue"] for item in report["items"]] == ["default", "mail", "default", "default"]
    found = {subject.rsplit(".", 1)[1] for subject in (*await truth.jobs(), *await truth.jobs("mail"))}
    assert found == {item["id"].rpartition("-")[2] for item in report["items"]}
    [mail] = await truth.jobs("mail")
    assert (await headers_of(truth, mail, "mail"))["Jetjobs-Producer"] == "local"


async def test_a_batch_with_one_invalid_job_stores_nothing(client: Client, truth: Truth) -> None:
    wanted = [ADD, {"task": "add", "args": {"a": "x", "b": 2}}]
    problem = await client.call("POST", "/jobs:batch", 422, json={"jobs": wanted})
    assert [error["field"] for error in problem["errors"]] == ["jobs.1.args.a"]
    problem = await client.call("POST", "/jobs:batch", 422, json={"jobs": [ADD] * 1001})
    assert problem["code"] == "invalid_body"
    assert await truth.jobs() == []


async def test_a_batch_reports_the_jobs_of_a_queue_that_does_not_exist(client: Client, truth: Truth) -> None:
    report = await client.call("POST", "/jobs:batch", 207, json={"jobs": [ADD, {**ADD, "queue": "nowhere"}]})
    assert (report["stored"], report["refused"]) == (1, 1)
    assert report["items"][1]["error"]["code"] == "queue_not_found"
    assert len(await truth.jobs()) == 1


async def test_without_the_app_arguments_are_checked_by_the_schema_that_workers_publish(
    tasks: JetJobs, make_app: MakeApp, truth: Truth
) -> None:
    gate = make_app("gate", http={"port": 0})
    async with provisioned(tasks), running(tasks.worker(queues={"default": None})), gate, serving(gate) as client:
        problem = await client.call("POST", "/jobs", 422, json={"task": "send", "args": {"to": 7}})
        assert (problem["code"], problem["errors"][0]["field"]) == ("invalid_arguments", "args.to")
        problem = await client.call("POST", "/jobs", 422, json={"task": "sent", "args": {}})
        assert (problem["code"], problem["hint"]) == ("unknown_task", "did you mean 'send'?")
        job = await client.call("POST", "/jobs", 201, json={"task": "send", "args": {"to": "ada"}})
        assert job["queue"] == "mail"
        assert await truth.jobs("mail") == [f"jobs.work.mail.normal.send.-.{job['id']}"]
        assert (await client.call("POST", "/jobs?wait=10s", 200, json=ADD))["result"] == 3


async def test_a_repeat_is_answered_with_its_job_after_its_time_has_passed(client: Client, worker: Worker) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    body = {**ADD, "run_at": soon.isoformat()}
    key = {"Idempotency-Key": "order-17"}
    first = await client.post("/jobs", json=body, headers=key)
    assert first.status_code == 201
    job_id = first.json()["id"]

    async def ended() -> bool:
        return bool((await client.get(f"/jobs/{job_id}")).json()["state"] == "succeeded")

    await eventually(ended)
    again = await client.post("/jobs", json=body, headers=key)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, job_id, "succeeded")
    other = await client.post("/jobs", json={**body, "args": {"a": 1, "b": 3}}, headers=key)
    assert other.status_code == 422


@pytest.mark.parametrize("preference", ["wait=-5", "wait=" + "9" * 400, "wait=1_0", "wait=x"])
async def test_an_invalid_preference_is_ignored(client: Client, preference: str) -> None:
    answer = await client.post("/jobs", json={**ADD, "delay": "1h"}, headers={"Prefer": preference})
    assert answer.status_code == 201
