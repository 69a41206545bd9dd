"""Tokens on the server: only a hash is stored, a revoked or expired one is refused, guessing is cheap for NATS."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.admin import TokenInfo
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import (
    BrokerUnavailable,
    ConfigError,
    DefinitionError,
    JetJobsError,
    TokenConflict,
    TokenNotFound,
    TopologyMissing,
)
from jetjobs.jetstream import tokens as module
from jetjobs.model.views.token import TokenText
from tests.conftest import MakeApp
from tests.integration.test_audit import entries
from tests.support.probe import eventually, wait_until
from tests.support.server import Truth

STREAM, SUBJECT = "KV_jobs-tokens", "$KV.jobs-tokens."


@pytest.fixture
async def shop(opened: JetJobs) -> JetJobs:
    await opened.provision(["default"])
    return opened


@pytest.fixture
async def other(make_app: MakeApp) -> AsyncIterator[JetJobs]:
    """Another process, with a connection of its own."""
    async with make_app("other") as app:
        yield app


async def stored(truth: Truth, name: str) -> dict[str, Any]:
    message = await truth.js.get_last_msg(STREAM, SUBJECT + name)
    found: dict[str, Any] = json.loads(message.data or b"null")
    return found


async def test_a_token_is_stored_as_a_hash_and_found_by_its_text(shop: JetJobs, truth: Truth) -> None:
    text = await shop.tokens.new("billing", ["enqueue:send_invoice", "read"], ["mail"], by="ada@host")
    prefix, name, secret = text.split("_")
    record = await stored(truth, "billing")
    assert (prefix, name) == ("jj", "billing")
    assert record == {
        "sha256": hashlib.sha256(secret.encode()).hexdigest(),
        "scopes": ["enqueue:send_invoice", "read"],
        "queues": ["mail"],
        "by": "ada@host",
        "expires_at": None,
    }
    access = await shop.tokens.find(text)
    assert access is not None
    assert (access.name, access.queues) == ("billing", frozenset({"mail"}))
    assert access.may("read")
    assert access.may_enqueue("send_invoice")
    assert not access.may_enqueue("other")
    assert not access.may("operate")


async def test_a_wrong_text_is_refused(shop: JetJobs) -> None:
    text = await shop.tokens.new("a_b", ["admin"])
    assert await shop.tokens.find(text) is not None
    for wrong in (
        "", "Bearer", text[:-1], text + "a", text.replace("a_b", "a_c"), str(TokenText.new("a_b")),
        str(TokenText.new("none")), "x" * 100_000, "jj_\x00_", text.replace("_", "-"),
    ):  # fmt: skip
        assert await shop.tokens.find(wrong) is None, wrong[:100]


async def test_a_list_has_every_token_by_name(shop: JetJobs) -> None:
    before = datetime.now(UTC)
    await shop.tokens.new("web", ["read"], by="ada")
    await shop.tokens.new("billing", ["operate"], ["mail", "default"], "90d")
    billing, web = await shop.tokens.list()
    assert (billing.name, billing.scopes, billing.queues) == ("billing", ("operate",), ("default", "mail"))
    assert web == TokenInfo("web", ("read",), None, web.created_at, "ada", None)
    assert abs(web.created_at - before) < timedelta(minutes=1)
    assert billing.expires_at is not None
    assert abs(billing.expires_at - before - timedelta(days=90)) < timedelta(minutes=1)
    assert await shop.tokens.get("web") == web


# Names


async def test_a_name_is_taken_until_it_is_revoked(shop: JetJobs, other: JetJobs) -> None:
    first = await shop.tokens.new("billing", ["read"])
    with pytest.raises(TokenConflict, match="token 'billing' exists") as caught:
        await other.tokens.new("billing", ["admin"])
    assert "revoke" in str(caught.value.hint)
    await other.tokens.revoke("billing")
    second = await other.tokens.new("billing", ["admin"])
    assert await other.tokens.find(first) is None
    access = await other.tokens.find(second)
    assert access is not None
    assert access.may("admin")


async def test_of_many_processes_one_gets_the_name(shop: JetJobs, other: JetJobs, truth: Truth) -> None:
    made = await asyncio.gather(
        *(app.tokens.new("billing", ["read"]) for app in (shop, other) * 8), return_exceptions=True
    )
    texts = [one for one in made if isinstance(one, str)]
    assert len(texts) == 1
    assert {type(one) for one in made} == {str, TokenConflict}
    assert await other.tokens.find(texts[0]) is not None


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "é", "x" * 65, "x" * 10_000, "a/b", "a\n"])
async def test_an_invalid_name_is_refused_before_anything_is_stored(
    name: str, shop: JetJobs, truth: Truth
) -> None:
    with pytest.raises(DefinitionError, match="invalid token name") as caught:
        await shop.tokens.new(name, ["read"])
    assert len(str(caught.value)) < 500
    for call in (shop.tokens.revoke, shop.tokens.get):
        with pytest.raises(DefinitionError, match="invalid token name"):
            await call(name)
    assert await truth.subjects(STREAM) == {}


async def test_the_name_of_callers_without_a_token_is_reserved(shop: JetJobs, truth: Truth) -> None:
    with pytest.raises(ConfigError, match="the name 'local' is reserved"):
        await shop.tokens.new("local", ["read"])
    assert await truth.subjects(STREAM) == {}


@pytest.mark.parametrize("scopes", [[], ["root"], ["enqueue:"], ["enqueue:a.b"], ["read", "x" * 10_000]])
async def test_unknown_scopes_are_refused_before_anything_is_stored(
    scopes: list[str], shop: JetJobs, truth: Truth
) -> None:
    with pytest.raises((ConfigError, DefinitionError)):
        await shop.tokens.new("billing", scopes)
    assert await truth.subjects(STREAM) == {}


# Revoked and expired


async def test_a_revoked_token_is_refused_elsewhere_within_two_seconds(
    shop: JetJobs, other: JetJobs, truth: Truth
) -> None:
    text = await shop.tokens.new("billing", ["read"])
    assert await other.tokens.find(text) is not None
    await shop.tokens.revoke("billing")
    revoked = time.monotonic()
    assert await shop.tokens.find(text) is None  # this process knows at once

    async def refused() -> bool:
        return await other.tokens.find(text) is None

    assert await eventually(refused)
    assert time.monotonic() - revoked < module.KNOWN_S + 1
    assert await shop.tokens.list() == []
    message = await truth.js.get_last_msg(STREAM, SUBJECT + "billing")
    assert (message.data or b"", (message.headers or {})["KV-Operation"]) == (b"", "DEL")
    with pytest.raises(TokenNotFound):
        await shop.tokens.revoke("billing")
    with pytest.raises(TokenNotFound):
        await shop.tokens.get("billing")


async def test_an_expired_token_is_refused_and_still_listed(
    shop: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await shop.tokens.new("short", ["read"], None, "1h")
    record = await stored(truth, "short")
    assert await shop.tokens.find(text) is not None
    # An hour ahead of this machine: the server's clock decides.
    monkeypatch.setattr(shop.jetstream.server_clock, "_offset", time.time() - time.monotonic() + 3601)
    assert await shop.tokens.find(text) is None
    assert [info.name for info in await shop.tokens.list()] == ["short"]
    assert abs(record["expires_at"] - time.time() - 3600) < 60


async def test_a_wrong_clock_of_this_machine_changes_nothing(
    shop: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    for skew in (-86_400, 86_400):
        monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
        name = f"skew{'m' if skew < 0 else 'p'}"
        text = await shop.tokens.new(name, ["read"], None, "1h")
        assert await shop.tokens.find(text) is not None
        assert abs((await stored(truth, name))["expires_at"] - real() - 3600) < 60
        assert abs((await shop.tokens.get(name)).created_at.timestamp() - real()) < 60


@pytest.mark.parametrize(
    "expires",
    [
        0, "0s", -1, "soon", timedelta(days=-1), datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1),
        timedelta.max, "99999999d", datetime.max.replace(tzinfo=UTC),
    ],
    ids=str,
)  # fmt: skip
async def test_an_expiry_that_cannot_be_is_refused(expires: Any, shop: JetJobs, truth: Truth) -> None:
    with pytest.raises(JetJobsError, match="invalid expires"):
        await shop.tokens.new("billing", ["read"], None, expires)
    assert await truth.subjects(STREAM) == {}


# Guessing


async def test_guessing_reads_the_tokens_once_in_two_seconds(shop: JetJobs, truth: Truth) -> None:
    good = await shop.tokens.new("billing", ["read"])
    asked: list[str] = []
    heard = await truth.nc.subscribe(f"$JS.API.DIRECT.GET.{STREAM}", cb=_noting(asked))
    await truth.nc.flush()
    started = time.monotonic()
    guesses = [str(TokenText.new("billing")) for _ in range(500)]
    guesses += [str(TokenText.new(f"name{number}")) for number in range(500)]
    found = await asyncio.gather(*(shop.tokens.find(text) for text in [*guesses, good]))
    assert found[:-1] == [None] * 1000
    assert found[-1] is not None
    rounds = 1 + int((time.monotonic() - started) / module.KNOWN_S)
    await truth.nc.flush()
    await heard.unsubscribe()
    assert 1 <= len(asked) <= 2 * rounds  # the last page of a scan is empty


def _noting(asked: list[str]) -> Any:
    async def note(message: Any) -> None:
        asked.append(message.subject)

    return note


async def test_while_the_server_is_away_known_tokens_count_for_two_seconds_and_then_fail(
    shop: JetJobs, server: EmbeddedServer
) -> None:
    text = await shop.tokens.new("billing", ["read"])
    assert await shop.tokens.find(text) is not None
    server.stop()
    await wait_until(lambda: not shop.jetstream.connection.connected)
    shop.jetstream.tokens._known_until = 0.0
    with pytest.raises(BrokerUnavailable):
        await shop.tokens.find(text)
    server.start()
    await wait_until(lambda: shop.jetstream.connection.connected)
    assert await shop.tokens.find(text) is not None


# Records of others


async def test_a_record_that_cannot_be_read_is_refused_reported_once_and_can_be_revoked(
    shop: JetJobs, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    good = await shop.tokens.new("good", ["read"])
    bad = TokenText.new("bad")
    record = {"sha256": bad.hash, "scopes": ["everything"], "queues": None, "by": "", "expires_at": None}
    await truth.js.publish(SUBJECT + "bad", json.dumps(record).encode())
    await truth.js.publish(SUBJECT + "worse", b"\xff not JSON")
    await truth.js.publish(SUBJECT + "two.tokens", b"{}")
    with caplog.at_level(logging.WARNING, "jetjobs"):
        for _ in range(3):
            shop.jetstream.tokens._known_until = 0.0
            assert await shop.tokens.find(str(bad)) is None
            assert await shop.tokens.find(good) is not None
            assert [info.name for info in await shop.tokens.list()] == ["good"]
    reported = [vars(one)["error"] for one in caplog.records if vars(one).get("event") == "token.unreadable"]
    assert sorted(reported) == ["key 'bad' of bucket jobs-tokens", "key 'worse' of bucket jobs-tokens"]
    with pytest.raises(TokenConflict):
        await shop.tokens.new("bad", ["read"])
    await shop.tokens.revoke("bad")
    assert await shop.tokens.find(await shop.tokens.new("bad", ["read"])) is not None


async def test_without_the_bucket_the_error_says_how_to_create_it(shop: JetJobs, truth: Truth) -> None:
    await truth.js.delete_stream(STREAM)
    for call in (
        shop.tokens.list(), shop.tokens.new("a", ["read"]), shop.tokens.revoke("a"),
        shop.tokens.find(str(TokenText.new("a"))),
    ):  # fmt: skip
        with pytest.raises(TopologyMissing) as caught:
            await call
        assert caught.value.hint == "jetjobs setup apply"


async def test_changes_of_tokens_are_in_the_audit_without_the_secret(shop: JetJobs, truth: Truth) -> None:
    who: dict[str, Any] = {"by": "ada@host", "reason": "a new service"}
    text = await shop.tokens.new("billing", ["read", "enqueue:send"], ["mail"], **who)
    with pytest.raises(TokenConflict):
        await shop.tokens.new("billing", ["read"], **who)
    await shop.tokens.revoke("billing", **who)
    found = await entries(truth)
    assert [(one["action"], one["target"], one["outcome"]) for one in found] == [
        ("token.new", "billing", "done"),
        ("token.new", "billing", "failed"),
        ("token.revoke", "billing", "done"),
    ]
    assert found[0]["detail"] == "enqueue:send read in mail"
    assert all({key: one[key] for key in who} == who for one in found)
    assert text.rpartition("_")[2] not in json.dumps(found)
