"""One permission less than the example gives: each is reported with its subject, and no job runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from jetjobs import JetJobs, RetryPolicy, Worker, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import AccessDenied
from jetjobs.jetstream.jobs.cancel_marks import CancelMark
from jetjobs.model.settings import build_settings
from jetjobs.observe.logs import log_event
from jetjobs.worker.options import Phase
from tests.support.probe import eventually, wait_until
from tests.support.roles import GuardedServer, Removed
from tests.support.server import Truth
from tests.support.workers import running

REPORTED_S = 2.0
LEASE_S = 1.0
SOON = timedelta(seconds=20)
NO_WAIT = RetryPolicy(max_attempts=2, backoff="fixed", base=timedelta(milliseconds=10))


class Site:
    """A guarded server with its queue, apps in the roles of the example, and a record of what ran."""

    def __init__(self, server: GuardedServer, log: pytest.LogCaptureFixture) -> None:
        self.server = server
        self.ran: list[tuple[str, int]] = []
        """Task and attempt of every run."""
        self.leave = asyncio.Event()
        self._log = log

    def app(self, role: str, **nats: Any) -> JetJobs:
        groups = {"queues": {"lease": f"{LEASE_S:g}s"}, "nats": nats}
        app = JetJobs("t", settings=self.server.settings_of(role, **groups))

        def ran() -> None:
            job = current_job()
            self.ran.append((job.task, job.attempt))

        @app.task
        async def quick() -> str:
            ran()
            return "done"

        @app.task
        async def long() -> str:
            ran()
            await asyncio.sleep(0.6)
            return "done"

        @app.task
        async def held() -> str:
            ran()
            await self.leave.wait()
            return "done"

        @app.task(store_result=False)
        async def unrecorded() -> None:
            ran()

        @app.task(retry=RetryPolicy(max_attempts=1))
        async def hopeless() -> None:
            ran()
            raise ValueError("no")

        @app.task(retry=NO_WAIT)
        async def second_time() -> str:
            ran()
            if current_job().attempt == 1:
                raise ValueError("not yet")
            return "done"

        @app.task
        async def saving() -> str:
            ran()
            await current_job().checkpoint({"step": 1})
            return "done"

        app.observe(log_event)
        return app

    def lines(self, subject: str, event: str = "") -> list[logging.LogRecord]:
        """The log records of jetjobs that name the subject, of one event or of any."""
        return [
            record
            for record in self._log.records
            if record.name.startswith("jetjobs")
            and event in ("", vars(record).get("event"))
            and any(subject in str(vars(record).get(field, "")) for field in ("subject", "error"))
        ]

    def denied(self, subject: str) -> bool:
        """Whether `nats.denied` was logged for the subject, and once for each subject that begins like it."""
        found = [vars(record)["subject"] for record in self.lines(subject, "nats.denied")]
        return bool(found) and len(found) == len(set(found))

    @contextlib.asynccontextmanager
    async def truth(self) -> AsyncIterator[Truth]:
        truth = await Truth.connect(self.server.url.replace("://", "://root:secret@"))
        yield truth
        await truth.close()


@contextlib.contextmanager
def site_without(folder: Path, log: pytest.LogCaptureFixture, *removed: Removed) -> Iterator[Site]:
    with GuardedServer(folder, *removed) as server:
        yield Site(server, log)


@pytest.fixture(autouse=True)
def quick_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try what was denied again after a moment."""
    monkeypatch.setattr("jetjobs.jetstream.transport.denials.RETRY_S", 0.2)
    monkeypatch.setattr("jetjobs.worker.intake.lanes.DENIED_CHECK_S", 0.2)


async def until_working(worker: Worker) -> None:
    await wait_until(lambda: worker.phase is Phase.READY)


class Case(NamedTuple):
    verb: Literal["publish", "subscribe"]
    subject: str
    task: str = "quick"
    ready: bool = True
    """Whether the worker is ready without the permission."""
    held: bool = False
    """Whether the worker holds the outcome until it has the permission."""

    @property
    def named(self) -> str:
        """What reports name: the subject without its last wildcard."""
        return self.subject.removesuffix("*").removesuffix(">")


WORKER = [
    Case("publish", "$JS.API.CONSUMER.MSG.NEXT.jobs-work-default.*", ready=False),
    Case("publish", "$JS.API.CONSUMER.MSG.NEXT.jobs-work-default.normal", ready=False),
    Case("publish", "$JS.ACK.jobs-work-default.>", ready=False),
    Case("publish", "$JS.ACK.jobs-work-default.>", "long", ready=False),
    Case("publish", "$JS.ACK.jobs-work-default.>", "unrecorded", ready=False),
    Case("publish", "$JS.ACK.jobs-work-default.normal.>", "second_time", ready=False),
    Case("subscribe", "jobs.control.>", ready=False),
    Case("subscribe", "$KV.jobs-cancelled.*.*", ready=False),
    Case("publish", "$KV.jobs-done-default.>", ready=False, held=True),
    Case("publish", "jobs.dead.default.>", "hopeless", ready=False, held=True),
    Case("publish", "jobs.work.default.retry.>", "second_time", ready=False, held=True),
    Case("publish", "$KV.jobs-running.>", "long"),
    Case("publish", "$KV.jobs-workers.>"),
    Case("publish", "_INBOX_producer.>"),
    Case("publish", "$JS.API.CONSUMER.INFO.jobs-work-default.*"),
    Case("publish", "$JS.API.STREAM.INFO.jobs-work-default"),
    Case("publish", "$JS.API.STREAM.PURGE.KV_jobs-checkpoints", "saving"),
    Case("publish", "$KV.jobs-locks.leader"),
    Case("subscribe", "$KV.jobs-locks.leader"),
    Case("subscribe", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*"),
]


@pytest.mark.parametrize("case", WORKER, ids=lambda case: f"{case.verb}-{case.subject}-{case.task}")
async def test_a_worker_reports_a_missing_permission_and_no_job_runs_twice(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    removed = Removed("worker", case.verb, case.subject)
    with site_without(tmp_path, caplog, removed) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        app, other = site.app("worker"), site.app("root")
        async with site.truth() as truth, app, other, site.app("producer") as producer:
            async with running(app.worker()) as worker:
                await until_working(worker)
                await producer.tasks[case.task].enqueue()
                await wait_until(lambda: site.lines(case.named), REPORTED_S)
                await wait_until(lambda: worker.ready == case.ready, REPORTED_S)
                if not case.ready:
                    assert case.named in worker.problem
                if case.held:
                    # A second worker does not get the job, whatever the length of the lease.
                    async with running(other.worker()):
                        await asyncio.sleep(1.5 * LEASE_S)
                        assert worker.ready is False
                        site.server.change()
                        await truth.until_empty()
                else:
                    async with running(other.worker()):
                        await truth.until_empty()
                    assert worker.ready == case.ready
                    site.server.change()
                await wait_until(lambda: worker.ready and not worker.problem, 5)
                await (await producer.tasks["quick"].enqueue()).result(SOON)
                await truth.until_empty()
            attempts = 2 if case.task == "second_time" else 1
            assert sorted(site.ran[:-1]) == [(case.task, attempt + 1) for attempt in range(attempts)]
            assert site.denied(case.named)


async def test_a_worker_whose_acks_are_denied_later_starts_nothing_more_and_no_job_runs_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        app, other = site.app("worker"), site.app("root")
        producer = site.app("producer")
        async with site.truth() as truth, app, other, producer, running(app.worker(slots=1)) as worker:
            await until_working(worker)
            await producer.tasks["held"].enqueue()
            await wait_until(lambda: site.ran == [("held", 1)])
            site.server.change(Removed("worker", "publish", "$JS.ACK.jobs-work-default.>"))
            await wait_until(lambda: site.lines("$JS.ACK.jobs-work-default."), LEASE_S + REPORTED_S)
            assert not worker.ready
            assert "$JS.ACK.jobs-work-default.normal.>" in worker.problem
            site.leave.set()  # its success is stored; its ack is not
            await eventually(lambda: truth.done())
            await producer.tasks["quick"].enqueue()
            await asyncio.sleep(0.2)
            assert site.ran == [("held", 1)]
            async with running(other.worker()):
                await truth.until_empty()
            assert site.ran == [("held", 1), ("quick", 1)]
            site.server.change()
            await wait_until(lambda: worker.ready, 5)
            await (await producer.tasks["quick"].enqueue()).result(SOON)


async def test_a_redelivered_job_is_held_while_the_worker_may_not_check_whether_it_has_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject = "$JS.API.STREAM.MSG.GET.*"
    with site_without(tmp_path, caplog, Removed("worker", "publish", subject)) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        app, producer = site.app("worker"), site.app("producer")
        async with site.truth() as truth, app, producer:
            handle = await producer.tasks["quick"].enqueue()
            pulled = await truth.js.pull_subscribe_bind("normal", "jobs-work-default")
            assert await pulled.fetch(1)  # and not acked
            async with running(app.worker()) as worker:
                await wait_until(lambda: site.lines("$JS.API.STREAM.MSG.GET."), LEASE_S + REPORTED_S)
                await wait_until(lambda: "$JS.API.STREAM.MSG.GET." in worker.problem)
                await asyncio.sleep(1.5 * LEASE_S)
                assert (await truth.consumer())["num_redelivered"] == 1
                assert site.ran == []
                site.server.change()
                assert await handle.result(SOON) == "done"
                await wait_until(lambda: worker.ready)
                await truth.until_empty()
            assert site.ran == [("quick", 1)]
            assert await truth.dead() == {}


async def test_a_worker_that_may_not_ack_after_a_reconnect_runs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        app, producer = site.app("worker"), site.app("producer")
        async with site.truth() as truth, app, producer, running(app.worker()) as worker:
            await until_working(worker)
            await (await producer.tasks["quick"].enqueue()).result(SOON)
            site.server.stop()
            site.server.permit(Removed("worker", "publish", "$JS.ACK.jobs-work-default.>"))
            site.server.start()
            handle = await producer.tasks["quick"].enqueue()
            await wait_until(lambda: "$JS.ACK.jobs-work-default." in worker.problem)
            await asyncio.sleep(0.2)
            assert site.ran == [("quick", 1)]
            site.server.change()
            await handle.result(SOON)
            await truth.until_empty()
            assert site.ran == [("quick", 1)] * 2


async def test_a_worker_whose_subscriptions_are_denied_later_is_not_ready_until_they_are_allowed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        app = site.app("worker")
        async with app, site.app("root") as root, running(app.worker()) as worker:
            await until_working(worker)
            for subject in ("$KV.jobs-cancelled.*.*", "_INBOX_worker.>", "jobs.control.>"):
                site.server.change(Removed("worker", "subscribe", subject))
                await wait_until(lambda: not worker.ready, REPORTED_S)
                named = subject.removesuffix(">")
                assert named in worker.problem
                assert site.denied(named)
                await root.jetstream.cancel_marks.put("missed", CancelMark("run", "me", "why"))
                site.server.change()
                await wait_until(lambda: worker.ready, 5)
                await wait_until(lambda: app.jetstream.cancel_marks.find("missed", "run"), 5)
                caplog.clear()
            await (await root.tasks["quick"].enqueue()).result(SOON)


@pytest.mark.parametrize("role", ["worker", "producer"])
async def test_a_wrong_inbox_prefix_is_reported_within_a_second(
    role: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog) as site:
        started = time.monotonic()
        with pytest.raises(AccessDenied, match=r'subscription to "_INBOX_wrong\.') as raised:
            await site.app(role, inbox_prefix="_INBOX_wrong").open()
        assert time.monotonic() - started < 1.0
        assert "nats.inbox_prefix" in str(raised.value.hint)


async def test_a_worker_that_may_not_read_the_cancel_marks_does_not_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    removed = Removed("worker", "publish", "$JS.API.DIRECT.GET.KV_jobs-cancelled")
    with site_without(tmp_path, caplog, removed) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        async with site.app("worker") as app:
            with pytest.raises(AccessDenied, match=r"DIRECT\.GET\.KV_jobs-cancelled"):
                await asyncio.wait_for(app.worker().run(), REPORTED_S)


async def _enqueue(app: JetJobs) -> None:
    await app.tasks["quick"].enqueue()


async def _enqueue_many(app: JetJobs) -> None:
    (await app.enqueue_many([app.tasks["quick"].bind() for _ in range(3)])).raise_for_refused()


async def _enqueue_later(app: JetJobs) -> None:
    await app.tasks["quick"].options(delay=timedelta(hours=1)).enqueue()


async def _result(app: JetJobs) -> None:
    await (await app.tasks["quick"].enqueue()).result(SOON)


async def _status(app: JetJobs) -> None:
    await (await app.tasks["quick"].enqueue()).status()


async def _events(app: JetJobs) -> None:
    async for _ in app.events():
        pass


async def _cancel(app: JetJobs) -> None:
    handle = await app.tasks["quick"].options(delay=timedelta(hours=1)).enqueue()
    await app.jobs.cancel(handle.id, queue="default", task="quick")


USES = [
    ("producer", "publish", "jobs.work.default.normal.>", _enqueue),
    ("producer", "publish", "jobs.work.default.normal.>", _enqueue_many),
    ("producer", "publish", "jobs.work.default.later.>", _enqueue_later),
    ("producer", "publish", "$JS.API.STREAM.MSG.GET.KV_jobs-done-default", _result),
    ("producer", "publish", "$JS.API.STREAM.MSG.GET.jobs-dead", _result),
    ("producer", "publish", "$JS.API.STREAM.MSG.GET.jobs-work-default", _status),
    ("producer", "subscribe", "jobs.events.>", _events),
    ("producer", "publish", "jobs.control.workers", _events),
    ("producer", "subscribe", "_INBOX_producer.>", _enqueue),
    ("operator", "subscribe", "jobs.events.>", _events),
    ("operator", "publish", "jobs.control.>", _events),
    ("operator", "publish", "$KV.jobs-cancelled.*.*", _cancel),
]


@pytest.mark.parametrize(("role", "verb", "subject", "use"), USES)
async def test_a_client_gets_the_denied_subject_as_an_error(
    role: str, verb: Any, subject: str, use: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog, Removed(role, verb, subject)) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        named = subject.removesuffix("*").removesuffix("*.").removesuffix(">")
        with pytest.raises(AccessDenied) as raised:
            async with asyncio.timeout(REPORTED_S), site.app(role) as app:
                await use(app)
        assert named in str(raised.value)
        assert raised.value.hint


async def test_events_end_with_an_error_when_the_permission_is_revoked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        async with site.app("operator") as app:
            begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()

            async def watch() -> None:
                async for _ in app.events(begun=begun.set_result):
                    pass

            watching = asyncio.create_task(watch())
            await begun
            site.server.change(Removed("operator", "subscribe", "jobs.events.>"))
            with pytest.raises(AccessDenied, match=r'subscription to "jobs\.events\.'):
                await asyncio.wait_for(watching, REPORTED_S)


async def test_a_denied_inbox_after_a_reconnect_fails_requests_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with site_without(tmp_path, caplog) as site:
        async with site.app("setup") as setup:
            await setup.provision()
        async with site.app("producer") as app:
            await _enqueue(app)
            site.server.stop()
            site.server.permit(Removed("producer", "subscribe", "_INBOX_producer.>"))
            site.server.start()
            await wait_until(lambda: site.denied("_INBOX_producer.>"))
            with pytest.raises(AccessDenied, match="_INBOX_producer"):
                await asyncio.wait_for(_enqueue(app), 4)
            site.server.change()

            async def enqueued() -> bool:
                with contextlib.suppress(AccessDenied):
                    await _enqueue(app)
                    return True
                return False

            assert await eventually(enqueued)


async def test_names_keep_their_case(tmp_path: Path) -> None:
    """nats-py converts error lines to lower case."""
    config = tmp_path / "case.conf"
    rules = '{ user: a, password: b, permissions: { publish: { deny: "Mixed.Case" } } }'
    config.write_text(f"authorization {{ users: [ {rules} ] }}")
    with EmbeddedServer(extra=("-c", str(config))) as guarded:
        login = {"url": guarded.url, "user": "a", "password": "b"}
        async with JetJobs("t", settings=build_settings({"nats": login})) as app:
            with pytest.raises(AccessDenied, match=r'publish to "Mixed\.Case"'):
                await app.jetstream.connection.ask("Mixed.Case", timeout_s=5)
