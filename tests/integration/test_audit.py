"""The audit: every changing operation adds one entry, nothing removes one, and none holds up an action."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from jetjobs import Flow, JetJobs
from jetjobs.admin import AuditFilter
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import JetJobsError, JobNotFound, QueueNotFound, TopologyMissing
from jetjobs.jetstream import audit_log
from jetjobs.model.views.audit import acting_via
from tests.conftest import MakeApp
from tests.support.letters import bury, letter_of
from tests.support.probe import eventually, wait_until
from tests.support.server import Truth
from tests.support.shop import HOUR, Shop
from tests.support.workers import running

WHO: dict[str, Any] = {"by": "ada@host", "reason": "a test"}


async def entries(truth: Truth) -> list[dict[str, Any]]:
    """The entries on the server, oldest first, each with its action."""
    state = (await truth.api("STREAM.INFO.jobs-audit"))["state"]
    found = []
    for sequence in range(1, state["last_seq"] + 1):
        message = await truth.js.get_msg("jobs-audit", sequence)
        assert message.subject is not None
        found.append({"action": message.subject.removeprefix("jobs.audit."), **json.loads(message.data or b"")})
    return found


class Case(NamedTuple):
    """An operation, and the entry that it adds."""

    action: str
    target: str
    use: Callable[[Shop], Awaitable[Any]]
    outcome: str = "done"
    counts: dict[str, int] = {}  # noqa: RUF012 - it is not changed


async def _scheduled(shop: Shop) -> None:
    await shop.greet.options(delay=HOUR, job_id="waits").enqueue("Ada")


async def _cancel(shop: Shop) -> None:
    await _scheduled(shop)
    await shop.app.jobs.cancel("waits", **WHO)


async def _run_now(shop: Shop) -> None:
    await _scheduled(shop)
    await (await shop.app.job("waits")).run_now(**WHO)


async def _reschedule(shop: Shop) -> None:
    await _scheduled(shop)
    await (await shop.app.job("waits")).reschedule(delay="2h", **WHO)


async def _priority(shop: Shop) -> None:
    await _scheduled(shop)
    await shop.app.jobs.set_priority("waits", "low", **WHO)


async def _same_priority(shop: Shop) -> None:
    await _scheduled(shop)
    await shop.app.jobs.set_priority("waits", "normal", **WHO)


async def _flow(shop: Shop) -> None:
    flow = Flow("hello", id="hello")
    flow.add(shop.greet, "Ada")
    await shop.app.enqueue_flow(flow)


async def _cancel_flow(shop: Shop) -> None:
    await _flow(shop)
    await (await shop.app.flows.handle("hello")).cancel(**WHO)


async def _retry_flow(shop: Shop) -> None:
    await _flow(shop)
    await (await shop.app.flows.handle("hello")).retry(**WHO)


async def _pause(shop: Shop) -> None:
    await shop.app.queues.pause("money", for_="1h", **WHO)


async def _resume(shop: Shop) -> None:
    await shop.app.queues.resume("money", **WHO)


async def _purge(shop: Shop) -> None:
    await shop.greet.enqueue("Ada")
    await _scheduled(shop)
    await shop.app.queues.purge("default", scheduled=True, **WHO)


async def _delete_queue(shop: Shop) -> None:
    await shop.app.queues.delete("money", **WHO)


async def _put(shop: Shop) -> None:
    await shop.app.schedules.put("nightly", shop.greet, cron="0 3 * * *", args={"name": "Ada"}, **WHO)


async def _pause_schedule(shop: Shop) -> None:
    await shop.app.schedules.put("nightly", shop.greet, cron="0 3 * * *", args={"name": "Ada"})
    await shop.app.schedules.pause("nightly", **WHO)


async def _resume_schedule(shop: Shop) -> None:
    await shop.app.schedules.put("nightly", shop.greet, cron="0 3 * * *", args={"name": "Ada"})
    await shop.app.schedules.resume("nightly", **WHO)


async def _run_schedule(shop: Shop) -> None:
    await shop.app.schedules.put("nightly", shop.greet, cron="0 3 * * *", args={"name": "Ada"})
    await shop.app.schedules.run_now("nightly", **WHO)


async def _delete_schedule(shop: Shop) -> None:
    await shop.app.schedules.put("nightly", shop.greet, cron="0 3 * * *", args={"name": "Ada"})
    await shop.app.schedules.delete("nightly", **WHO)


async def _quiet(shop: Shop) -> None:
    async with running(shop.app.worker(name="w")):
        await eventually(shop.app.workers.list, where=lambda found: [one.phase for one in found] == ["ready"])
        await shop.app.workers.quiet("w", **WHO)


async def _stop(shop: Shop) -> None:
    async with running(shop.app.worker(name="w")):
        await eventually(shop.app.workers.list, where=lambda found: [one.phase for one in found] == ["ready"])
        await shop.app.workers.stop("w", **WHO)


async def _replay(shop: Shop) -> None:
    await bury(shop.app, "greet", [b'{"name": "Ada"}'], ids=["died"])
    await shop.app.dead.replay(await letter_of(shop.app, "died"), **WHO)


async def _replay_refused(shop: Shop) -> None:
    await bury(shop.app, "greet", [b'{"wrong": 1}'], ids=["died"])
    await shop.app.dead.replay(await letter_of(shop.app, "died"), **WHO)


async def _replay_all(shop: Shop) -> None:
    await bury(shop.app, "greet", [b'{"name": "Ada"}'] * 20 + [b'{"wrong": 1}'] * 3)
    assert len([answer async for answer in shop.app.dead.replay_all(**WHO)]) == 23


async def _replay_named(shop: Shop) -> None:
    await bury(shop.app, "greet", [b'{"name": "Ada"}'] * 2, ids=["one", "two"])
    letters = [await letter_of(shop.app, "one"), await letter_of(shop.app, "two")]
    assert len([answer async for answer in shop.app.dead.replay_many(letters, **WHO)]) == 2


async def _delete_letter(shop: Shop) -> None:
    await bury(shop.app, "greet", [b"{}"], ids=["died"])
    await shop.app.dead.delete(await letter_of(shop.app, "died"), **WHO)


async def _import(shop: Shop) -> None:
    await bury(shop.app, "greet", [b"{}"] * 2)
    file = io.StringIO()
    await shop.app.dead.export_to(file)
    file.write("not a letter\n")
    file.seek(0)
    await shop.app.dead.import_from(file, **WHO)


CASES = [
    Case("job.cancel", "waits", _cancel, "cancelled"),
    Case("job.run_now", "waits", _run_now, "moved"),
    Case("job.reschedule", "waits", _reschedule, "moved"),
    Case("job.priority", "waits", _priority, "moved"),
    Case("job.priority", "waits", _same_priority, "unchanged"),
    Case("flow.cancel", "hello", _cancel_flow, "cancelled"),
    Case("flow.retry", "hello", _retry_flow, "unchanged"),
    Case("queue.pause", "money", _pause),
    Case("queue.resume", "money", _resume, "unchanged"),
    Case("queue.purge", "default", _purge, counts={"queued": 1, "scheduled": 1}),
    Case("queue.delete", "money", _delete_queue, counts={"jobs": 0, "dead": 0}),
    Case("schedule.put", "nightly", _put),
    Case("schedule.pause", "nightly", _pause_schedule),
    Case("schedule.resume", "nightly", _resume_schedule, "unchanged"),
    Case("schedule.run", "nightly", _run_schedule),
    Case("schedule.delete", "nightly", _delete_schedule),
    Case("worker.quiet", "w", _quiet),
    Case("worker.stop", "w", _stop),
    Case("dead.replay", "died", _replay, "replayed"),
    Case("dead.replay", "died", _replay_refused, "refused"),
    Case("dead.replay", "all", _replay_all, counts={"replayed": 20, "refused": 3}),
    Case("dead.replay", "one two", _replay_named, counts={"replayed": 2}),
    Case("dead.delete", "died", _delete_letter, "deleted"),
    Case("dead.import", "file", _import, counts={"imported": 0, "existed": 2, "failed": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.use.__name__)
async def test_a_changing_operation_adds_one_entry(case: Case, shop: Shop, truth: Truth) -> None:
    await case.use(shop)
    *before, entry = await entries(truth)
    assert all(one["by"] == "" for one in before), "an operation added more than one entry"
    found = {key: entry[key] for key in ("action", "target", "outcome", "by", "reason", "via", "counts")}
    expected = {"action": case.action, "target": case.target, "outcome": case.outcome, "counts": case.counts}
    assert found == {**expected, **WHO, "via": "python"}


async def test_an_action_that_raises_is_recorded_with_its_error(shop: Shop, truth: Truth) -> None:
    with pytest.raises(QueueNotFound):
        await shop.app.queues.pause("none", **WHO)
    with pytest.raises(JobNotFound):
        await shop.app.jobs.cancel("missing", **WHO)
    with pytest.raises(JetJobsError, match="invalid queue name"):  # nothing was attempted
        await shop.app.queues.pause("no good", **WHO)
    queue, job = await entries(truth)
    assert (queue["outcome"], queue["detail"]) == ("failed", "QueueNotFound: queue 'none' does not exist")
    assert (job["target"], job["outcome"]) == ("missing", "failed")
    assert job["detail"].startswith("JobNotFound: no job with id missing")


async def test_an_action_that_is_cancelled_is_recorded_as_interrupted(opened: JetJobs, truth: Truth) -> None:
    await opened.provision(["default"])
    begun = asyncio.Event()

    async def act() -> None:
        async with opened.audit.action("queue.purge", "default", **WHO):
            begun.set()
            await asyncio.Event().wait()

    acting = asyncio.create_task(act())
    await begun.wait()
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert [entry["outcome"] for entry in await entries(truth)] == ["interrupted"]


async def test_a_replay_that_is_left_early_is_recorded_with_what_was_done(shop: Shop, truth: Truth) -> None:
    await bury(shop.app, "greet", [b'{"name": "Ada"}'] * 40)
    answers = shop.app.dead.replay_many(shop.app.dead.list(), **WHO, selection="all")
    async for _ in answers:
        break
    await answers.aclose()
    (entry,) = await entries(truth)
    assert (entry["outcome"], entry["target"], entry["counts"]) == ("interrupted", "all", {"replayed": 1})


async def test_actions_together_are_one_entry_with_counts_also_from_tasks(shop: Shop, truth: Truth) -> None:
    for number in range(3):
        await shop.greet.options(delay=HOUR, job_id=f"job-{number}").enqueue("Ada")

    async def cancel(job_id: str) -> None:
        with contextlib.suppress(JobNotFound):
            await shop.app.jobs.cancel(job_id, **WHO)

    async with shop.app.audit.together("job.cancel", "queue=default", **WHO):
        await asyncio.gather(*(cancel(f"job-{number}") for number in range(4)))
    await shop.app.queues.resume("default")
    bulk, single = await entries(truth)
    assert bulk["counts"] == {"cancelled": 3, "failed": 1}
    assert (bulk["target"], bulk["outcome"], bulk["by"]) == ("queue=default", "done", WHO["by"])
    assert single["action"] == "queue.resume"


async def test_enqueues_and_reads_are_not_recorded(shop: Shop, truth: Truth) -> None:
    app = shop.app
    handle = await shop.greet.enqueue("Ada")
    await app.enqueue_many([shop.greet.bind("Ada")] * 3)
    await handle.status()
    await app.jobs.page()
    await app.queues.list(rates_over=0)
    await app.schedules.list()
    await app.workers.list()
    assert [letter async for letter in app.dead.list()] == []
    assert (await app.audit.page()).items == []
    assert await entries(truth) == []


async def test_where_an_action_came_from_is_recorded(shop: Shop, truth: Truth) -> None:
    with acting_via("http"):
        await shop.app.queues.resume("money")
    await shop.app.audit.record("http.refused", "send_invoice", by="billing", outcome="refused", via="http")
    await shop.app.queues.resume("money")
    assert [(one["action"], one["via"]) for one in await entries(truth)] == [
        ("queue.resume", "http"),
        ("http.refused", "http"),
        ("queue.resume", "python"),
    ]


# What cannot be recorded


@pytest.fixture
async def warnings(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Callable[[], list[logging.LogRecord]]]:
    with caplog.at_level(logging.WARNING, "jetjobs"):
        yield lambda: [one for one in caplog.records if vars(one).get("event") == "audit.unrecorded"]


async def test_without_the_stream_the_action_goes_on_and_warns_once(
    shop: Shop, truth: Truth, warnings: Callable[[], list[logging.LogRecord]]
) -> None:
    await truth.js.delete_stream("jobs-audit")
    async with asyncio.timeout(1.5):
        paused = await shop.app.queues.pause("money", **WHO)
    assert paused.pause is not None
    (warned,) = warnings()
    fields = vars(warned)
    assert (fields["action"], fields["target"]) == ("queue.pause", "money")
    assert fields["error"].endswith("jetjobs setup apply")
    assert await shop.app.audit.record("http.refused", "x") is False
    with pytest.raises(TopologyMissing):
        await shop.app.audit.page()


async def test_when_storage_is_full_the_action_goes_on_and_warns_once(
    make_app: MakeApp, truth: Truth, warnings: Callable[[], list[logging.LogRecord]]
) -> None:
    async with make_app() as app:
        await app.provision(["default"])
        config = (await truth.api("STREAM.INFO.jobs-audit"))["config"]
        await truth.api("STREAM.UPDATE.jobs-audit", {**config, "max_bytes": 10, "discard": "new"})
        async with asyncio.timeout(1.5):
            assert (await app.queues.pause("default")).pause is not None
        (warned,) = warnings()
        assert "maximum bytes exceeded" in vars(warned)["error"]


async def test_a_lost_connection_is_not_waited_for(
    shop: Shop, server: EmbeddedServer, warnings: Callable[[], list[logging.LogRecord]]
) -> None:
    server.stop()
    await wait_until(lambda: not shop.app.jetstream.connection.connected)
    async with asyncio.timeout(1.0):
        assert await shop.app.audit.record("http.refused", "x") is False
    assert len(warnings()) == 1
    server.start()


# Append-only


async def test_nobody_can_remove_an_entry(shop: Shop, truth: Truth) -> None:
    await shop.app.queues.resume("money", **WHO)
    kept = await entries(truth)
    deleted = await truth.api("STREAM.MSG.DELETE.jobs-audit", {"seq": 1})
    assert deleted["error"]["description"].endswith("message delete not permitted")
    purged = await truth.api("STREAM.PURGE.jobs-audit")
    assert purged["error"]["description"].endswith("stream purge not permitted")
    config = (await truth.api("STREAM.INFO.jobs-audit"))["config"]
    for change in ({"deny_delete": False}, {"deny_purge": False}):
        assert "error" in await truth.api("STREAM.UPDATE.jobs-audit", {**config, **change})
    with_ttl = {"Nats-TTL": "1s"}
    with pytest.raises(Exception, match="TTL"):
        await truth.js.publish("jobs.audit.queue.pause", b"{}", headers=with_ttl)
    with pytest.raises(Exception, match="rollup"):
        await truth.js.publish("jobs.audit.queue.pause", b"{}", headers={"Nats-Rollup": "all"})
    assert await entries(truth) == kept


@pytest.mark.settings(queues={"audit_max_age": "7d"})
async def test_entries_are_kept_for_the_time_of_the_setting(shop: Shop, truth: Truth) -> None:
    config = (await truth.api("STREAM.INFO.jobs-audit"))["config"]
    assert config["max_age"] == timedelta(days=7).total_seconds() * 1e9


# Lists


async def many(app: JetJobs, count: int) -> None:
    for number in range(count):
        action = "queue.purge" if number % 10 == 3 else "job.cancel"
        await app.audit.record(action, f"target-{number}", by="ada" if number % 2 else "bob")


async def test_pages_follow_each_other_newest_first(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_WINDOW", 7)
    await opened.provision(["default"])
    await many(opened, 50)
    seen, cursor, pages = [], None, 0
    while True:
        page = await opened.audit.page(limit=8, cursor=cursor)
        pages += 1
        seen += [entry.target for entry in page.items]
        if page.cursor is None:
            break
        cursor = page.cursor
        await opened.audit.record("http.refused", "later")  # entries that come later do not move the list
    assert seen == [f"target-{number}" for number in reversed(range(50))]
    assert pages == 7
    assert (await opened.audit.page(limit=57 + 1)).cursor is None
    listed = [entry.target async for entry in opened.audit.list(AuditFilter(target="target-"))]
    assert listed == seen


async def test_entries_are_selected_by_action_who_target_and_time(opened: JetJobs, truth: Truth) -> None:
    await opened.provision(["default"])
    await many(opened, 50)

    async def targets(**wanted: Any) -> list[str]:
        return [entry.target for entry in (await opened.audit.page(AuditFilter(**wanted), limit=1000)).items]

    purges = [f"target-{number}" for number in (43, 33, 23, 13, 3)]
    assert await targets(action="queue.purge") == purges
    assert await targets(action="queue.*") == purges
    assert await targets(action="*.purge") == purges
    assert await targets(action="queue.pause") == []
    assert len(await targets(by="ada")) == 25
    assert await targets(by="ad", target="target-4", action="queue.*") == ["target-43"]
    first = await truth.js.get_msg("jobs-audit", 48)
    assert first.time is not None
    assert await targets(since=first.time) == ["target-49", "target-48", "target-47"]
    assert await targets(since=first.time + HOUR) == []


async def test_a_long_list_is_read_in_bounded_pages(opened: JetJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_WINDOW", 5)
    monkeypatch.setattr(audit_log, "SCAN_LIMIT", 20)
    await opened.provision(["default"])
    await many(opened, 50)
    page = await opened.audit.page(AuditFilter(target="target-7"))
    assert (page.items, page.cursor, page.scanned) == ([], "30", 20)
    page = await opened.audit.page(AuditFilter(target="target-7"), cursor=page.cursor)
    assert (page.items, page.cursor, page.scanned) == ([], "10", 20)
    page = await opened.audit.page(AuditFilter(target="target-7"), cursor=page.cursor)
    assert ([entry.target for entry in page.items], page.cursor) == (["target-7"], None)


async def test_a_forged_entry_is_listed_as_what_it_is(opened: JetJobs, truth: Truth) -> None:
    await opened.provision(["default"])
    await truth.js.publish("jobs.audit.queue.pause", b"\x1b[2J not JSON")
    await truth.js.publish("jobs.audit.a.b.c", json.dumps({"by": ["x"], "counts": 7, "target": None}).encode())
    await truth.js.publish("jobs.audit.queue.purge", json.dumps({"by": "root", "target": "x" * 900_000}).encode())
    large, odd, text = (await opened.audit.page()).items
    assert (text.action, text.outcome, text.by) == ("queue.pause", "unreadable", "")
    assert (odd.action, odd.by, odd.target, odd.counts) == ("a.b.c", "['x']", "None", {})
    assert (large.by, len(large.target)) == ("root", 500)


async def test_large_forged_entries_do_not_hide_others(opened: JetJobs, truth: Truth) -> None:
    """A read of many messages ends at 8 MiB; the rest of the window must be read too."""
    await opened.provision(["default"])
    for _ in range(12):
        await truth.js.publish("jobs.audit.queue.purge", b"x" * 900_000)
    await opened.audit.record("queue.pause", "mail")
    assert len((await opened.audit.page()).items) == 13
