"""Lines of an exported file: valid letters are parsed, every invalid part is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from jetjobs.admin.dead_letter_files import parse

MAX_PAYLOAD = 1_048_576
GOOD: dict[str, Any] = {
    "subject": "jobs.dead.default.work.mine",
    "headers": {"Jetjobs-Run": "abc", "Jetjobs-Cause": "{}", "X-Tenant": "acme"},
    "body": "e30=",
    "objects": {},
}


def test_a_letter_is_parsed_with_all_its_parts() -> None:
    found = parse(GOOD, "jobs", MAX_PAYLOAD)
    assert found.subject == ("jobs", "default", "work", "mine")
    assert (found.body, found.headers["X-Tenant"], found.objects) == (b"{}", "acme", {})
    large = {**GOOD, "headers": {"Jetjobs-Payload": "a.b"}, "objects": {"a.b": "e30="}}
    assert parse(large, "jobs", MAX_PAYLOAD).objects == {"a.b": b"{}"}
    gone = {**large, "objects": {"a.b": None}}
    assert parse(gone, "jobs", MAX_PAYLOAD).objects == {}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "text",
        {},
        {"subject": None},
        {"subject": 5},
        {"subject": "jobs.work.default.normal.work"},
        {"subject": "other.dead.default.work.mine"},
        {"subject": "jobs.dead.default.work.mine.more"},
        {"subject": "jobs.dead.default.work.*"},
        {"subject": "jobs.dead.de fault.work.mine"},
        {"subject": "jobs.dead.default..mine"},
        {"subject": "jobs.dead.default.work.mine\r\nPUB x 0"},
        {"headers": None},
        {"headers": []},
        {"headers": {"X-A": 5}},
        {"headers": {"X-A": None}},
        {"headers": {"": "x"}},
        {"headers": {"X A": "x"}},
        {"headers": {"X-A": "x\r\nNats-Rollup: all"}},
        {"headers": {"X-A": "\ud800"}},
        {"headers": {"Nats-Rollup": "all"}},
        {"headers": {"nats-rollup": "sub"}},
        {"headers": {"Nats-TTL": "1s"}},
        {"headers": {"Nats-Msg-Id": "x"}},
        {"headers": {"Nats-Expected-Last-Subject-Sequence": "9"}},
        {"headers": {"Jetjobs-Run": "a.b"}},
        {"headers": {"Jetjobs-Run\r\nX": "a"}},
        {"headers": {"X-A": "x" * 70_000}},
        {"body": None},
        {"body": 5},
        {"body": "%"},
        {"body": "e30"},
        {"body": "\u00e9"},
        {"body": base64.b64encode(b"x" * 1_048_000).decode()},
        {"objects": []},
        {"objects": {"foreign": "e30="}},
        {"objects": {}, "headers": {"Jetjobs-Payload": "large"}},
        {"objects": {"large": "%"}, "headers": {"Jetjobs-Payload": "large"}},
    ],
    ids=lambda wrong: repr(wrong)[:60],
)
def test_an_invalid_letter_is_refused_with_a_reason(wrong: Any) -> None:
    value = {**GOOD, **wrong} if isinstance(wrong, dict) and wrong else wrong
    with pytest.raises(ValueError, match="dead letter"):
        parse(value, "jobs", MAX_PAYLOAD)
