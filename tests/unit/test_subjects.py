"""Names on the wire: which are valid, and their form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.errors import DefinitionError
from jetjobs.model.wire.headers import OWN_PREFIXES, check_header
from jetjobs.model.wire.ids import NO_KEY, JobId, key_token
from jetjobs.model.wire.subjects import (
    PRIORITIES,
    Names,
    check_priority,
    kv_stream,
    kv_subject,
    matches,
    object_stream,
)
from jetjobs.model.wire.validation import check_token

TOKENS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
BAD_TOKENS = [
    "", "a.b", "a b", "*", ">", "a\n", "a\r\n", "\0", "é", "a/b", "x" * 65, "$JS", "a\u0660", 5, None, b"mail",
]  # fmt: skip


@given(TOKENS)
def test_a_usable_token_comes_back_as_it_is(token: str) -> None:
    assert check_token("queue", token) == token


@pytest.mark.parametrize("token", BAD_TOKENS)
def test_a_token_that_could_not_be_one_subject_token_is_refused(token: Any) -> None:
    with pytest.raises(DefinitionError, match=r"invalid queue name") as caught:
        check_token("queue", token)
    assert caught.value.hint is not None


@given(st.text())
def test_no_accepted_token_can_split_or_widen_a_subject(token: str) -> None:
    try:
        check_token("queue", token)
    except DefinitionError:
        return
    assert not set(token) & set(". *>\t\r\n\0")
    assert token.isascii()


@pytest.mark.parametrize("priority", ["urgent", "later", "retry", "", "HIGH", None, 1, ["high"]])
def test_an_unknown_priority_is_refused(priority: object) -> None:
    with pytest.raises(DefinitionError) as caught:
        check_priority(priority, "task 'x': ")
    assert str(caught.value) == f"task 'x': invalid priority {priority!r}: use high, normal, low"


@pytest.mark.parametrize("priority", PRIORITIES)
def test_priorities_are_lanes(priority: str) -> None:
    assert check_priority(priority) == priority


@pytest.mark.parametrize("name", ["Nats-Msg-Id", "nats-ttl", "NATS-X", "Jetjobs-Attempt", "JETJOBS-x"])
def test_headers_of_the_server_and_of_ours_are_reserved_in_any_case(name: str) -> None:
    with pytest.raises(DefinitionError, match="reserved"):
        check_header(name, "x")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nB", "é", "x" * 129, "a.b"])
def test_header_names_that_the_wire_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="header name"):
        check_header(name, "x")


@pytest.mark.parametrize(
    "value", ["a\r\nb", "a\nb", "a\rb", "a\0b", " a", "a ", "\ta", "a\u3000", "\ud800", 5, None, b"x"],
)  # fmt: skip
def test_header_values_that_would_forge_a_line_or_change_are_refused(value: Any) -> None:
    with pytest.raises(DefinitionError):
        check_header("Trace", value)


@pytest.mark.parametrize("value", ["", "x", "a b", "žluťoučký", "{}", "a: b"])
def test_ordinary_header_values_are_accepted(value: str) -> None:
    check_header("Trace-Parent", value)
    assert not "Trace-Parent".lower().startswith(OWN_PREFIXES)


def test_the_names_of_one_namespace() -> None:
    names = Names("acme")
    assert names.work_stream("mail") == "acme-work-mail"
    assert names.lane_filter("mail", "high") == "acme.work.mail.high.>"
    assert names.job("mail", "high", "greet", NO_KEY, "u1") == "acme.work.mail.high.greet.-.u1"
    assert names.pin("mail") == "acme.work.mail.mark._pin"
    assert (names.dead_stream, names.dead_filter) == ("acme-dead", "acme.dead.>")
    assert names.dead("mail", "greet", "u1") == "acme.dead.mail.greet.u1"
    assert names.done_bucket("mail") == "acme-done-mail"
    assert names.done_key("greet", "u1") == "greet.u1"
    assert (names.running_bucket, names.payload_store) == ("acme-running", "acme-payloads")
    assert kv_stream("b") == "KV_b"
    assert kv_subject("b", "k") == "$KV.b.k"
    assert object_stream("o") == "OBJ_o"


def test_names_compare_by_value_and_refuse_a_bad_namespace() -> None:
    assert Names("a") == Names("a") != Names("b")
    assert len({Names("a"), Names("a")}) == 1
    with pytest.raises(DefinitionError, match="namespace"):
        Names("a.b")


@given(TOKENS, TOKENS, st.sampled_from(PRIORITIES), TOKENS, st.text(min_size=1), TOKENS)
def test_patterns_match_a_job_in_every_lane(
    namespace: str, queue: str, lane: str, task: str, key: str, uid: str
) -> None:
    names = Names(namespace)
    for token in (NO_KEY, key_token(key)):
        subject = names.job(queue, lane, task, token, uid)
        assert len(subject.split(".")) == 7
        assert matches(names.job_anywhere(queue, task, JobId(token, uid)), subject)
        assert matches(names.key_anywhere(queue, task, token), subject)
        assert matches(names.lane_filter(queue, lane), subject)
        assert not matches(names.lane_filter(queue, "later"), subject)
        assert not matches(names.dead_filter, subject)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("*.b", "a.b", True),
        (">", "a", True),
    ],
)
def test_subjects_match_as_the_server_matches_them(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
