"""Webhooks are signed and sent by a worker of queue `webhooks`, and never to an address that is not allowed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from jetjobs import JetJobs, RetryPolicy
from jetjobs.errors import ConfigError
from jetjobs.model.events import JobFinished
from jetjobs.model.webhooks.endpoint import Endpoint
from jetjobs.worker.webhooks import delivery_task, http_post
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually, wait_until
from tests.support.receiver import Receiver, Reply, new_key
from tests.support.server import Truth
from tests.support.workers import running

SOON = timedelta(seconds=10)
KEY = new_key()
AT_ONCE = RetryPolicy(max_attempts=4, base="10ms", cap="10ms")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(KEY) as running_receiver:
        yield running_receiver
    assert running_receiver.unverified == []


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries are retried at once."""
    monkeypatch.setattr(delivery_task, "RETRY", AT_ONCE)


class Site:
    """An app with a task and a worker for it and for webhooks."""

    def __init__(self, app: JetJobs, truth: Truth, probe: Probe) -> None:
        self.app = app
        self.truth = truth
        self.probe = probe

    async def call_back(self, url: str) -> None:
        """Run a job with this callback."""
        await (await self.app.tasks["work"].options(callback=url).enqueue()).result(SOON)

    async def finished(self, outcome: str, count: int = 1, task: str = "jetjobs_webhook") -> list[JobFinished]:
        return await self.probe.wait(JobFinished, count, lambda one: (one.task, one.outcome) == (task, outcome))

    async def refusal(self) -> str:
        """The text of the dead letter of the only webhook, which was not retried."""
        (dead,) = await self.finished("dead_lettered")
        assert not self.probe.of(JobFinished, lambda one: one.outcome == "retried")
        letter = (await self.truth.dead())[dead.job_id]
        assert letter["reason"] == "permanent"
        return str(letter["text"])


@asynccontextmanager
async def site(make_app: MakeApp, truth: Truth, **webhooks: Any) -> AsyncIterator[Site]:
    app = make_app(webhooks={"default_secret": KEY, **webhooks})
    probe = Probe()
    app.observe(probe)

    @app.task
    async def work() -> str:
        return "done"

    async with app:
        await app.provision(["default", "webhooks"])
        async with running(app.worker(queues={"default": None, "webhooks": 4})):
            yield Site(app, truth, probe)


# Deliveries


async def test_a_delivery_is_signed_and_complete(make_app: MakeApp, truth: Truth, receiver: Receiver) -> None:
    async with site(make_app, truth, allow_hosts=["127.0.0.1"]) as here:
        await here.call_back(receiver.url("/hooks/7?a=b"))
        (ended,) = await here.finished("succeeded")
        (one,) = receiver.deliveries
        assert (one.path, one.type, one.data["result"], one.id) == (
            "/hooks/7?a=b",
            "job.succeeded",
            "done",
            ended.job_id,
        )
        assert one.headers["content-type"] == "application/json"
        assert one.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert (await truth.done("webhooks"))[ended.job_id]["result"] == {"status": 204}
        assert here.app.task_queues == ["default"]


async def test_failures_are_retried_with_the_same_id_until_the_receiver_accepts(
    make_app: MakeApp, truth: Truth, receiver: Receiver
) -> None:
    answers = iter(
        [Reply(500, body=b"no"), Reply(302, {"Location": "/other"}), Reply(408), Reply(200, body=b"ok")]
    )
    receiver.answer = lambda delivery: next(answers)
    async with site(make_app, truth, allow_hosts=["127.0.0.1"]) as here:
        await here.call_back(receiver.url())
        await here.finished("succeeded")
        retried = await here.finished("retried", 3)
    assert len({one.id for one in receiver.deliveries}) == 1
    assert [one.attempt for one in retried] == [1, 2, 3]
    assert [one.error.text for one in retried if one.error] == [
        "127.0.0.1 answered 500: no",
        "127.0.0.1 answered 302",
        "127.0.0.1 answered 408",
    ]


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
async def test_a_receiver_that_refuses_a_webhook_ends_it(
    make_app: MakeApp, truth: Truth, receiver: Receiver, status: int
) -> None:
    receiver.answer = lambda delivery: Reply(status, body=b"\xff" + b"x" * 100_000)
    async with site(make_app, truth, allow_hosts=["127.0.0.1"]) as here:
        await here.call_back(receiver.url("/token-in-path"))
        text = await here.refusal()
    assert text == f"127.0.0.1 answered {status}: �" + "x" * 199
    assert len(receiver.deliveries) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        ("0", 1),
        ("99999999", 6 * 3600),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=300), usegmt=True), 300),
        ("soon", 0),
        ("-5", 0),
    ],
)
async def test_retry_after_is_honoured_within_bounds(
    make_app: MakeApp, truth: Truth, receiver: Receiver, text: str | Callable[[], str], seconds: int
) -> None:
    receiver.answer = lambda delivery: Reply(429, {"Retry-After": text if isinstance(text, str) else text()})
    async with site(make_app, truth, allow_hosts=["127.0.0.1"]) as here:
        await here.call_back(receiver.url())
        (retried, *_) = await here.finished("retried")
    assert retried.retry_in_s == pytest.approx(seconds, abs=2 if seconds > 1 else 0.02)


async def test_a_receiver_that_does_not_answer_in_time_is_retried(
    make_app: MakeApp, truth: Truth, receiver: Receiver
) -> None:
    gate = threading.Event()
    receiver.answer = lambda delivery: Reply(204 if gate.wait(10 if len(receiver.deliveries) == 1 else 0) else 200)
    async with site(make_app, truth, allow_hosts=["127.0.0.1"], timeout="300ms") as here:
        await here.call_back(receiver.url())
        (retried,) = await here.finished("retried")
        await here.finished("succeeded")
    gate.set()
    assert retried.error is not None
    assert retried.error.text == "127.0.0.1 did not answer within 0.3 s"
    assert retried.run_s < 2


async def _serve(data: bytes) -> tuple[asyncio.Server, int]:
    """A server that sends these bytes for every request and then nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        with contextlib.suppress(ConnectionError):  # the client may have read enough
            await writer.drain()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 300_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    ],
)
async def test_the_status_counts_however_the_rest_of_the_answer_arrives(
    make_app: MakeApp, truth: Truth, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_post, "BODY_S", 0.05)
    server, port = await _serve(answer)
    async with server, site(make_app, truth, allow_hosts=["127.0.0.1"]) as here:
        await here.call_back(f"http://127.0.0.1:{port}/")
        await here.finished("succeeded")


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-server\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"]
)
async def test_an_answer_that_is_not_http_is_retried(make_app: MakeApp, truth: Truth, answer: bytes) -> None:
    server, port = await _serve(answer)
    async with server, site(make_app, truth, allow_hosts=["127.0.0.1"]) as here:
        await here.call_back(f"http://127.0.0.1:{port}/")
        (retried, *_) = await here.finished("retried")
        assert retried.error is not None
        assert "invalid answer" in retried.error.text


# Keys


async def test_two_keys_give_two_signatures_so_that_either_side_may_change_first(
    make_app: MakeApp, truth: Truth
) -> None:
    old, new = new_key("o"), new_key("n")
    with Receiver(old) as before, Receiver(new) as after:
        async with site(make_app, truth, allow_hosts=["127.0.0.1"], default_secret=[new, old]) as here:
            await here.call_back(before.url())
            await here.call_back(after.url())
            await here.finished("succeeded", 2)
        assert len(before.deliveries) == len(after.deliveries) == 1
        assert before.unverified == after.unverified == []


async def test_each_endpoint_has_its_own_key(make_app: MakeApp, truth: Truth) -> None:
    with Receiver(new_key("a")) as one, Receiver(new_key("b")) as two:
        secrets = {one.url("/hooks"): new_key("a"), f"127.0.0.1:{two.port}": new_key("b")}
        async with site(make_app, truth, allow_hosts=["127.0.0.1"], secrets=secrets) as here:
            await here.call_back(one.url("/hooks/x"))
            await here.call_back(two.url("/hooks/x"))
            await here.finished("succeeded", 2)
        assert one.unverified == two.unverified == []


async def test_without_a_key_nothing_is_sent(make_app: MakeApp, truth: Truth, receiver: Receiver) -> None:
    async with site(make_app, truth, allow_hosts=["127.0.0.1"], default_secret="") as here:
        await here.call_back(receiver.url("/secret-path"))
        text = await here.refusal()
        assert "no secret for 127.0.0.1" in text
        assert "webhooks.secrets" in text
        assert "secret-path" not in text
        assert receiver.connections == 0


async def test_a_dead_webhook_can_be_replayed_by_a_process_without_its_worker(
    make_app: MakeApp, truth: Truth, receiver: Receiver
) -> None:
    async with site(make_app, truth, default_secret="") as here:
        await here.call_back(receiver.url())
        await here.refusal()
    app = make_app("other", webhooks={"default_secret": KEY, "allow_hosts": "127.0.0.1"})
    async with app:
        answers = [answer async for answer in app.dead.replay_all()]
        assert [answer.outcome for answer in answers] == ["replayed"]
        async with running(app.worker(queues={"webhooks": None})):
            await wait_until(lambda: receiver.accepted())


# TLS


@pytest.fixture
def tls_receiver(tmp_path: Path) -> Iterator[tuple[Receiver, str]]:
    """With a certificate for hook.test, and the file of its CA."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("hook.test").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with Receiver(KEY, tls=context) as receiver:
        yield receiver, str(tmp_path / "ca.pem")


async def test_the_certificate_is_checked_for_the_name_though_the_address_is_pinned(
    make_app: MakeApp, truth: Truth, tls_receiver: tuple[Receiver, str], names: Names
) -> None:
    receiver, ca = tls_receiver
    names.give("hook.test", "127.0.0.1")
    names.give("other.test", "127.0.0.1")
    async with site(make_app, truth, allow_hosts=["*.test"], tls_ca=ca) as here:
        await here.call_back(receiver.url(host="hook.test"))
        await here.finished("succeeded")
        await here.call_back(receiver.url(host="other.test"))
        (retried, *_) = await here.finished("retried")
        assert retried.error is not None
        assert "certificate verify failed" in retried.error.text
    assert len(receiver.deliveries) == 1


# Addresses that must not be called


class Names:
    """Names of a resolver, for this process. Each look-up of a name takes its next answer; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self._real = socket.getaddrinfo

    def give(self, name: str, *addresses: str | list[str]) -> None:
        self.answers[name] = [[one] if isinstance(one, str) else one for one in addresses]

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in self.answers:
            return self._real(host, port, *args, **kwargs)
        self.asked.append(host)
        answers = self.answers[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in found
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    known = Names()
    monkeypatch.setattr(socket, "getaddrinfo", known.getaddrinfo)
    return known


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "0.0.0.0",
        "[::]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.0.0.1.",
        "inner.test",
        "mixed.test",
        "mapped.test",
    ],
)
async def test_nothing_connects_to_this_machine(
    make_app: MakeApp, truth: Truth, receiver: Receiver, names: Names, host: str
) -> None:
    names.give("inner.test", "127.0.0.1")
    names.give("mixed.test", ["1.1.1.1", "127.0.0.1"])
    names.give("mapped.test", "::ffff:127.0.0.1")
    async with site(make_app, truth) as here:
        await here.call_back(receiver.url(host=host))
        text = await here.refusal()
    assert "is not a public address" in text
    assert "allow_hosts" in text
    assert receiver.connections == 0


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "10.0.0.1", "192.168.0.1", "172.31.0.1", "100.64.0.1", "[fc00::1]"]
)
async def test_no_private_address_is_connected_to(
    make_app: MakeApp, truth: Truth, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(*args: Any) -> Any:
        raise AssertionError("connected")

    monkeypatch.setattr(http_post, "post", post)
    async with site(make_app, truth) as here:
        await here.call_back(f"http://{host}/latest/meta-data")
        assert "is not a public address" in await here.refusal()


async def test_a_redirect_to_this_machine_is_not_followed(
    make_app: MakeApp, truth: Truth, receiver: Receiver
) -> None:
    with Receiver(KEY) as target:
        receiver.answer = lambda delivery: Reply(307, {"Location": target.url()})
        async with site(make_app, truth, allow_hosts=[f"127.0.0.1:{receiver.port}"]) as here:
            await here.call_back(receiver.url())
            (dead,) = await here.finished("dead_lettered")
            assert dead.reason == "exhausted"
        assert target.connections == 0
    assert len(receiver.deliveries) == AT_ONCE.max_attempts


async def test_a_name_is_looked_up_once_and_its_address_is_pinned(
    make_app: MakeApp, truth: Truth, receiver: Receiver, names: Names
) -> None:
    names.give("hook.test", "127.0.0.1", "127.0.0.2")
    async with site(make_app, truth, allow_hosts=["hook.test"]) as here:
        await here.call_back(receiver.url(host="hook.test"))
        await here.finished("succeeded")
    assert names.asked == ["hook.test"]
    assert receiver.deliveries[0].headers["host"] == f"hook.test:{receiver.port}"


async def test_a_name_that_changes_to_this_machine_is_refused_at_the_next_attempt(
    make_app: MakeApp, truth: Truth, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[str] = []

    async def post(endpoint: Endpoint, addresses: list[str], *rest: Any) -> Any:
        connected.extend(addresses)
        raise OSError("unreachable")

    monkeypatch.setattr(http_post, "post", post)
    names.give("rebinding.test", "1.1.1.1", "127.0.0.1")
    async with site(make_app, truth) as here:
        await here.call_back(receiver.url(host="rebinding.test"))
        (dead,) = await here.finished("dead_lettered")
    assert connected == ["1.1.1.1"]
    assert names.asked == ["rebinding.test"] * 2
    assert dead.error is not None
    assert "127.0.0.1, to which rebinding.test resolves, is not a public address" in dead.error.text
    assert receiver.connections == 0


async def test_a_name_without_an_address_is_retried(make_app: MakeApp, truth: Truth) -> None:
    async with site(make_app, truth) as here:
        await here.call_back("https://does-not-exist.invalid/")
        await here.finished("retried")


async def test_only_the_port_of_an_allowed_host_may_be_called(
    make_app: MakeApp, truth: Truth, receiver: Receiver
) -> None:
    async with site(make_app, truth, allow_hosts=[f"127.0.0.1:{receiver.port + 1}"]) as here:
        await here.call_back(receiver.url())
        await here.refusal()
    assert receiver.connections == 0


# Workers


async def test_other_workers_do_not_take_the_queue(make_app: MakeApp, truth: Truth, receiver: Receiver) -> None:
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with app:
        await app.provision()
        worker = app.worker()
        async with running(worker):
            await work.options(callback=receiver.url()).enqueue()
            await eventually(lambda: truth.has_stream("jobs-work-webhooks"))
            await eventually(lambda: truth.jobs("webhooks", "normal"))
            assert list(worker.options.queues) == ["default"]
            assert (await truth.consumer("normal", "webhooks"))["delivered"]["consumer_seq"] == 0


async def test_a_worker_of_webhooks_alone_runs_no_code_of_the_app(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()

    @app.lifespan
    async def database() -> AsyncIterator[None]:
        raise AssertionError("opened")
        yield

    async with app:
        await app.provision(["webhooks"])
        async with running(app.worker(queues={"webhooks": None})) as worker:
            await wait_until(lambda: worker.ready)


async def test_without_the_extra_the_worker_names_it(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    async with make_app() as app:
        with pytest.raises(ConfigError, match="extra http") as refused:
            app.worker(queues={"webhooks": None})
        assert refused.value.hint == "pip install 'jetjobs[http]'"
