"""Records that somebody else wrote into our buckets: they harm nobody who reads them."""

from __future__ import annotations

import json

import pytest
from nats.errors import NoRespondersError

from jetjobs import JetJobs
from jetjobs.model.errors import BrokerError, JobNotFound
from jetjobs.model.names import kv_subject
from jetjobs.worker.worker import running
from tests.support.probe import eventually
from tests.support.server import Truth

FORGED = "x 0\r\n\r\nPUB pwned.here 5\r\nhello\r\nPUB junk"
NESTED = b"[" * 100_000


async def test_a_forged_running_record_makes_its_reader_publish_nothing(app: JetJobs, truth: Truth) -> None:
    heard: list[str] = []

    async def on_message(message: object) -> None:
        heard.append("pwned")

    await truth.nc.subscribe("pwned.>", cb=on_message)
    async with app:
        await app.provision()
        record = {"id": "j1", "run": "r", "task": "send", "queue": FORGED, "worker": "w", "started_at": "x"}
        await truth.js.publish(kv_subject("jobs-running", "j1"), json.dumps(record).encode())
        for call in (app.jobs.get, app.jobs.cancel, app.jobs.run_now):
            with pytest.raises(JobNotFound):
                await call("j1")
        assert await app.jobs.running() == []
        with pytest.raises(BrokerError, match="no subject"):
            await app.jetstream.connection.api(f"STREAM.INFO.{FORGED}")
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

    async with app:
        await app.provision()
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
