"""Tokens: their text, what is stored of them, and records that grant nothing because they cannot be read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.errors import ConfigError, DefinitionError
from jetjobs.model.views.access import check_scopes
from jetjobs.model.views.token import TokenText, check_queues, is_secret_of, read_token, write_token

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
END = datetime(2027, 1, 1, tzinfo=UTC)
VALID: dict[str, Any] = {"sha256": "0" * 64, "scopes": ["read"], "queues": None, "by": "ada", "expires_at": None}


@given(NAMES)
def test_a_text_is_parsed_into_its_name_and_secret(name: str) -> None:
    text = TokenText.new(name)
    assert TokenText.parse(str(text)) == text
    assert len(text.secret) == 52


@given(st.text(max_size=200))
def test_any_other_text_is_no_token(text: str) -> None:
    assert TokenText.parse(text) is None


@pytest.mark.parametrize(
    "change", [lambda t: t + "\n", lambda t: " " + t, lambda t: t[:-1], lambda t: t.upper(), lambda t: t[3:]]
)
def test_a_text_that_is_almost_a_token_is_none(change: Any) -> None:
    assert TokenText.parse(change(str(TokenText.new("billing")))) is None


def test_secrets_differ_and_are_not_stored() -> None:
    one, two = TokenText.new("a"), TokenText.new("a")
    assert one.secret != two.secret
    assert one.secret.encode() not in write_token(one, ["read"], None, "ada", None)


def test_what_is_written_is_read() -> None:
    text = TokenText.new("billing")
    body = write_token(text, ["read", "enqueue:send"], ["mail"], "ada", END)
    stored = read_token("billing", 1_000_000.0, body)
    assert stored is not None
    assert stored.info.scopes == ("enqueue:send", "read")
    assert (stored.info.queues, stored.info.by, stored.info.expires_at) == (("mail",), "ada", END)
    access = stored.access()
    assert (access.name, access.scopes, access.queues) == (
        "billing",
        frozenset({"enqueue:send", "read"}),
        frozenset({"mail"}),
    )
    assert is_secret_of(text, stored)
    assert not is_secret_of(TokenText.new("billing"), stored)
    assert not is_secret_of(text, None)


def test_the_hash_of_a_missing_token_has_no_secret() -> None:
    assert not is_secret_of(TokenText("x", ""), None)


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": None},
        {"sha256": "0" * 63},
        {"sha256": "G" * 64},
        {"scopes": []},
        {"scopes": "admin"},
        {"scopes": {"admin": True}},
        {"scopes": ["root"]},
        {"scopes": [["admin"]]},
        {"scopes": ["enqueue:a.b"]},
        {"queues": []},
        {"queues": "mail"},
        {"queues": [7]},
        {"queues": ["a.b"]},
        {"expires_at": "never"},
        {"expires_at": False},
        {"expires_at": 0},
        {"expires_at": -1},
        {"expires_at": 1e300},
    ],
    ids=str,
)
def test_a_record_with_an_invalid_part_grants_nothing(change: dict[str, Any]) -> None:
    assert read_token("billing", 1.0, json.dumps(VALID).encode()) is not None
    assert read_token("billing", 1.0, json.dumps({**VALID, **change}).encode()) is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, b"null"], ids=lambda b: repr(b[:4]))
def test_a_record_of_another_form_grants_nothing(body: bytes) -> None:
    assert read_token("billing", 1.0, body) is None


@pytest.mark.parametrize(
    "scopes", [[], ["Read"], ["enqueue"], ["enqueue:"], ["enqueue:a b"], ["*"], ["x" * 10_000]]
)
def test_unknown_scopes_are_refused(scopes: list[str]) -> None:
    with pytest.raises((ConfigError, DefinitionError)):
        check_scopes(scopes)


def test_queues_are_checked() -> None:
    assert check_queues(None) is None
    assert check_queues(["b", "a", "b"]) == ("a", "b")
    with pytest.raises(ConfigError, match="at least one queue"):
        check_queues([])
    with pytest.raises(DefinitionError, match="invalid queue name"):
        check_queues(["a.b"])
