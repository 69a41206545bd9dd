"""Streams, lanes and buckets: made, compared, left alone, refused."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from jetjobs import BrokerUnavailable, JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import AccessDenied, BrokerError
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import TopologyConflict, TopologyMissing, UnsupportedServer
from jetjobs.model.settings import build_settings
from tests.conftest import MakeApp
from tests.support.proxy import Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned


def with_task(app: JetJobs, queue: str = "default") -> JetJobs:
    @app.task(queue=queue)
    async def work() -> None: ...

    return app


async def test_a_second_apply_finds_nothing_to_change(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with app:
        first = await app.provision()
        assert {change.action for change in first} == {"create"}
        assert {change.action for change in await app.plan()} == {"none"}
        await app.verify()


async def test_sixteen_applies_at_once_make_one_of_each(make_app: MakeApp, truth: Truth) -> None:
    apps = [with_task(make_app(), queue) for queue in ("a", "b") for _ in range(8)]
    for app in apps:
        await app.open()
    try:
        await asyncio.gather(*(app.provision(["a", "b"]) for app in apps))
        await asyncio.gather(*(app.verify(["a", "b"]) for app in apps))
    finally:
        for app in apps:
            await app.close()
    for queue in ("a", "b"):
        assert await truth.subjects(f"jobs-work-{queue}") == {f"jobs.work.{queue}.mark._pin": 1}
        assert (await truth.js.get_msg(f"jobs-work-{queue}", 1)).subject == f"jobs.work.{queue}.mark._pin"


async def test_a_changed_setting_is_shown_as_a_difference_and_applied_to_the_lanes(
    make_app: MakeApp, truth: Truth
) -> None:
    async with with_task(make_app()) as app:
        await app.provision()
    async with with_task(make_app(queues={"lease": "10s"})) as app:
        changes = [change for change in await app.plan() if change.action != "none"]
        assert {change.wanted.label for change in changes} == {
            f"lane default/{lane}" for lane in ("high", "normal", "low", "returned")
        }
        assert changes[0].diff == {"ack_wait": (30 * api.NS, 10 * api.NS)}
        await app.provision()
        assert (await truth.consumer())["config"]["ack_wait"] == 10 * api.NS
        await app.verify()


async def test_what_an_operator_set_beside_is_left_alone(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        config = (await truth.api("STREAM.INFO.jobs-dead"))["config"]
        await truth.api("STREAM.UPDATE.jobs-dead", {**config, "max_bytes": 10_000_000})
        assert {change.action for change in await app.plan()} == {"none"}
        await app.provision()
        assert (await truth.api("STREAM.INFO.jobs-dead"))["config"]["max_bytes"] == 10_000_000


async def test_verify_refuses_what_is_missing_and_creates_nothing(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        await truth.js.delete_stream("jobs-work-default")
        with pytest.raises(TopologyMissing, match="jobs-work-default"):
            await app.verify()
        assert not await truth.has_stream("jobs-work-default")


async def test_verify_refuses_drift(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        config = (await truth.api("STREAM.INFO.jobs-work-default"))["config"]
        config["subjects"] = [subject for subject in config["subjects"] if ".low." not in subject]
        await truth.js.delete_consumer("jobs-work-default", "low")
        await truth.api("STREAM.UPDATE.jobs-work-default", config)
        with pytest.raises((TopologyConflict, TopologyMissing)):
            await app.verify()
        await app.provision()
        await app.verify()


async def test_a_stream_that_cannot_become_what_is_wanted_is_a_clear_error(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    await truth.js.add_stream(name="jobs-work-default", subjects=["jobs.work.default.>"], storage="file")
    async with app:
        with pytest.raises(BrokerError, match="work stream jobs-work-default"):
            await app.provision()


# Unsupported servers


@pytest.mark.parametrize(
    ("version", "problem"),
    [("2.13.9", "is too old"), ("1.99.0", "is too old"), ("v2.14", "has no readable version")],
)
async def test_a_server_below_2_14_is_refused(
    make_app: MakeApp, server: EmbeddedServer, version: str, problem: str
) -> None:
    proxy = Proxy(server.url)
    proxy.to_client = lambda data: re.sub(rb'"version":"2\.\d+\.\d+"', f'"version":"{version}"'.encode(), data)
    async with proxy.running():
        app = make_app(nats={"url": proxy.url})
        with pytest.raises(UnsupportedServer, match=f"{version} {problem}: jetjobs needs 2.14 or newer"):
            await app.open()


async def test_a_server_without_jetstream_is_refused_with_that_reason() -> None:
    with EmbeddedServer(jetstream=False) as plain:
        app = with_task(JetJobs("t", settings=build_settings({"nats": {"url": plain.url}})))
        async with asyncio.timeout(8), app:
            with pytest.raises(UnsupportedServer, match="JetStream is not enabled"):
                await app.provision()


async def test_no_server_is_said_within_seconds() -> None:
    settings = build_settings({"nats": {"url": "nats://127.0.0.1:1", "connect_timeout": "1s"}})
    async with asyncio.timeout(4):
        with pytest.raises(BrokerUnavailable, match=r"no NATS server at nats://127.0.0.1:1 within 1 s") as caught:
            await JetJobs("t", settings=settings).open()
    assert "jetjobs dev" in (caught.value.hint or "")


@pytest.mark.parametrize("given", [{}, {"user": "a", "password": "wrong"}, {"token": "wrong"}])
async def test_wrong_credentials_are_said_at_once_and_never_shown(tmp_path: Path, given: dict[str, Any]) -> None:
    config = tmp_path / "auth.conf"
    config.write_text('authorization { users: [{user: a, password: "right-secret"}] }')
    with EmbeddedServer(extra=("-c", str(config))) as guarded:
        settings = build_settings({"nats": {"url": guarded.url, **given}})
        async with asyncio.timeout(4):
            with pytest.raises(AccessDenied, match="refused the credentials") as caught:
                await JetJobs("t", settings=settings).open()
        assert "wrong" not in str(caught.value)
        good = build_settings({"nats": {"url": guarded.url, "user": "a", "password": "right-secret"}})
        async with JetJobs("t", settings=good) as app:
            await with_task(app).provision()


async def test_a_denied_subject_is_named_at_once(tmp_path: Path) -> None:
    config = tmp_path / "acl.conf"
    config.write_text(
        """authorization { users: [
          {user: boss, password: b}
          {user: poor, password: p, permissions: {publish: ["jobs.work.other.>"], subscribe: ["_INBOX.>"]}}
        ] }"""
    )
    with EmbeddedServer(extra=("-c", str(config))) as guarded:

        def app_for(user: str) -> JetJobs:
            return JetJobs(
                "t", settings=build_settings({"nats": {"url": guarded.url, "user": user, "password": user[0]}})
            )

        async with with_task(app_for("boss")) as boss:
            await boss.provision()
        poor = with_task(app_for("poor"))
        async with asyncio.timeout(4), poor:
            with pytest.raises(AccessDenied, match=r"jobs\.work\.default\.normal\.work"):
                await poor.tasks["work"].enqueue()
            with pytest.raises(AccessDenied, match=r"(?i)\$JS\.API\.INFO"):
                await poor.provision()
            with pytest.raises(AccessDenied, match=r"(?i)direct\.get\.KV_jobs-workers"):
                await poor.workers.list()
