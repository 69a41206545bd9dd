"""The users of the example configuration: who may write to the audit, manage tokens, and serve the HTTP API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.errors import AccessDenied
from jetjobs.model.views.token import TokenText
from jetjobs.observe.logs import log_event
from tests.integration.test_audit import entries
from tests.support.letters import bury, letter_of
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import running


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedServer]:
    with GuardedServer(tmp_path) as server:
        yield server


def app_of(server: GuardedServer, role: str) -> JetJobs:
    app = JetJobs("t", settings=server.settings_of(role))

    @app.task
    async def quick(text: str = "") -> str:
        return text

    app.observe(log_event)
    return app


@pytest.fixture
async def root(guarded: GuardedServer) -> AsyncIterator[Truth]:
    """A connection that may do everything, to a server on which the role `setup` has created what is needed."""
    async with app_of(guarded, "setup") as setup:
        await setup.provision()
    truth = await Truth.connect(guarded.url.replace("://", "://root:secret@"))
    yield truth
    await truth.close()


async def test_a_producer_neither_reads_tokens_nor_writes_entries(guarded: GuardedServer, root: Truth) -> None:
    async with app_of(guarded, "producer") as producer:
        await producer.enqueue("quick")
        for call in (producer.tokens.list(), producer.tokens.find(str(TokenText.new("x")))):
            with pytest.raises(AccessDenied, match="KV_jobs-tokens"):
                await call
        for change in (producer.tokens.get("x"), producer.tokens.new("x", ["admin"]), producer.tokens.revoke("x")):
            with pytest.raises(AccessDenied, match="KV_jobs-tokens"):
                await change
        with pytest.raises(AccessDenied, match="jobs-audit"):
            await producer.audit.page()
        assert await producer.audit.record("queue.pause", "default", by="someone else") is False
    assert await entries(root) == []
    assert await root.subjects("KV_jobs-tokens") == {}


async def test_an_operator_is_recorded_and_cannot_remove_it(guarded: GuardedServer, root: Truth) -> None:
    async with app_of(guarded, "operator") as operator:
        await operator.queues.pause("default", by="ada", reason="a test")
        text = await operator.tokens.new("billing", ["read"], by="ada")
        assert await operator.tokens.find(text) is not None
        listed = [(entry.action, entry.by) async for entry in operator.audit.list()]
        assert listed == [("token.new", "ada"), ("queue.pause", "ada")]
        for subject, body in (
            ("STREAM.MSG.DELETE.jobs-audit", b'{"seq":1}'),
            ("STREAM.PURGE.jobs-audit", b""),
            ("STREAM.DELETE.jobs-audit", b""),
            ("STREAM.UPDATE.jobs-audit", b"{}"),
        ):
            with pytest.raises(AccessDenied):
                await operator.jetstream.connection.ask(f"$JS.API.{subject}", body, None, 2.0)
        await operator.tokens.revoke("billing", by="ada")
    assert [entry["action"] for entry in await entries(root)] == ["queue.pause", "token.new", "token.revoke"]


async def test_a_worker_works_without_audit_and_tokens(
    guarded: GuardedServer, root: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("jobs-audit", "KV_jobs-tokens"):
        await root.js.delete_stream(name)
    with caplog.at_level(logging.WARNING, "jetjobs"):
        async with (
            app_of(guarded, "worker") as working,
            app_of(guarded, "producer") as producer,
            running(working.worker()),
        ):
            handle = await producer.enqueue("quick", {"text": "seven"})
            assert await handle.result(15) == "seven"
    shown = [str(vars(record)) for record in caplog.records]
    assert [line for line in shown if "audit" in line or "tokens" in line] == []


async def test_the_server_of_the_api_does_what_its_tokens_may_and_makes_none(
    guarded: GuardedServer, root: Truth
) -> None:
    async with app_of(guarded, "operator") as operator:
        text = await operator.tokens.new("billing", ["admin"])
    async with app_of(guarded, "root") as everything:
        await bury(everything, "quick", [b"{}"] * 2, ids=["one", "two"])
    async with app_of(guarded, "http") as http:
        access = await http.tokens.find(text)
        assert access is not None
        assert [info.name for info in await http.tokens.list()] == ["billing"]
        for change in (http.tokens.new("mine", ["admin"]), http.tokens.revoke("billing")):
            with pytest.raises(AccessDenied, match=r"\$KV\.jobs-tokens"):
                await change
        await _operate(http)
        await http.audit.record("http.refused", "quick", by="billing", outcome="refused", via="http")
        assert (await http.audit.page()).items[0].action == "http.refused"
        with pytest.raises(AccessDenied):
            await http.jetstream.connection.ask("$JS.API.STREAM.PURGE.jobs-audit", b"", None, 2.0)
    outcomes = [(one["action"], one["outcome"]) for one in await entries(root)]
    assert outcomes == [
        ("token.new", "done"),
        ("token.new", "failed"),
        ("token.revoke", "failed"),
        ("job.reschedule", "moved"),
        ("job.cancel", "cancelled"),
        ("queue.pause", "done"),
        ("queue.resume", "done"),
        ("queue.purge", "done"),
        ("schedule.put", "done"),
        ("schedule.delete", "done"),
        ("dead.replay", "replayed"),
        ("dead.delete", "deleted"),
        ("http.refused", "refused"),
    ]
    assert list(await root.subjects("KV_jobs-tokens")) == ["$KV.jobs-tokens.billing"]


async def _operate(http: JetJobs) -> None:
    """What callers of the API do."""
    quick = http.tasks["quick"]
    later = await quick.options(delay="1h").enqueue("x" * 1_200_000)  # its body is in the object store
    await http.enqueue_many([quick.bind() for _ in range(3)])
    assert (await http.jobs.get(later.id)).id == later.id
    assert len((await http.jobs.page()).items) == 4
    await later.reschedule(delay="2h")
    await later.cancel(timeout=2)
    await http.queues.pause("default")
    await http.queues.resume("default")
    assert (await http.queues.purge("default")).queued == 3
    await http.schedules.put("often", "quick", every="1h")
    await http.schedules.delete("often")
    assert await http.workers.list() == []
    await http.dead.replay(await letter_of(http, "one"))
    await http.dead.delete(await letter_of(http, "two"))
