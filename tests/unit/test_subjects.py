"""Names on the wire: which are valid, and their form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jetjobs import JetJobs
from jetjobs.jetstream.topology_plan import plan
from jetjobs.jetstream.transport.api import matches
from jetjobs.model.errors import DefinitionError
from jetjobs.model.settings import QueueSettings, Settings
from jetjobs.model.wire.headers import OWN_PREFIXES, check_header
from jetjobs.model.wire.ids import NO_KEY, JobId, key_token
from jetjobs.model.wire.namespaces import namespace_of
from jetjobs.model.wire.subjects import (
    PRIORITIES,
    Names,
    check_priority,
    kv_stream,
    kv_subject,
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


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("my.shop", "my-shop"),
        ("my shop", "my-shop"),
        (" shop\n", "shop"),
        ("x" * 65, "x" * 64),
        ("*", ""),
        (None, ""),
    ],
)
def test_an_app_whose_name_is_not_one_token_is_refused_with_a_suggestion(name: Any, near: str) -> None:
    with pytest.raises(DefinitionError, match="invalid app name") as caught:
        JetJobs(name)
    hint = "a name is 1 to 64 letters, digits, '-' or '_'"
    assert caught.value.hint == (f"{hint}; use {near!r}" if near else hint)
    if near:
        assert JetJobs(near).name == near


def test_an_app_has_its_name_as_namespace_unless_the_settings_name_one() -> None:
    app = JetJobs("shop")
    app.configure(Settings())
    assert app.namespace == "shop"
    app.configure(Settings(queues=QueueSettings(namespace="store")))
    assert app.namespace == "store"


@pytest.mark.parametrize(
    ("namespace", "near"), [("shop-work", "shop_work"), ("a-done-b", "a_done-b"), ("a-work-done", "a_work_done")]
)
def test_a_namespace_that_could_be_part_of_the_names_of_another_is_refused(namespace: str, near: str) -> None:
    with pytest.raises(DefinitionError, match=f"invalid namespace '{namespace}'") as caught:
        Names(namespace)
    assert caught.value.hint == f"set queues.namespace, for example to '{near}'"
    assert [Names(near).namespace, Names("shop-worker").namespace] == [near, "shop-worker"]


PIECES = st.lists(st.sampled_from(["a", "-", "work", "done", "dead", "running", "KV_"]), min_size=1, max_size=6)


@given(*(PIECES.map("".join),) * 4)
def test_two_namespaces_never_share_a_stream(first: str, queue: str, second: str, other_queue: str) -> None:
    assume(first != second)
    try:
        one, two = Names(first), Names(second)
    except DefinitionError:
        assume(False)
    streams = [
        {item.stream for item in plan(names, [q], QueueSettings())}
        for names, q in ((one, queue), (two, other_queue))
    ]
    assert not streams[0] & streams[1]
    assert namespace_of(one.work_stream(queue)) == first


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
