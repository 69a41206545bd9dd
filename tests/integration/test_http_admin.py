"""Queues, workers, schedules, tasks and dead letters over HTTP, verified on the streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

import pytest

from jetjobs import JetJobs, Reject, Secret, Worker
from tests.conftest import MakeApp
from tests.support.http_api import Client, serving
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

pytestmark = pytest.mark.settings(http={"port": 0})


@pytest.fixture
def tasks(app: JetJobs) -> JetJobs:
    @app.task
    async def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        return a + b

    @app.task
    async def refuse(password: Annotated[str, Secret()] = "") -> None:
        raise Reject("on purpose")

    @app.task
    async def report(scheduled_time: datetime) -> None: ...

    @app.task
    async def hold() -> None:
        await asyncio.sleep(600)

    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    return app


@pytest.fixture
async def client(tasks: JetJobs) -> AsyncIterator[Client]:
    async with provisioned(tasks) as app, serving(app) as client:
        yield client


@pytest.fixture
async def worker(tasks: JetJobs, client: Client) -> AsyncIterator[Worker]:
    async with running(tasks.worker(name="one")) as worker:
        await eventually(tasks.workers.list, where=lambda found: [w.phase for w in found] == ["ready"])
        yield worker


async def post(client: Client, task: str, /, args: dict[str, Any] | None = None, **more: Any) -> str:
    job = await client.call("POST", "/jobs", 201, json={"task": task, "args": args or {}, **more})
    return str(job["id"])


# Queues


async def test_queues_are_listed_and_shown_with_their_counts(client: Client) -> None:
    await post(client, "add", {"a": 1})
    await post(client, "add", {"a": 1}, delay="1h")
    listed = await client.call("GET", "/queues")
    assert [(one["queue"], one["queued"], one["scheduled"]) for one in listed["items"]] == [
        ("default", 1, 1),
        ("mail", 0, 0),
    ]
    shown = await client.call("GET", "/queues/default")
    assert (shown["queued"], shown["activity"], shown["starts_in_s"]) == (1, "no worker", None)
    assert {lane["lane"] for lane in shown["lanes"]} >= {"high", "normal", "low"}


async def test_a_queue_is_paused_and_resumed(client: Client, truth: Truth) -> None:
    shown = await client.call("POST", "/queues/mail/pause", json={"for": "1h", "reason": "provider is down"})
    assert (shown["state"], shown["pause"]["by"]) == ("paused", "local")
    assert (await truth.consumer("normal", "mail"))["paused"]
    assert await client.call("POST", "/queues/mail/resume") == {"queue": "mail", "resumed": True}
    assert not (await truth.consumer("normal", "mail")).get("paused")
    assert await client.call("POST", "/queues/mail/resume") == {"queue": "mail", "resumed": False}


async def test_a_queue_is_purged(client: Client, truth: Truth) -> None:
    await post(client, "add", {"a": 1})
    later = await post(client, "add", {"a": 1}, delay="1h")
    answer = await client.call("POST", "/queues/default/purge", json={"reason": "a test"})
    assert answer == {"queue": "default", "purged": 1, "purged_scheduled": 0}
    assert await truth.jobs() == [f"jobs.work.default.later.add.-.{later}"]
    answer = await client.call("POST", "/queues/default/purge", json={"scheduled": True})
    assert answer["purged_scheduled"] == 1
    assert await truth.jobs() == []


async def test_a_queue_in_use_is_deleted_only_by_force(client: Client, truth: Truth) -> None:
    await post(client, "send", {"to": "ada"})
    assert (await client.call("DELETE", "/queues/mail", 409))["code"] == "queue_in_use"
    assert await client.call("DELETE", "/queues/mail?force=true") == {"queue": "mail", "jobs": 1, "dead": 0}
    assert not await truth.has_stream("jobs-work-mail")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/purge")):
        assert (await client.call(method, f"/queues/mail{path}", 404))["code"] == "queue_not_found"


# Workers


async def test_workers_are_listed_and_shown(client: Client, worker: Worker) -> None:
    [listed] = (await client.call("GET", "/workers", params={"queue": "mail"}))["items"]
    assert (listed["name"], listed["queues"]) == ("one", ["default", "mail"])
    held = await post(client, "hold")

    async def shown() -> Any:
        return await client.call("GET", "/workers/one")

    found = await eventually(shown, where=lambda one: one["running"])
    assert [job["id"] for job in found["running"]] == [held]
    assert set(found["tasks"]) == {"add", "refuse", "report", "hold", "send"}
    await client.request("DELETE", f"/jobs/{held}")
    assert (await client.call("GET", "/workers?queue=nowhere", 404))["code"] == "queue_not_found"
    assert (await client.call("GET", "/workers/missing", 404))["code"] == "worker_not_found"


async def test_a_worker_is_quieted_and_stopped(client: Client, tasks: JetJobs) -> None:
    worker = tasks.worker(name="one")
    work = asyncio.create_task(worker.run())
    await eventually(tasks.workers.list, where=lambda found: [w.phase for w in found] == ["ready"])
    answer = await client.call("POST", "/workers/one/quiet", json={"reason": "a deploy"})
    assert (answer["ok"], answer["phase"]) == (True, "quiet")
    assert (await client.call("POST", "/workers/one/stop"))["ok"]
    await asyncio.wait_for(work, 15)
    assert (await client.call("GET", "/workers"))["items"] == []


# Schedules


async def test_a_schedule_is_put_shown_paused_resumed_run_and_deleted(client: Client, truth: Truth) -> None:
    wanted = {"task": "add", "args": {"a": 3}, "cron": "0 9 * * *", "tz": "Europe/Berlin", "revision": 0}
    stored = await client.call("PUT", "/schedules/daily", json=wanted)
    assert (stored["name"], stored["args"], stored["state"]) == ("daily", {"a": 3}, "on")
    assert (await client.call("PUT", "/schedules/daily", 409, json=wanted))["code"] == "schedule_conflict"
    shown = await client.call("GET", "/schedules/daily")
    assert (len(shown["upcoming"]), shown["last_job_state"]) == (5, None)
    times = await client.call("GET", "/schedules/daily/next?count=2&tz=Asia/Tokyo")
    assert [one["local"][-6:] for one in times["items"]] == ["+09:00", "+09:00"]
    assert (await client.call("POST", "/schedules/daily/pause", json={"reason": "holidays"}))["paused"]
    assert not (await client.call("POST", "/schedules/daily/resume"))["paused"]
    ran = await client.call("POST", "/schedules/daily/run", 201)
    assert (ran["schedule"], ran["queue"], ran["task"]) == ("daily", "default", "add")
    [subject] = await truth.jobs(lane="normal")
    assert ran["id"] == "-".join(subject.split(".")[-2:])
    assert [one["name"] for one in (await client.call("GET", "/schedules"))["items"]] == ["daily"]
    assert await client.call("DELETE", "/schedules/daily") == {"name": "daily", "deleted": True}
    assert (await client.call("GET", "/schedules/daily", 404))["code"] == "schedule_not_found"


async def test_the_times_of_a_rule_are_listed_without_storing_it(client: Client) -> None:
    times = await client.call("GET", "/schedules:next", params={"cron": "0 9 * * *", "tz": "Europe/Berlin"})
    assert (times["schedule"], times["tz"], len(times["items"])) == (None, "Europe/Berlin", 5)
    assert len((await client.call("GET", "/schedules:next?every=5m&count=2"))["items"]) == 2
    assert (await client.call("GET", "/schedules:next?cron=x", 422))["code"] == "config_error"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"args": {"a": "x"}}, "invalid_arguments"),
        ({"task": "unknown"}, "unknown_task"),
        ({"cron": "0 25 * * *"}, "definition_error"),
        ({"every": "5m"}, "definition_error"),
        ({"tz": "Mars/Base"}, "definition_error"),
        ({"overlap": "maybe"}, "invalid_body"),
    ],
)
async def test_an_invalid_schedule_is_refused(client: Client, changed: dict[str, Any], code: str) -> None:
    wanted = {"task": "add", "args": {"a": 3}, "cron": "0 9 * * *"}
    assert (await client.call("PUT", "/schedules/daily", 422, json=wanted | changed))["code"] == code
    assert (await client.call("GET", "/schedules"))["items"] == []


async def test_without_the_app_a_schedule_is_checked_by_the_published_schema(
    tasks: JetJobs, make_app: MakeApp
) -> None:
    gate = make_app("gate", http={"port": 0})
    async with provisioned(tasks), running(tasks.worker()), gate, serving(gate) as client:
        await eventually(tasks.workers.list, where=lambda found: [w.phase for w in found] == ["ready"])
        problem = await client.call("PUT", "/schedules/s", 422, json={"task": "add", "args": {}, "every": "1h"})
        assert problem["errors"] == [{"field": "args.a", "message": "is missing"}]
        stored = await client.call("PUT", "/schedules/s", json={"task": "report", "every": "1h"})
        assert stored["task"] == "report"
        ran = await client.call("POST", "/schedules/s/run", 201)
        assert (await client.call("GET", f"/jobs/{ran['id']}?wait=10s"))["state"] == "succeeded"


# Tasks


async def test_tasks_are_listed_and_shown_with_their_schema(client: Client, worker: Worker) -> None:
    listed = {one["task"]: one for one in (await client.call("GET", "/tasks"))["items"]}
    assert (listed["add"]["description"], listed["add"]["workers"]) == ("Add two numbers.", 1)
    assert listed["refuse"]["secret"] == ["password"]
    shown = await client.call("GET", "/tasks/add")
    assert shown["versions"][0]["definition"]["schema"]["required"] == ["a"]
    assert (await client.call("GET", "/tasks/ad", 404))["hint"] == "did you mean 'add'?"


# Dead letters


@pytest.fixture
async def letters(client: Client, tasks: JetJobs, truth: Truth) -> list[str]:
    """Three dead jobs, without a worker."""
    ids = [await post(client, "refuse", {"password": "hunter2"}) for _ in range(3)]
    async with running(tasks.worker()):
        await eventually(truth.dead, where=lambda found: len(found) == 3)
        await truth.until_empty()
    return ids


async def test_dead_letters_are_listed_grouped_and_shown(client: Client, letters: list[str]) -> None:
    page = await client.call("GET", "/dead", params={"limit": 2})
    assert (len(page["items"]), page["cursor"] is None) == (2, False)
    rest = await client.call("GET", "/dead", params={"limit": 2, "cursor": page["cursor"]})
    assert (len(rest["items"]), rest["cursor"]) == (1, None)
    assert {one["id"] for one in page["items"] + rest["items"]} == set(letters)
    assert (await client.call("GET", "/dead?died_of=crashed"))["items"] == []
    [group] = (await client.call("GET", "/dead:groups"))["items"]
    assert (group["count"], group["reason"], group["text"]) == (3, "permanent", "on purpose")
    shown = await client.call("GET", f"/dead/{letters[0]}")
    assert shown["arguments"] == {"password": "***"}
    assert "hunter2" not in str(shown)


async def test_dead_letters_are_replayed_by_id_and_by_filter(
    client: Client, letters: list[str], truth: Truth
) -> None:
    dry = await client.call("POST", "/dead:replay", json={"all": True, "dry_run": True})
    assert (dry["matching"], len(dry["first"]), dry["refused"]) == (3, 3, [])
    done = await client.call("POST", "/dead:replay", json={"ids": letters[:1], "reason": "fixed"})
    assert done == {"counts": {"replayed": 1}, "refused": [], "complete": True}
    assert await truth.jobs() == [f"jobs.work.default.normal.refuse.-.{letters[0]}"]
    done = await client.call("POST", "/dead:replay", json={"task": "refuse", "to_queue": "mail"})
    assert done["counts"] == {"replayed": 2}
    assert len(await truth.jobs("mail")) == 2
    assert await truth.dead() == {}
    missing = await client.call("POST", "/dead:replay", 404, json={"ids": letters[:1]})
    assert missing["code"] == "job_not_found"


async def test_dead_letters_are_deleted(client: Client, letters: list[str], truth: Truth) -> None:
    dry = await client.call("POST", "/dead:delete", json={"ids": letters[:2], "dry_run": True})
    assert (dry["matching"], len(await truth.dead())) == (2, 3)
    assert await client.call("POST", "/dead:delete", json={"ids": letters[:2]}) == {"deleted": 2}
    assert set(await truth.dead()) == {letters[2]}
    assert await client.call("POST", "/dead:delete", json={"all": True}) == {"deleted": 1}
    assert await truth.dead() == {}
    await client.call("POST", "/dead:delete", 422, json={})
    await client.call("POST", "/dead:delete", 422, json={"ids": letters, "all": True})


async def test_lists_are_empty_on_a_server_without_queues(make_app: MakeApp) -> None:
    gate = make_app("gate", http={"port": 0})
    async with gate, serving(gate) as client:
        for path in ("/jobs", "/queues", "/workers", "/schedules", "/tasks", "/dead", "/dead:groups"):
            assert (await client.call("GET", path))["items"] == [], path
