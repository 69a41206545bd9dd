"""Endpoints of webhooks, the addresses they may have, and the messages and signatures that receivers get."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from jetjobs import JetJobs, Router
from jetjobs.config import load_settings
from jetjobs.errors import ConfigError, DefinitionError
from jetjobs.model.job import Job
from jetjobs.model.settings import WebhookSettings, build_settings
from jetjobs.model.webhooks.endpoint import check_callback, is_public, keys_for, matches_host, parse_endpoint
from jetjobs.model.webhooks.message import encoded, event_of, read_key, signature
from jetjobs.model.wire.ids import is_id, webhook_id
from jetjobs.worker.isolation.messages import settings_data
from tests.support.receiver import new_key

JOB = Job("j1", "send", "mail", "normal", b"{}", run="r1", attempt=2)


# Callbacks


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "http://example.com:8080/a/b?c=d&e=%20f",
        "HTTPS://Example.COM./Hook",
        "http://127.0.0.1/",
        "https://[2606:4700::1111]:8443/x",
        "https://under_score.example/" + "x" * 1900,
    ],
)
def test_a_valid_callback_is_returned_as_it_is(url: str) -> None:
    assert check_callback(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com@127.0.0.1/",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: other",
        "https://example.com/\x00",
        "https://example.com/ü",
        "https://exämple.com/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:abc/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://%31%32%37.0.0.1/",
        "https://a..example/",
        f"https://{'a' * 64}.example/",
        "https://example.com/hooks/../admin",
        "https://example.com/hooks/%2e%2e/admin",
        "https://example.com/" + "x" * 2000,
        None,
        7,
        b"https://example.com",
    ],
)
def test_an_invalid_callback_is_refused_and_not_repeated(url: Any) -> None:
    with pytest.raises(DefinitionError, match="callback") as refused:
        check_callback(url)
    assert "secret" not in str(refused.value)


def test_a_callback_is_checked_when_it_is_given() -> None:
    app = JetJobs("test")

    @app.task
    async def work() -> None: ...

    with pytest.raises(DefinitionError, match="invalid callback"):
        work.options(callback="ftp://example.com")


def test_the_endpoint_has_what_a_request_needs() -> None:
    found = parse_endpoint("HTTPS://Example.COM.:8443?a=b")
    assert (found.host, found.port, found.target, found.authority) == (
        "example.com",
        8443,
        "/?a=b",
        "example.com:8443",
    )
    assert parse_endpoint("http://[::1]/x").authority == "[::1]"


# Addresses


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::", "::ffff:1.1.1.1"]
)
def test_a_public_address_may_be_called(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1.1.1.1",
        "2002:7f00:1::",
        "2002:a00:1::",
        "2001:0:7f00:1::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "example.com",
        "",
    ],
)
def test_no_other_address_may_be_called(address: str) -> None:
    assert not is_public(address)


# Settings


@pytest.mark.parametrize(
    ("entry", "url", "matches"),
    [
        ("example.com", "https://EXAMPLE.com/x", True),
        ("example.com", "https://sub.example.com/", False),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://badexample.com/", False),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com:8443", "https://example.com/", False),
        ("10.0.0.1", "http://10.0.0.1/", True),
        ("10.0.0.1", "http://0xa.0.0.1/", False),
        ("[::1]:8080", "http://[0:0::1]:8080/", True),
        ("[::1]", "http://localhost/", False),
    ],
)
def test_an_allowed_host_is_compared_by_name_or_address(entry: str, url: str, matches: bool) -> None:
    settings = WebhookSettings.model_validate({"allow_hosts": [entry]})
    assert matches_host(settings.allow_hosts[0], parse_endpoint(url)) is matches


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://api.example.com/hooks/billing/7", "billing"),
        ("https://api.example.com/hooks/billing", "billing"),
        ("https://api.example.com/hooks/billing2", "hooks"),
        ("https://api.example.com/hooks", "hooks"),
        ("https://api.example.com/", "host"),
        ("https://api.example.com:8443/hooks", "host"),
        ("http://api.example.com/hooks", "host"),
        ("https://other.example.com/hooks", "default"),
    ],
)
def test_the_most_specific_secret_is_used(url: str, found: str) -> None:
    secrets = {
        "api.example.com": "host",
        "https://api.example.com/hooks": "hooks",
        "https://API.example.com/hooks/billing/": "billing",
    }
    assert keys_for(parse_endpoint(url), secrets, "default") == found


def test_keys_may_be_given_as_text_as_a_list_and_as_json() -> None:
    one, two = new_key("a"), new_key("b")
    for given in (
        {"secrets": {"a.example": f"{one} {two}"}},
        {"secrets": {"a.example": [one, two]}},
        {"secrets": json.dumps({"a.example": [one, two]})},
    ):
        settings = WebhookSettings.model_validate(given)
        assert [key.get_secret_value() for key in settings.secrets["a.example"]] == [one, two]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("default_secret", "mine"),
        ("default_secret", "whsec_"),
        ("default_secret", "whsec_dG9vIHNob3J0"),
        ("default_secret", "whsec_" + "é" * 40),
        ("default_secret", " ".join(map(new_key, "abc"))),
        ("secrets", "no json"),
        ("secrets", ["https://a.example"]),
        ("secrets", {"https://a.example/x?y": new_key()}),
        ("secrets", {"not a host": new_key()}),
        ("secrets", {"a.example": ""}),
        ("secrets", {"a.example": "whsec_forged"}),
        ("allow_hosts", "http://a.example"),
        ("allow_hosts", ["*.10.0.0.1/8"]),
        ("allow_hosts", ["*"]),
        ("timeout", 0),
        ("tls_ca", ""),
    ],
)
def test_an_invalid_setting_is_named_and_keys_are_not_shown(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"webhooks.{key}") as refused:
        build_settings({"webhooks": {key: value}})
    assert "forged" not in str(refused.value)


# Messages


def test_the_event_of_a_success_has_the_result_with_secrets_masked() -> None:
    record = {
        "state": "succeeded",
        "attempt": 2,
        "ended_at": 1794798669.5,
        "result": {"user": "ada", "token": "x"},
        "secret": "result.token",
    }
    event = event_of(JOB, record)
    moment = datetime.fromtimestamp(1794798669.5, UTC).isoformat()
    assert event == {
        "type": "job.succeeded",
        "timestamp": moment,
        "data": {
            "id": "j1",
            "task": "send",
            "queue": "mail",
            "state": "succeeded",
            "attempt": 2,
            "ended_at": moment,
            "result": {"user": "ada", "token": "***"},
        },
    }


def test_a_large_or_missing_result_is_left_out_with_a_note() -> None:
    large = event_of(JOB, {"state": "succeeded", "ended_at": 1.0, "result": "x" * 65_536})
    assert large["data"]["result_omitted"] == "too large"
    assert "result" not in large["data"]
    assert event_of(JOB, {"state": "succeeded", "result_object": "o"})["data"]["result_omitted"] == "too large"
    assert event_of(JOB, {"state": "succeeded"})["data"]["result_omitted"] == "not stored"
    fits = event_of(JOB, {"state": "succeeded", "ended_at": 1.0, "result": "x" * 65_534})
    assert len(fits["data"]["result"]) == 65_534


def test_the_event_of_a_dead_job_has_its_error_and_no_traceback() -> None:
    cause = {
        "state": "dead",
        "reason": "exhausted",
        "type": "ValueError",
        "text": "no",
        "traceback": "…",
        "at": 1.0,
    }
    event = event_of(JOB, cause)
    assert event["type"] == "job.dead"
    assert event["data"]["error"] == {"reason": "exhausted", "type": "ValueError", "text": "no"}
    assert "traceback" not in json.dumps(event)


def test_the_event_of_a_cancelled_job_says_who_and_why() -> None:
    event = event_of(JOB, {"state": "cancelled", "by": "ada", "reason": "late", "ended_at": 1.0})
    assert (event["type"], event["data"]["cancel"]) == ("job.cancelled", {"by": "ada", "reason": "late"})


def test_a_record_without_a_known_state_makes_no_event() -> None:
    assert event_of(JOB, {"state": "running"}) == event_of(JOB, {}) == {}


def test_text_that_utf8_cannot_encode_does_not_stop_an_event() -> None:
    assert encoded({"text": "a\udc80b"}) == b'{"text":"a?b"}'


def test_a_receiver_verifies_the_signature_of_either_key() -> None:
    now, body = int(datetime.now(UTC).timestamp()), encoded({"type": "job.dead", "ü": 1})
    old, new = new_key("o"), new_key("n")
    signed = signature([read_key(new), read_key(old)], "w1", now, body)
    headers = {"webhook-id": "w1", "webhook-timestamp": str(now), "webhook-signature": signed}
    for key in (old, new, new.rstrip("=")):
        Webhook(key).verify(body, headers)
    assert len(signed.split()) == 2


def test_the_id_of_a_webhook_depends_on_the_run_of_the_job() -> None:
    found = webhook_id("default", "work", "job-1", "r1")
    assert is_id(found)
    assert found == "w245ftu44y7sfxiyotljg246arm"  # part of the wire contract
    assert found != webhook_id("default", "work", "job-1", "r2")
    assert found != webhook_id("mail", "send", "j1", "r2")


# Reserved names


def test_an_app_cannot_declare_the_queue_or_the_task_of_webhooks() -> None:
    app = JetJobs("test")

    @app.task
    async def work() -> None: ...

    async def jetjobs_webhook() -> None: ...

    with pytest.raises(DefinitionError, match="queue 'webhooks' is reserved"):
        Router(queue="webhooks")
    with pytest.raises(DefinitionError, match="queue 'webhooks' is reserved"):
        app.task(queue="webhooks")(jetjobs_webhook)
    with pytest.raises(DefinitionError, match="task 'jetjobs_webhook' is reserved"):
        app.task(jetjobs_webhook)
    with pytest.raises(DefinitionError, match="task 'jetjobs_webhook' is reserved"):
        app.task(name="other", aliases=["jetjobs_webhook"])(jetjobs_webhook)
    with pytest.raises(DefinitionError, match="queue 'webhooks' is reserved"):
        work.options(queue="webhooks")
    with pytest.raises(DefinitionError, match="queue 'webhooks' is reserved"):
        work.every("5m", queue="webhooks")
    assert list(app.tasks) == ["work"]


async def test_a_webhook_cannot_be_enqueued_by_name() -> None:
    app = JetJobs("test")
    with pytest.raises(DefinitionError, match="reserved"):
        await app.enqueue("jetjobs_webhook", {"url": "http://127.0.0.1", "message": {}})
    with pytest.raises(DefinitionError, match="cannot be enqueued"):
        await app.find("jetjobs_webhook").enqueue(url="http://127.0.0.1", message={})


def test_settings_survive_every_way_to_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = build_settings(
        {"webhooks": {"secrets": {"a.example": [new_key("a"), new_key("b")]}, "allow_hosts": ["10.0.0.1"]}}
    )
    data = settings_data(settings)
    assert data is not None
    assert build_settings(json.loads(json.dumps(data))).webhooks == settings.webhooks
    monkeypatch.chdir(tmp_path)
    assert load_settings(given=settings).settings.webhooks == settings.webhooks
    monkeypatch.setenv("JETJOBS_WEBHOOKS__SECRETS", json.dumps({"a.example": f"{new_key('a')} {new_key('b')}"}))
    monkeypatch.setenv("JETJOBS_WEBHOOKS__ALLOW_HOSTS", "10.0.0.1")
    assert load_settings().settings.webhooks == settings.webhooks
