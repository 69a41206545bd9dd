"""Records that another program wrote into the buckets do no harm to their readers."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from nats.errors import NoRespondersError

from jetjobs import JetJobs, JobState, RetryPolicy
from jetjobs.admin import JobQuery
from jetjobs.cli.command_tree import run
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import BrokerError, JobFailed, JobNotFound, ResultError
from jetjobs.model.wire.subjects import kv_subject
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

FORGED = "x 0\r\n\r\nPUB pwned.here 5\r\nhello\r\nPUB junk"
NESTED = b"[" * 100_000


async def test_a_forged_running_record_makes_its_reader_publish_nothing(app: JetJobs, truth: Truth) -> None:
    heard: list[str] = []

    async def on_message(message: object) -> None:
        heard.append("pwned")

    await truth.nc.subscribe("pwned.>", cb=on_message)
    async with provisioned(app):
        record = {"id": "j1", "run": "r", "task": "send", "queue": FORGED, "worker": "w", "started_at": "x"}
        await truth.js.publish(kv_subject("jobs-running", "j1"), json.dumps(record).encode())
        for call in (app.jobs.get, app.jobs.cancel, app.jobs.run_now):
            with pytest.raises(JobNotFound):
                await call("j1")
        assert await app.jobs.running() == []
        with pytest.raises(BrokerError, match="invalid subject"):
            await app.jetstream.connection.api(api.stream_info(f"{FORGED}"))
        assert not app.jetstream.connection.post(FORGED, b"")
        assert not app.jetstream.connection.post("good", b"", FORGED)
        # One round over each connection: whatever was to arrive has arrived.
        await app.jetstream.connection.nc.flush()
        await truth.nc.flush()
    assert heard == []


async def test_nested_brackets_in_the_registry_and_on_the_control_subject(
    app: JetJobs, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def fine() -> None: ...

    async with provisioned(app):
        await truth.js.publish(kv_subject("jobs-workers", "odd"), NESTED)
        await truth.js.publish(kv_subject("jobs-running", "odd"), NESTED)
        async with running(app.worker()):

            async def answered() -> dict[str, object] | None:
                try:
                    answer = await truth.nc.request(app.jetstream.names.control_workers, NESTED, timeout=20)
                except NoRespondersError:  # it does not listen yet
                    return None
                return dict(json.loads(answer.data))

            assert (await eventually(answered, 30))["ok"] is False
            assert "odd" not in [record.key for record in await app.workers.list()]
            assert await app.jobs.running() == []
    assert not [line for line in caplog.records if line.exc_info]


async def test_no_record_steers_the_terminal_of_its_reader(
    app: JetJobs, server: EmbeddedServer, truth: Truth, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b]0;pwned\x07\x1b[2J\x9b31m"

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def broken() -> None:
        raise RuntimeError(escape)

    async with provisioned(app):
        handle = await broken.enqueue()
        async with running(app.worker()):
            with pytest.raises(JobFailed):
                await handle.result(timedelta(seconds=30))
        await app.queues.pause("default", reason=escape, by=escape)
        job = {"id": escape, "task": escape, "queue": escape, "since": 1.0}
        record: dict[str, object] = dict.fromkeys(("name", "host", "phase", "version", "python"), escape)
        record |= {"tasks": {escape: escape}, "running": [job], "queues": {escape: {}}, "slots": {"busy": 9}}
        await truth.js.publish(kv_subject("jobs-workers", "odd"), json.dumps(record).encode())
        for words in (
            ["jobs", "show", handle.id],
            ["jobs", "wait", handle.id],
            ["jobs", "list", "--state", "dead"],
            ["queues", "show", "default"],
            ["queues", "list"],
            ["workers", "show", "odd"],
            ["workers", "list"],
            ["dead", "show", handle.id],
            ["top"],
        ):
            await asyncio.to_thread(run, ["-s", server.url, *words])
            printed = capsys.readouterr()
            assert printed.out or printed.err, words
            steering = {c for c in printed.out + printed.err if not c.isprintable() and c not in "\n\t"}
            assert not steering, (words, printed)


@pytest.mark.parametrize("odd", ["x", 1e300, float("nan"), float("inf"), None, [1]], ids=repr)
async def test_odd_times_in_notes_and_records_are_shown_as_none(
    app: JetJobs, server: EmbeddedServer, truth: Truth, odd: object, capsys: pytest.CaptureFixture[str]
) -> None:
    async with app:
        await app.provision(["default"])
        await app.queues.pause("default", reason="why")
        note = {"reason": "why", "by": "ada", "at": odd}
        await truth.js.publish(kv_subject("jobs-locks", "pause.default"), json.dumps(note).encode())
        times = {"enqueued_at": odd, "started_at": odd, "ended_at": odd}
        done = {"state": "succeeded", "run": "r", "result": 1, **times}
        await truth.js.publish(kv_subject("jobs-done-default", "send.j1"), json.dumps(done).encode())
        for words in (["queues", "show", "default"], ["jobs", "show", "j1"]):
            for more in ([], ["--json"]):
                assert await asyncio.to_thread(run, ["-s", server.url, *words, *more]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    "record",
    [
        b"garbage",
        b"[1]",
        b"{}",
        b'{"run": "r", "result": 1}',
        b'{"state": "superseded", "run": "r", "result": 1, "ended_at": 1e20}',
        b'{"state": "queued", "run": "r"}',
        b'{"state": ["succeeded"]}',
    ],
)
async def test_an_unreadable_done_record_is_reported_and_not_a_success(
    app: JetJobs, server: EmbeddedServer, truth: Truth, record: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    async with app:
        await app.provision(["default"])
        await truth.js.publish(kv_subject("jobs-done-default", "send.j1"), record)
        with pytest.raises(ResultError, match="job j1 has a record that cannot be read"):
            await app.jobs.get("j1")
        handle = await app.job("j1")
        with pytest.raises(ResultError, match="cannot be read"):
            await handle.result(timedelta(seconds=5))
        assert [item async for item in app.jobs.list(JobQuery(JobState.SUCCEEDED))] == []
        assert await asyncio.to_thread(run, ["-s", server.url, "jobs", "show", "j1"]) == 1
        assert "cannot be read" in capsys.readouterr().err
        await truth.js.publish(kv_subject("jobs-done-default", "send.j1"), b"", headers={"KV-Operation": "DEL"})
        with pytest.raises(JobNotFound, match="deleted"):
            await app.jobs.get("j1")


def _strict(text: str) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not valid JSON")

    return json.loads(text, parse_constant=refuse)


async def test_what_is_printed_as_json_is_json_whatever_the_records_say(
    app: JetJobs, server: EmbeddedServer, truth: Truth, capsys: pytest.CaptureFixture[str]
) -> None:
    record = (
        b'{"state": "succeeded", "run": "r", "attempt": 1, "ended_at": NaN, "result": [NaN, 1e999, {"a": -1e999}]}'
    )
    async with app:
        await app.provision(["default"])
        await truth.js.publish(kv_subject("jobs-done-default", "send.j1"), record)
        shown = ["NaN", "Infinity", {"a": "-Infinity"}]
        for words in (
            ["jobs", "show", "j1", "--json"],
            ["jobs", "wait", "j1", "--json"],
            ["jobs", "watch", "j1"],
            ["jobs", "wait", "j1"],
            ["jobs", "list", "--state", "succeeded", "--jsonl"],
        ):
            assert await asyncio.to_thread(run, ["-s", server.url, *words]) == 0
            document = _strict(capsys.readouterr().out.splitlines()[-1])
            assert shown == (document["result"] if isinstance(document, dict) else document), words


async def test_a_count_of_one_has_the_right_noun(
    app: JetJobs, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    @app.task
    async def send() -> None: ...

    async def printed(*words: str) -> str:
        await asyncio.to_thread(run, ["-s", server.url, *words])
        both = capsys.readouterr()
        return both.out + both.err

    async with provisioned(app):
        await send.enqueue()
        assert "delete 1 job of queue default" in await printed("queues", "purge", "default")
        assert "1 queued job deleted" in await printed("queues", "purge", "default", "--yes")
        async with running(app.worker(slots=1)):

            async def pulling() -> bool:
                return "lane       normal: 0 queued, 0 running, 1 pull open" in await printed(
                    "queues", "show", "default"
                )

            await eventually(pulling, 30)
            assert "this would quiet 1 worker; nothing was changed\n" in await printed("workers", "quiet", "--all")
