"""A worker survives any bytes in a work stream, and removes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetjobs import JetJobs, JetJobsError, RetryPolicy, Task
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import BrokerError
from jetjobs.model.events import ConnectionLost, JobStarted, LaneTrouble
from jetjobs.model.settings import build_settings
from jetjobs.model.wire import headers as h
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned_worker

SOON = timedelta(seconds=30)
PREFIX = b"jobs.work.default."

# The server accepts any bytes in a subject but blank, control and wildcard characters, and no empty tokens.
_token = st.binary(min_size=1, max_size=20).map(
    lambda b: bytes(c for c in b if c > 32 and c not in b".*>\x7f") or b"x"
)
_lane = st.sampled_from([b"high", b"normal", b"low"])
_task = st.one_of(st.sampled_from([b"greet", b"fragile"]), _token, st.just(b"x" * 3000))
_rest = st.one_of(
    st.just(b""),
    st.builds(lambda a, b: b".%s.%s" % (a, b), st.one_of(st.just(b"-"), _token), _token),
    st.lists(_token, min_size=1, max_size=4).map(lambda tokens: b"." + b".".join(tokens)),
)
_subject = st.builds(lambda lane, task, rest: PREFIX + lane + b"." + task + rest, _lane, _task, _rest)

# The headers of jetjobs that a job may have, without those that are commands to the server.
_own = [
    value.encode()
    for value in vars(h).values()
    if isinstance(value, str) and value.startswith("Jetjobs-") and value.isascii()
]
_name = st.one_of(st.sampled_from(_own), st.binary(min_size=1, max_size=20))
_value = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"-1", b"1e999", b"nan", b"99999999999999999999", b"{}", b"[" * 5000, b"_INBOX.*.>", b"\xff\xfe"]
    ),
    st.integers(0, 10**9).map(lambda n: str(n).encode()),
)


def _line(name: bytes, value: bytes) -> bytes:
    """A header line, possibly with a misplaced CR, LF or colon."""
    return name + b": " + value + b"\r\n"


_block = st.one_of(
    st.none(),
    st.lists(st.builds(_line, _name, _value), max_size=4).map(
        lambda lines: b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"
    ),
    st.binary(max_size=60).map(lambda junk: b"NATS/1.0\r\n" + junk + b"\r\n\r\n"),
)
_body = st.one_of(st.just(b"{}"), st.just(b'{"n": 1}'), st.just(b"{" * 3000), st.binary(max_size=60))
_message = st.tuples(_subject, _block, _body)


def _frame(subject: bytes, block: bytes | None, body: bytes) -> bytes:
    if block is None:
        return b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body)
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(block), len(block) + len(body), block, body)


async def _publish(url: str, messages: list[tuple[bytes, bytes | None, bytes]]) -> None:
    """Publish over a plain socket, because client libraries refuse some input. The server may close it."""
    port = int(url.rsplit(":", 1)[1])
    for message in messages:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + _frame(*message) + b"PING\r\n")
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while (line := await reader.readline()) and line != b"PONG\r\n":
                    pass
        writer.close()


class Fuzzed:
    """A running worker, and what it must still do after each bad message."""

    def __init__(self, app: JetJobs, greet: Task[[int], int], probe: Probe, truth: Truth, url: str) -> None:
        self._app = app
        self._greet = greet
        self._probe = probe
        self._truth = truth
        self._url = url

    async def take(self, messages: list[tuple[bytes, bytes | None, bytes]]) -> None:
        await _publish(self._url, messages)
        handle = await self._greet.enqueue(7)
        assert await handle.result(SOON) == 7
        await eventually(self._nothing_left, timeout=30)
        assert not self._probe.of(ConnectionLost), self._probe.of(ConnectionLost)
        assert not self._probe.of(LaneTrouble), self._probe.of(LaneTrouble)

    async def enqueue_with(self, where: str, text: str) -> None:
        """Assert that the job is either refused before it is sent, or stored and run."""
        options: dict[str, Any] = {where: text}
        if where.startswith("header"):
            options = {"headers": {text: "x"} if where == "header name" else {"X-Own": text}}
        before = len(self._probe.of(JobStarted))
        try:
            handle = await self._greet.options(**options).enqueue(7)
        except (JetJobsError, ValueError) as refusal:
            assert not isinstance(refusal, BrokerError), refusal  # refused by jetjobs, not by the server
            assert len(self._probe.of(JobStarted)) == before
        else:
            assert await handle.result(SOON) == 7
        assert not self._probe.of(ConnectionLost), self._probe.of(ConnectionLost)
        await eventually(self._nothing_left, timeout=30)

    async def reasons(self) -> set[str]:
        """The reasons of the dead letters, all of which must be readable."""
        return {letter.reason async for letter in self._app.dead.list()}

    async def _nothing_left(self) -> bool:
        info = await self._truth.api("STREAM.INFO.jobs-work-default")
        return int(info["state"]["messages"]) == 1  # the pin


@contextlib.asynccontextmanager
async def fuzzed(url: str) -> AsyncIterator[Fuzzed]:
    app = JetJobs("test", settings=build_settings({"nats": {"url": url}, "queues": {"unknown_task_grace": 0}}))
    probe = Probe()
    app.observe(probe)

    @app.task
    async def greet(n: int) -> int:
        return n

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=10)))
    async def fragile() -> None:
        raise RuntimeError("no")

    truth = await Truth.connect(url)
    async with provisioned_worker(app):
        yield Fuzzed(app, greet, probe, truth, url)
    await truth.close()


# Deterministic examples: a failure must be reproducible.
SAME = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@contextlib.contextmanager
def a_worker(url: str) -> Iterator[tuple[asyncio.Runner, Fuzzed]]:
    """One target for all examples, on one event loop."""
    with asyncio.Runner() as runner:
        standing = fuzzed(url)
        worker = runner.run(standing.__aenter__())
        try:
            yield runner, worker
        finally:
            runner.run(standing.__aexit__(None, None, None))


def test_a_worker_survives_any_subject_headers_and_body(server: EmbeddedServer) -> None:
    with a_worker(server.url) as (runner, worker):

        @SAME
        @given(st.lists(_message, min_size=1, max_size=5))
        def survive(messages: list[tuple[bytes, bytes | None, bytes]]) -> None:
            runner.run(worker.take(messages))

        survive()
        reasons = runner.run(worker.reasons())
        assert reasons >= {"malformed", "unknown_task"}
        assert "" not in reasons


_text = st.one_of(
    st.text(max_size=30), st.sampled_from(["a\r\nb", "x" * 10_000, "a.b", "*", ">", " ", "\x00", "\udcff"])
)


def test_names_without_a_wire_form_are_refused_at_enqueue_and_nothing_is_stored(
    server: EmbeddedServer,
) -> None:
    with a_worker(server.url) as (runner, worker):

        @SAME
        @given(st.sampled_from(["job_id", "key", "header name", "header value"]), _text)
        def refuse_or_run(where: str, text: str) -> None:
            runner.run(worker.enqueue_with(where, text))

        refuse_or_run()
