"""Entries of the audit: what is written, and what is made of a message that anybody may have written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.admin import AuditEntry, AuditFilter, DeadLetterFilter, JobQuery
from jetjobs.errors import ConfigError, DefinitionError
from jetjobs.jetstream.audit_log import _read_cursor
from jetjobs.model.job import JobState
from jetjobs.model.views.audit import Outcome, acting_via, check_action, filter_text, read_entry, write_entry

AT = datetime(2026, 11, 18, tzinfo=UTC)


def read(body: bytes) -> AuditEntry:
    return read_entry(7, AT, "queue.pause", body)


def test_what_is_written_is_read() -> None:
    outcome = Outcome("mail", "done", "until noon", {"queued": 3})
    entry = read(write_entry("ada@host", "too many", outcome))
    counts = {"queued": 3}
    assert entry == AuditEntry(
        7, AT, "queue.pause", "mail", "ada@host", "python", "too many", "done", "until noon", counts
    )


def test_where_an_action_came_from_is_that_of_the_innermost_block() -> None:
    def written() -> str:
        return read(write_entry("", "", Outcome("x"))).via

    with acting_via("cli"):
        with acting_via("http"):
            assert written() == "http"
        assert written() == "cli"
        assert read(write_entry("", "", Outcome("x"), "http")).via == "http"
    assert written() == "python"


def test_long_texts_are_cut() -> None:
    long = "é" * 10_000
    body = write_entry(long, long, Outcome(long, "failed", long))
    assert len(body) < 16_384
    entry = read(body)
    assert [len(entry.by), len(entry.reason), len(entry.target), len(entry.detail)] == [200, 500, 500, 1000]


@pytest.mark.parametrize(
    "body", [b"", b"\xff\x00", b"[1]", b"7", b'"text"', b"[" * 100_000, b"{}"], ids=lambda body: repr(body[:8])
)
def test_a_message_of_another_form_is_an_unreadable_entry(body: bytes) -> None:
    entry = read(body)
    assert (entry.outcome, entry.by, entry.target, entry.counts) == ("unreadable", "", "", {})


FIELDS = st.sampled_from(["target", "by", "via", "reason", "outcome", "detail", "counts"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)


@given(st.dictionaries(FIELDS, VALUES))
def test_any_json_object_is_read_as_texts_and_numbers(record: dict[str, Any]) -> None:
    entry = read(json.dumps(record).encode())
    assert all(isinstance(text, str) for text in (entry.target, entry.by, entry.via, entry.reason, entry.outcome))
    assert all(isinstance(number, int) for number in entry.counts.values())
    json.dumps(entry.as_dict())


@pytest.mark.parametrize(
    "action", ["", "pause", "queue.pause.now", "Queue.pause", "queue.*", "queue.pa use", "a.b\n"]
)
def test_an_action_has_two_words(action: str) -> None:
    with pytest.raises(DefinitionError, match="invalid action"):
        check_action(action)


@pytest.mark.parametrize("pattern", ["queue", "queue.", ">", "queue.>", "queue.pause*", "a.b.c", "", "x" * 10_000])
def test_a_pattern_of_actions_has_two_words_or_stars(pattern: str) -> None:
    with pytest.raises(ConfigError, match="invalid action"):
        AuditFilter(action=pattern)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="no time zone"):
        AuditFilter(since=datetime(2026, 1, 1))


@pytest.mark.parametrize("cursor", ["", "0", "-1", "1.5", "²", "9" * 30, "x", "1" * 10_000])
def test_an_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ConfigError, match="invalid cursor"):
        _read_cursor(cursor)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (JobQuery(), "all"),
        (JobQuery(JobState.QUEUED, "mail"), "state=queued queue=mail"),
        (JobQuery(where=(("args.user", "7"), ("args.kind", "x"))), "where=args.user:7,args.kind:x"),
        (DeadLetterFilter(task="send", since=AT), "task=send since=2026-11-18T00:00:00+00:00"),
    ],
)
def test_a_filter_is_written_as_its_fields(wanted: Any, text: str) -> None:
    assert filter_text(wanted) == text
