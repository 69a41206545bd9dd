"""The doctor finds each planted fault by the right check, and nothing where all is well."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.admin import Finding
from jetjobs.cli.command_tree import run as run_command
from jetjobs.dev_server import EmbeddedServer, announce
from jetjobs.doctor.runner import CHECKS, run_checks
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import build_settings
from jetjobs.model.wire.subjects import Names
from tests.conftest import MakeApp
from tests.support.letters import bury
from tests.support.probe import eventually
from tests.support.proxy import Frames, Proxy
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

STREAM = "jobs-work-default"
SOON = timedelta(seconds=40)
Plant = Callable[[JetJobs, Truth], Awaitable[None]]


def declare(app: JetJobs) -> JetJobs:
    @app.task
    async def work(text: str = "") -> int:
        return len(text)

    @app.task
    async def fails() -> None:
        raise LookupError

    return app


@pytest.fixture
async def ready(app: JetJobs) -> AsyncIterator[JetJobs]:
    """An app that is set up and open."""
    async with provisioned(declare(app)):
        yield app


NO_WORKERS = "no running workers"


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    """What was found, besides that no worker runs: most of these tests need none."""
    found = [one for one in findings if one.level in ("warn", "fail") and one.text != NO_WORKERS]
    return sorted((finding.check, finding.level) for finding in found)


def report_of(findings: list[Finding]) -> str:
    return "\n".join(f"{f.level} {f.check}: {f.text} → {f.hint}" for f in findings)


async def everything(truth: Truth) -> dict[str, Any]:
    """All streams and consumers, with their state and without what changes by looking."""
    found: dict[str, Any] = {}
    for stream in (await truth.api("STREAM.LIST"))["streams"]:
        name = stream["config"]["name"]
        consumers = (await truth.api(f"CONSUMER.LIST.{name}"))["consumers"] or []
        lanes = {c["name"]: (c["config"], c["num_pending"], c["delivered"]["consumer_seq"]) for c in consumers}
        found[name] = (stream["config"], stream["state"]["messages"], stream["state"]["last_seq"], lanes)
    return found


# A healthy system


async def test_nothing_is_found_where_all_is_well(ready: JetJobs, truth: Truth) -> None:
    async with running(ready.worker(slots=4)):
        handle = await ready.tasks["work"].enqueue(text="x")
        assert await handle.result(SOON) == 1
        await ready.tasks["work"].options(delay=timedelta(hours=1)).enqueue()
        await ready.queues.pause("default", for_=timedelta(minutes=30), reason="deploying")

        async def well() -> list[Finding] | None:
            found = await ready.doctor()
            # A machine that is busy with other tests may block a loop for a moment; the next record clears it.
            return None if bad(found) == [("lag", "warn")] else found

        found = await eventually(well, 40)
    assert bad(found) == [], report_of(found)
    assert {finding.check for finding in found} >= {check.__name__ for of in CHECKS.values() for check in of}
    assert [finding.check for finding in found if finding.level == "skip"] == ["durability"]
    assert all(finding.text for finding in found)
    assert "1 worker of version" in report_of(found)
    assert NO_WORKERS not in report_of(found)


async def test_only_the_missing_worker_is_found_without_one_and_nothing_is_changed(
    ready: JetJobs, truth: Truth
) -> None:
    before = await everything(truth)
    found = await ready.doctor()
    assert bad(found) == [], report_of(found)
    (missing,) = [finding for finding in found if finding.level == "warn"]
    assert (missing.area, missing.check, missing.text) == ("workers", "versions", NO_WORKERS)
    assert missing.hint == "start one with `jetjobs worker`"
    assert await everything(truth) == before


async def test_the_areas_can_be_chosen(ready: JetJobs) -> None:
    assert {finding.area for finding in await ready.doctor(only=["queues", "app"])} == {"queues", "app"}
    with pytest.raises(ConfigError, match="unknown area 'quues'"):
        await ready.doctor(only=["quues"])


async def test_without_an_app_the_server_is_checked_and_skipped_checks_are_listed(ready: JetJobs) -> None:
    found = await run_checks(ready.settings, Names("jobs"))
    assert bad(found) == [], report_of(found)
    assert ("skip", "app", "tasks: no app was given") in [(f.level, f.area, f.text) for f in found]
    assert {finding.area for finding in found} == {"nats", "topology", "queues", "schedules", "workers", "app"}


# Faults on the server, each planted with a plain NATS client


def lane(name: str, **changes: Any) -> Plant:
    async def plant(app: JetJobs, truth: Truth) -> None:
        config = {**(await truth.consumer(name))["config"], **changes}
        subject = f"CONSUMER.CREATE.{STREAM}.{name}.{config['filter_subject']}"
        answer = await truth.api(subject, {"stream_name": STREAM, "config": config})
        assert "error" not in answer, answer

    return plant


def stream(name: str, **changes: Any) -> Plant:
    async def plant(app: JetJobs, truth: Truth) -> None:
        config = {**(await truth.api(f"STREAM.INFO.{name}"))["config"], **changes}
        answer = await truth.api(f"STREAM.UPDATE.{name}", config)
        assert "error" not in answer, answer

    return plant


async def worker_record(truth: Truth, key: str, **changes: Any) -> None:
    slots = {"busy": 0, "total": 10}
    record = {"name": key, "version": "1.0.0", "phase": "ready", "queues": {"default": slots}, "slots": slots}
    value = json.dumps({**record, **changes}).encode()
    await truth.js.publish(f"$KV.jobs-workers.{key}", value, headers={"Nats-TTL": "300s"})


def workers(**records: dict[str, Any]) -> Plant:
    async def plant(app: JetJobs, truth: Truth) -> None:
        for key, changes in records.items():
            await worker_record(truth, key, **changes)

    return plant


async def a_bucket_is_gone(app: JetJobs, truth: Truth) -> None:
    await truth.js.delete_stream("KV_jobs-running")


async def a_lane_is_gone(app: JetJobs, truth: Truth) -> None:
    await truth.api(f"CONSUMER.DELETE.{STREAM}.high")


async def the_pin_is_gone(app: JetJobs, truth: Truth) -> None:
    await truth.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": 1})


async def a_lock_never_ends(app: JetJobs, truth: Truth) -> None:
    await truth.js.publish("$KV.jobs-locks.leader", b'{"holder": "gone"}')


async def test_other_keys_beside_the_locks_are_ignored(ready: JetJobs, truth: Truth) -> None:
    await truth.js.publish("$KV.jobs-locks.mine", b"a note of another program")
    found = await run_checks(ready.settings, Names("jobs"), ready, only=["topology"])
    assert bad(found) == [], report_of(found)


@pytest.mark.parametrize(("only", "error"), [(" , ", "names no area"), ("nats,quues", "unknown area 'quues'")])
def test_a_wrong_area_or_none_is_wrong_usage(only: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--only", only]) == 2
    assert error in capsys.readouterr().err


async def a_stranger_consumes(app: JetJobs, truth: Truth) -> None:
    config = {"durable_name": "mine", "ack_policy": "explicit", "filter_subject": "jobs.work.default.later.>"}
    answer = await truth.api(
        f"CONSUMER.CREATE.{STREAM}.mine.jobs.work.default.later.>", {"stream_name": STREAM, "config": config}
    )
    assert "error" not in answer, answer


async def a_job_is_stranded(app: JetJobs, truth: Truth) -> None:
    """Delivered as often as the server does it, and given up."""
    await app.tasks["work"].enqueue()
    pulling = await truth.js.pull_subscribe_bind("normal", STREAM)
    for _ in range((await truth.consumer())["config"]["max_deliver"]):
        [message] = await pulling.fetch(1, timeout=20)
        await message.nak()

    async def given_up() -> bool:
        with pytest.raises(TimeoutError):
            await pulling.fetch(1, timeout=0.3)  # the server gives it up at the next pull
        state = await truth.consumer()
        return bool(state["num_ack_pending"] == state["num_pending"] == 0)

    await eventually(given_up, 30)
    await worker_record(truth, "w")


async def a_pause_was_forgotten(app: JetJobs, truth: Truth) -> None:
    await app.queues.pause("default", reason="deploying")
    note = {"until": 0.0, "reason": "deploying", "by": "ada", "at": time.time() - 7200}
    await truth.js.publish("$KV.jobs-locks.pause.default", json.dumps(note).encode())


async def a_pause_by_other_means(app: JetJobs, truth: Truth) -> None:
    await truth.api(f"CONSUMER.PAUSE.{STREAM}.normal", {"pause_until": "2199-01-01T00:00:00Z"})


async def nobody_works(app: JetJobs, truth: Truth) -> None:
    await app.tasks["work"].enqueue()


async def only_the_quiet_work(app: JetJobs, truth: Truth) -> None:
    await app.tasks["work"].enqueue()
    await worker_record(truth, "w", phase="quiet")


async def arguments_are_gone(app: JetJobs, truth: Truth) -> None:
    far = app.tasks["work"].options(delay=timedelta(hours=1))
    await far.enqueue(text="x" * 1_200_000)
    lost = await far.enqueue(text="y" * 1_200_000)
    message = await app.jetstream.locator.find_live("default", "work", lost.id)
    assert message is not None
    await app.jetstream.payloads.delete(message.headers["Jetjobs-Payload"])
    await workers(a={})(app, truth)


async def only_scheduled_jobs_and_nobody_works(app: JetJobs, truth: Truth) -> None:
    await app.tasks["work"].options(delay=timedelta(hours=1)).enqueue()


async def a_job_has_died(app: JetJobs, truth: Truth) -> None:
    await bury(app, "fails", [b"{}"])


async def arguments_of_a_letter_are_gone(app: JetJobs, truth: Truth) -> None:
    await bury(app, "fails", [b""], payload="nowhere")


async def a_queue_was_never_set_up(app: JetJobs, truth: Truth) -> None:
    @app.task(queue="nowhere")
    async def new() -> None: ...


def knows(**shapes: str) -> dict[str, Any]:
    return {"tasks": shapes}


FAULTS: list[tuple[Plant, str, str, str]] = [
    (stream("jobs-dead", max_age=86400 * 10**9), "plan", "fail", "jobs-dead: max_age is 1d0h, planned 30d0h"),
    (a_bucket_is_gone, "plan", "fail", "bucket jobs-running is missing"),
    (a_lane_is_gone, "plan", "fail", "lane default/high is missing"),
    (lane("normal", ack_wait=5 * 10**9), "lease", "fail", "ack_wait 5.0 s < 3 × heartbeat 10.0 s"),
    (lane("normal", ack_wait=20 * 10**9), "lease", "warn", "ack_wait 20.0 s < 3 × heartbeat 10.0 s"),
    (lane("low", max_deliver=2), "deliveries", "fail", "lane default/low: max_deliver is 2"),
    (lane("normal", max_ack_pending=5), "capacity", "warn", "max_ack_pending is 5, planned 10000"),
    (workers(huge={"queues": {"default": {"busy": 0, "total": 20_000}}}), "capacity", "warn", "20,000 slots"),
    (stream(STREAM, duplicate_window=10 * 10**9), "duplicates", "warn", "duplicate_window is 10.0 s"),
    (the_pin_is_gone, "pin", "warn", "queue default: the pin"),
    (a_lock_never_ends, "locks", "fail", "lock leader never expires"),
    (a_stranger_consumes, "orphans", "warn", "consumer mine on work stream jobs-work-default"),
    (a_job_is_stranded, "stranded", "fail", "1 job that the server no longer delivers"),
    (a_pause_was_forgotten, "paused", "warn", "paused for 2h00m (deploying)"),
    (a_pause_by_other_means, "paused", "warn", "was paused without jetjobs"),
    (nobody_works, "unserved", "warn", "1 job waiting and no running worker"),
    (only_the_quiet_work, "unserved", "warn", "1 job waiting and no running worker"),
    (
        only_scheduled_jobs_and_nobody_works,
        "unserved",
        "warn",
        "1 job scheduled or retrying and no running worker",
    ),
    (a_job_has_died, "letters", "warn", "1 new dead letter in the last hour, 1 in all"),
    (arguments_are_gone, "objects", "fail", "queue default: 1 job whose arguments are missing"),
    (arguments_of_a_letter_are_gone, "objects", "fail", "dead letters: 1 job whose arguments are missing"),
    (workers(a={}, b={"version": "2.0.0"}), "versions", "warn", "1.0.0 (a), 2.0.0 (b)"),
    (
        workers(a=knows(other="1", work=""), b=knows(other="2", work="")),
        "schemas",
        "warn",
        "the arguments of task other differ ",
    ),
    (
        workers(a=knows(work=""), b=knows(), c=knows(), d={"phase": "quiet", **knows()}),
        "task_sets",
        "warn",
        "queue default: workers b, c lack task work, known to other workers of the queue",
    ),
    (
        workers(a=knows(work="", new=""), b=knows(work="")),
        "task_sets",
        "warn",
        "queue default: worker b lacks task new, known to other workers of the queue",
    ),
    (workers(a=knows(work="0")), "schemas", "warn", "the arguments of task work differ between a and this app"),
    (workers(a={"lag_s": 12.5}), "lag", "warn", "event loop of worker a was blocked for 12.5 s"),
    (a_queue_was_never_set_up, "tasks", "fail", "queue nowhere does not exist: new cannot"),
]


@pytest.mark.parametrize(("plant", "check", "level", "text"), FAULTS)
async def test_each_planted_fault_is_found_by_its_check_and_no_other(
    ready: JetJobs, truth: Truth, plant: Plant, check: str, level: str, text: str
) -> None:
    await plant(ready, truth)
    before = await everything(truth)
    found = await ready.doctor()
    beside = [("letters", "warn")] if plant is arguments_of_a_letter_are_gone else []
    assert bad(found) == [*beside, (check, level)], report_of(found)
    [problem] = [one for one in found if one.level in ("warn", "fail") and one.check == check]
    assert text in problem.text
    assert problem.hint
    assert await everything(truth) == before


# Faults of the connection


YEARS_ON = re.compile(rb'"ts":"\d{4}')


async def test_clocks_that_differ_are_found(ready: JetJobs, server: EmbeddedServer) -> None:
    async with Proxy(server.url).running() as proxy:
        proxy.to_client = lambda data: YEARS_ON.sub(b'"ts":"2199', data)
        found = await run_checks(_through(ready, proxy), Names("jobs"), ready, only=["nats"])
    assert bad(found) == [("clock", "warn")], report_of(found)
    assert "ahead of" in report_of(found)


async def test_jobs_that_the_clock_has_passed_by_and_old_letters_are_found(
    ready: JetJobs, server: EmbeddedServer
) -> None:
    await ready.tasks["work"].options(delay=timedelta(hours=1)).enqueue()
    await bury(ready, "fails", [b"{}"])
    async with Proxy(server.url).running() as proxy:
        proxy.to_client = lambda data: YEARS_ON.sub(b'"ts":"2199', data)
        found = await run_checks(_through(ready, proxy), Names("jobs"), ready, only=["queues"])
    assert bad(found) == [("letters", "warn"), ("overdue", "warn"), ("unserved", "warn")], report_of(found)
    assert "1 job overdue by up to" in report_of(found)
    assert "the oldest of 1 dead letter expires in" in report_of(found)


async def test_a_server_with_known_faults_is_found(ready: JetJobs, server: EmbeddedServer) -> None:
    async with Proxy(server.url).running() as proxy:
        proxy.to_client = lambda data: re.sub(rb'"version":"2\.\d+\.\d+"', b'"version":"2.14.4"', data)
        found = await run_checks(_through(ready, proxy), Names("jobs"), ready, only=["nats"])
        assert bad(found) == [("version", "warn")], report_of(found)
        assert "upgrade to 2.14.5 or newer" in report_of(found)
        proxy.to_client = lambda data: re.sub(rb'"version":"2\.\d+\.\d+"', b'"version":"2.13.9"', data)
        found = await run_checks(_through(ready, proxy), Names("jobs"), ready, only=["nats"])
        assert bad(found) == [("reach", "fail")], report_of(found)


async def test_a_long_way_to_the_server_is_found(ready: JetJobs, server: EmbeddedServer) -> None:
    async with Proxy(server.url).running() as proxy:
        proxy.delay = lambda: 0.06
        found = await run_checks(_through(ready, proxy), Names("jobs"), ready, only=["nats"])
    assert bad(found) == [("round_trip", "warn")], report_of(found)


async def test_a_check_that_hangs_is_a_finding_and_the_others_go_on(
    ready: JetJobs, server: EmbeddedServer
) -> None:
    async with Proxy(server.url).running() as proxy:
        proxy.to_server = Frames(r"\$JS\.API\.CONSUMER\.LIST\.\S+", r".*?", lambda: True, times=1000)
        found = await run_checks(_through(ready, proxy), Names("jobs"), ready, only=["topology"], limit_s=4.0)
    [hanging] = [finding for finding in found if finding.check == "orphans"]
    assert (hanging.level, hanging.text) == ("fail", "orphans: no answer within 4 s")
    assert {finding.check for finding in found} >= {"plan", "pin", "locks", "orphans"}


def _through(app: JetJobs, proxy: Proxy) -> Any:
    return build_settings({"nats": {"url": proxy.url, "connect_timeout": "20s"}})


# Faults of the configuration


async def test_no_server_is_a_finding_and_the_rest_is_left_out(make_app: MakeApp, server: EmbeddedServer) -> None:
    app = declare(make_app(nats={"connect_timeout": "1s"}))
    server.stop()
    found = await app.doctor()
    assert bad(found) == [("reach", "fail")], report_of(found)
    assert [f.area for f in found if f.level == "skip"] == ["topology", "queues", "schedules", "workers"]


async def test_jetstream_that_is_off_is_a_finding() -> None:
    with EmbeddedServer(jetstream=False) as plain:
        found = await run_checks(build_settings({"nats": {"url": plain.url}}), Names("jobs"))
    assert bad(found) == [("reach", "fail")], report_of(found)
    assert "JetStream is not enabled" in report_of(found)


async def test_a_server_that_was_never_set_up_is_a_finding(app: JetJobs) -> None:
    found = await declare(app).doctor(only=["app"])
    assert bad(found) == [("tasks", "fail")], report_of(found)
    found = await run_checks(app.settings, Names("jobs"), only=["topology"])
    assert ("queues", "warn") in bad(found)
    assert {finding.check for finding in found if finding.level == "fail"} == {"plan"}


USERS = """
max_payload: %s
accounts {
  A {
    jetstream: { max_file: 2MB, max_mem: 1MB }
    users: [
      { user: all, password: p }
      { user: producer, password: p,
        permissions: { publish: { deny: ["jobs.dead.>", "$KV.jobs-done-default.>"] } } }
      { user: nothing, password: p, permissions: { publish: { deny: ["jobs.>"] } } }
      { user: blind, password: p,
        permissions: { publish: { deny: ["$JS.API.CONSUMER.LIST.>", "$JS.API.STREAM.NAMES"] } } }
    ]
  }
}
"""


async def test_permissions_storage_and_the_size_limit_are_checked(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(USERS % "200KB")
    with EmbeddedServer(extra=("-c", str(config))) as server:

        def user(name: str) -> JetJobs:
            login = {"url": server.url, "user": name, "password": "p"}
            return declare(JetJobs("test", settings=build_settings({"nats": login})))

        app = user("all")
        async with provisioned(app):
            found = await app.doctor()
            assert bad(found) == [("payload_limit", "warn")], report_of(found)
            size = [("payload_limit", "warn")]
            assert bad(await user("producer").doctor()) == [*size, ("permissions", "fail")]
            assert bad(await user("nothing").doctor()) == [*size, ("permissions", "fail")]
            found = await user("blind").doctor()
            assert bad(found) == size, report_of(found)
            skipped = {finding.check for finding in found if finding.level == "skip"}
            assert skipped == {"queues", "orphans", "namespaces", "durability"}
            found = await user("wrong").doctor()
            assert bad(found) == [("reach", "fail")], report_of(found)
            assert "refused the credentials" in report_of(found)

            await bury(app, "fails", [b"x" * 100_000 for _ in range(17)])
            found = await app.doctor(only=["nats"])
            assert bad(found) == [*size, ("storage", "warn")], report_of(found)
            await bury(app, "fails", [b"x" * 100_000 for _ in range(3)])
            found = await app.doctor(only=["nats"])
            assert bad(found) == [*size, ("storage", "fail")], report_of(found)


async def test_the_roles_of_the_example_pass_all_checks_they_may_run(tmp_path: Path) -> None:
    with GuardedServer(tmp_path) as server:

        def app_of(role: str) -> JetJobs:
            return declare(JetJobs("test", settings=server.settings_of(role)))

        async with app_of("setup") as app:
            await app.provision()
        for role in ("operator", "worker", "producer"):
            found = await app_of(role).doctor()
            assert bad(found) == [], (role, report_of(found))
            left_out = {finding.check for finding in found if finding.level == "skip"}
            if role == "operator":
                assert left_out == {"durability"}, report_of(found)
        found = await app_of("setup").doctor(only=["nats"])
        assert bad(found) == [("permissions", "fail")], report_of(found)


async def test_a_queue_in_memory_is_found(make_app: MakeApp) -> None:
    async with provisioned(declare(make_app(queues={"storage": "memory"}))) as app:
        assert bad(await app.doctor()) == []
    found = await declare(make_app()).doctor()
    assert {check for check, _ in bad(found)} == {"durability"}, report_of(found)
    found = await declare(make_app(queues={"storage": "memory"}, env="production")).doctor()
    assert bad(found) == [("durability", "warn")], report_of(found)


async def test_the_dev_server_in_production_is_found(
    make_app: MakeApp, ready: JetJobs, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(tmp_path, server.url, os.getpid())
    monkeypatch.chdir(tmp_path)
    assert bad(await ready.doctor()) == []
    found = await declare(make_app(env="production")).doctor()
    assert bad(found) == [("dev_server", "fail")], report_of(found)


async def test_two_doctors_at_once_do_not_disturb_each_other(ready: JetJobs) -> None:
    for found in await asyncio.gather(*(ready.doctor() for _ in range(3))):
        assert bad(found) == [], report_of(found)
