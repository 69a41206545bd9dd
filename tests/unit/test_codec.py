"""Jobs are decoded as they were encoded, and unreadable messages are reported as malformed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.jetstream.jobs.dead_letters import NewDeadLetter, _cause, read_cause
from jetjobs.jetstream.messages.codec import (
    MAX_HISTORY,
    MAX_HISTORY_TEXT,
    MAX_MOVABLE,
    MAX_TRACEBACK_BYTES,
    decode,
    decode_malformed,
    encode_headers,
    header_size,
    identify,
    read_history,
    read_traceback,
    with_error,
)
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.nats_client import write_headers
from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import NO_KEY, JobId, is_id, key_token, new_uid
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import Names

PLACE = "s060a2418202240-42"
UNCONNECTED = cast(Connection, None)
"""A delivery is read without its connection; only acks need one."""

TOKENS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
KEYED = re.compile(r"k[a-z2-7]{26}-.+", re.ASCII)
OWN_IDS = st.from_regex(r"[A-Za-z0-9_-]{1,100}", fullmatch=True).filter(lambda text: not KEYED.fullmatch(text))
HEADER_NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True).filter(
    lambda name: not name.lower().startswith(h.OWN_PREFIXES)
)
HEADER_VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=30).map(str.strip)
TIMES = st.just(0.0) | st.integers(1, 4_000_000_000_000_000).map(lambda micro: micro / 1e6)
WHOLE = st.integers(0, 10**8 - 1)


def delivered(
    subject: str, headers: dict[str, str] | bytes | None = None, body: bytes = b"{}", sequence: int = 42
) -> Delivery:
    block = headers if isinstance(headers, bytes) else write_headers(headers) if headers else None
    ack = f"$JS.ACK.jobs-work-mail.normal.1.{sequence}.77.1700000000123456789.5"
    return Delivery(UNCONNECTED, subject, ack, body, block)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    key = draw(st.just(NO_KEY) | st.text(min_size=1, max_size=40).map(key_token))
    uid = draw(st.builds(new_uid) | OWN_IDS)
    return Job(
        str(JobId(key, uid)),
        draw(TOKENS),
        draw(TOKENS),
        draw(st.sampled_from(n.PRIORITIES)),
        draw(st.binary(max_size=50)),
        key,
        run=draw(st.from_regex(r"[0-9a-f]{10}", fullmatch=True)),
        hop=draw(WHOLE),
        attempt=draw(st.integers(1, 10**8 - 1)),
        max_attempts=draw(WHOLE),
        enqueued_at=draw(TIMES.filter(bool)),
        due_at=draw(TIMES),
        deadline=draw(TIMES),
        reply=draw(st.just("") | st.just("_INBOX.abc.u1")),
        payload=draw(st.just("") | st.just("u1")),
        headers=draw(st.dictionaries(HEADER_NAMES, HEADER_VALUES, max_size=4)),
    )


def subject_of(job: Job) -> str:
    return Names("jobs").job(job.queue, job.lane, job.task, job.key, job.uid)


@given(jobs())
def test_a_decoded_job_equals_the_encoded_one(job: Job) -> None:
    came = decode(delivered(subject_of(job), encode_headers(job), job.body))
    assert came.carried == job.carried
    for field in set(Job._fields) - {"headers", "enqueued_at", "due_at", "deadline"}:
        assert getattr(came, field) == getattr(job, field), field
    for field in ("enqueued_at", "due_at", "deadline"):
        assert getattr(came, field) == pytest.approx(getattr(job, field), abs=1e-6)
    assert (came.uid, came.message_id) == (job.uid, job.message_id)


@given(jobs())
def test_headers_are_the_same_after_another_round_trip(job: Job) -> None:
    """A job moves many times: its headers must not grow or drift."""
    headers = encode_headers(job)
    assert encode_headers(decode(delivered(subject_of(job), headers))) == headers


def test_a_job_with_a_key_and_the_longest_id_of_its_own_can_be_read() -> None:
    key, uid = key_token("order-1"), "x" * 100
    job = Job(str(JobId(key, uid)), "greet", "mail", "normal", b"{}", key, run="r", enqueued_at=1.0)
    assert decode(delivered(subject_of(job), encode_headers(job))).id == job.id


def test_defaults_are_left_out() -> None:
    job = Job("u1", "greet", "mail", "normal", b"{}", run="r1")
    assert encode_headers(job) == {"Nats-Msg-Id": "u1.r1.0", "Jetjobs-Run": "r1"}


def test_a_move_keeps_history_and_producer_and_drops_all_other_headers_of_jetjobs_and_the_server() -> None:
    headers = {
        "Trace": "1",
        h.PRODUCER: "shop",
        h.ERRORS: "[]",
        "Nats-Schedule": "@at 2027",
        "nats-ttl": "1s",
        "Nats-Expected-Last-Subject-Sequence": "0",
        "Jetjobs-Cause": "{}",
        "jetjobs-hop": "9",
        "Jetjobs-Hop": "9",
    }
    job = Job("u1", "greet", "mail", "normal", b"{}", run="r1", headers=headers)
    assert encode_headers(job) == {
        "Trace": "1",
        h.PRODUCER: "shop",
        h.ERRORS: "[]",
        h.MSG_ID: "u1.r1.0",
        h.RUN: "r1",
    }
    assert job.carried == {"Trace": "1"}


# Jobs published without jetjobs


def test_a_job_without_headers_has_defaults() -> None:
    job = decode(delivered("jobs.work.mail.normal.greet"))
    assert job.id == PLACE
    assert (job.task, job.queue, job.lane, job.key, job.attempt, job.hop) == ("greet", "mail", "normal", "-", 1, 0)
    assert job.enqueued_at == pytest.approx(1700000000.123457)
    assert job.run == PLACE


def test_a_job_without_headers_is_the_same_on_every_delivery() -> None:
    first = delivered("jobs.work.mail.normal.greet")
    again = Delivery(UNCONNECTED, first.subject, first.ack_subject.replace(".1.42.", ".2.42."), b"{}", None)
    assert again.delivered == 2
    one, other = decode(first), decode(again)
    assert (one.id, one.run) == (other.id, other.run)


@pytest.mark.parametrize(
    ("given", "job_id"),
    [("order-1", "order-1"), ("x" * 128, "x" * 128), (f"{key_token('a')}-u1", f"{key_token('a')}-u1")],
)
def test_a_valid_message_id_is_the_id(given: str, job_id: str) -> None:
    job = decode(delivered("jobs.work.mail.normal.greet", {h.MSG_ID: given}))
    assert job.id == job_id
    assert str(JobId(job.key, job.uid)) == job.id


@pytest.mark.parametrize("given", ["", "order 1", "a.b", "é", "x" * 129, "*"])
def test_an_invalid_message_id_is_ignored(given: str) -> None:
    assert decode(delivered("jobs.work.mail.normal.greet", {h.MSG_ID: given})).id == PLACE


@given(st.integers(0, 4 * 10**18))
def test_a_delivery_and_the_stored_message_give_a_job_the_same_id(stored_ns: int) -> None:
    subject, seconds = "jobs.work.mail.normal.greet", stored_ns // 10**9
    ack = f"$JS.ACK.jobs-work-mail.normal.1.42.77.{stored_ns}.5"
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{stored_ns % 10**9:09}Z"
    read = StoredMessage(subject, 42, {}, b"", api.parse_time(text))
    came = Delivery(UNCONNECTED, subject, ack, b"", None)
    assert identify(came) == identify(read) == f"s{stored_ns // 1000:014x}-42"


def test_a_job_published_without_jetjobs_keeps_its_id_when_it_moves() -> None:
    job = decode(delivered("jobs.work.mail.normal.greet", {h.MSG_ID: "order-1"}))
    moved = decode(delivered(subject_of(job), encode_headers(job._replace(hop=1)), sequence=43))
    assert (moved.id, moved.run, moved.hop) == (job.id, job.run, 1)


def test_a_header_with_a_line_feed_does_not_prevent_the_job_from_moving() -> None:
    # The server accepts such a block. A job that can be neither retried nor dead-lettered would be redelivered
    # indefinitely.
    block = b"NATS/1.0\r\nTrace: a\nb\r\nOther: c\rd\r\n\r\n"
    job = decode(delivered("jobs.work.mail.normal.greet", block))
    assert write_headers(encode_headers(job)).startswith(b"NATS/1.0\r\n")


# Malformed messages


@pytest.mark.parametrize(
    "subject",
    [
        "jobs.work.mail.normal",
        "jobs.work.mail.normal.greet.u1",
        "jobs.work.mail.normal.greet.-.u1.x",
        "jobs.work.mail.normal.greet.key.u1",
        "jobs.work.mail.normal.greet..u1",
        "jobs.work.mail.normal.greet.-.",
        "jobs.work.mail.normal.greet.-.a b",
        "jobs.work.mail.normal.greet.-.é",
        "jobs.work.mail.normal.greet.-.\ufffd",
        f"jobs.work.mail.normal.greet.-.{'x' * 129}",
        f"jobs.work.mail.normal.greet.-.{key_token('a')}-u1",
        f"jobs.work.mail.normal.greet.{key_token('a').upper()}.u1",
        f"jobs.work.mail.normal.greet.{key_token('a')[:-1]}.u1",
    ],
)
def test_a_subject_of_another_form_is_malformed(subject: str) -> None:
    with pytest.raises(MalformedJob, match="subject"):
        decode(delivered(subject))


@pytest.mark.parametrize("name", [h.HOP, h.ATTEMPT, h.MAX_ATTEMPTS])
@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "+1", "1e3", "٣", "²", "9" * 10, "1_0"])
def test_a_header_that_must_be_a_whole_number_and_is_not_is_malformed(name: str, value: str) -> None:
    with pytest.raises(MalformedJob, match=name):
        decode(delivered("jobs.work.mail.normal.greet.-.u1", {name: value}))


def test_attempts_count_from_one() -> None:
    try:
        job = decode(delivered("jobs.work.mail.normal.greet.-.u1", {h.ATTEMPT: "0"}))
    except MalformedJob:
        return
    assert job.attempt == 1


@pytest.mark.parametrize("name", [h.ENQUEUED_AT, h.DUE_AT, h.DEADLINE])
@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "inf", "-inf", "1e400", "253402300800", "2027-01-31"])
def test_a_header_that_must_be_a_time_and_is_not_is_malformed(name: str, value: str) -> None:
    with pytest.raises(MalformedJob, match=name):
        decode(delivered("jobs.work.mail.normal.greet.-.u1", {name: value}))


def test_a_long_invalid_header_is_shortened_in_the_error() -> None:
    with pytest.raises(MalformedJob) as caught:
        decode(delivered("jobs.work.mail.normal.greet.-.u1", {h.HOP: "x" * 10_000}))
    assert len(str(caught.value)) < 200


@given(st.text(max_size=60), st.dictionaries(st.sampled_from([h.HOP, h.DUE_AT, h.RUN, h.MSG_ID]), HEADER_VALUES))
def test_any_delivery_is_decoded_or_can_be_dead_lettered(subject: str, headers: dict[str, str]) -> None:
    delivery = delivered(f"jobs.work.mail.normal.{subject}", headers)
    try:
        job = decode(delivery)
    except MalformedJob:
        job = decode_malformed(delivery, "mail", "normal")
    assert is_id(job.id)
    assert str(JobId(job.key, job.uid)) == job.id


def test_a_malformed_job_keeps_body_queue_and_headers() -> None:
    delivery = delivered("jobs.work.mail.normal.greet.x.y.z", {"Trace": "1", h.HOP: "x"}, b"body")
    job = decode_malformed(delivery, "mail", "normal")
    assert (job.id, job.task, job.queue, job.lane, job.body) == (
        PLACE,
        "greet",
        "mail",
        "normal",
        b"body",
    )
    assert job.carried == {"Trace": "1"}
    assert decode_malformed(delivered("jobs.work.mail"), "mail", "normal").task == "unknown"


# The delivery itself


@pytest.mark.parametrize(
    "ack",
    [
        "$JS.ACK.stream.lane.3.42.77.1700000000123456789.5",
        "$JS.ACK.domain.account.stream.lane.3.42.77.1700000000123456789.5",
        "$JS.ACK._.account.stream.lane.3.42.77.1700000000123456789.5.token",
    ],
)
def test_a_delivery_is_read_from_every_form_of_its_ack_subject(ack: str) -> None:
    delivery = Delivery(UNCONNECTED, "a", ack, b"", None)
    assert (delivery.delivered, delivery.sequence, delivery.fence, delivery.pending) == (3, 42, 77, 5)
    assert delivery.stored_at == pytest.approx(1700000000.123456789)
    assert delivery.headers == {}


# Size


@given(st.dictionaries(HEADER_NAMES, HEADER_VALUES, min_size=1))
def test_the_size_of_headers_is_what_goes_over_the_wire(headers: dict[str, str]) -> None:
    assert header_size(headers) == len(write_headers(headers)) == header_size(write_headers(headers))


def test_the_size_counts_bytes_of_names_too() -> None:
    """A job published without jetjobs may have any header name, and each move keeps it."""
    headers = {"Žluť": "x"}
    assert header_size(headers) == len(write_headers(headers))


# History

ERROR = ErrorInfo("ValueError", "boom", "Traceback")
JOB = Job("u1", "greet", "mail", "normal", b"{}", run="r1", attempt=3, headers={"Trace": "1"})


def test_an_error_is_added_to_the_history() -> None:
    job = with_error(JOB, ERROR, "w1", 1.23456)
    assert read_history(job.headers) == [
        {"attempt": 3, "at": 1.235, "worker": "w1", "type": "ValueError", "text": "boom"}
    ]
    assert job.headers["Trace"] == "1"
    assert h.ERRORS not in JOB.headers, "the job itself is a value"


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    job = JOB
    for attempt in range(1, 26):
        error = ErrorInfo("T" * 5_000, "x\r\n" * 5_000, "")
        job = with_error(job._replace(attempt=attempt), error, "w1", float(attempt))
    history = read_history(job.headers)
    assert [entry["attempt"] for entry in history] == list(range(26 - MAX_HISTORY, 26))
    assert all(len(entry["text"]) <= MAX_HISTORY_TEXT for entry in history)
    assert all(len(entry["type"]) <= MAX_HISTORY_TEXT for entry in history)
    assert len(job.headers[h.ERRORS]) < 16_000


@given(st.text(max_size=300), st.text(max_size=300))
def test_the_history_of_any_error_fits_into_a_header(kind: str, text: str) -> None:
    job = with_error(JOB, ErrorInfo(kind, text, ""), "w1", 1.0)
    came = decode(delivered(subject_of(job), encode_headers(job)))
    assert read_history(came.headers)[0]["text"] == text[:MAX_HISTORY_TEXT]


@given(st.text(alphabet=st.characters(), max_size=4_000))
def test_the_traceback_of_the_last_failure_travels_with_the_job(trace: str) -> None:
    job = with_error(JOB, ErrorInfo("ValueError", "boom", trace), "w1", 1.0)
    came = decode(delivered(subject_of(job), encode_headers(job)))
    found = read_traceback(came.headers)
    if len(json.dumps(trace)) <= MAX_TRACEBACK_BYTES:
        assert (found or "") == trace
    elif found is not None:
        assert found.startswith("...\n")
        assert trace.endswith(found.removeprefix("...\n"))
    assert len(job.headers.get(h.TRACEBACK, "")) <= MAX_TRACEBACK_BYTES
    again = with_error(came, ErrorInfo("ValueError", "boom", ""), "w1", 2.0)
    assert read_traceback(again.headers) is None, "only that of the last failure is kept"


def test_a_job_with_large_headers_of_its_own_is_moved_without_a_traceback() -> None:
    large = JOB._replace(headers={f"Own-{number}": "x" * 1_000 for number in range(39)})
    error = ErrorInfo("ValueError", "boom", "t" * 4_000)
    for _ in range(20):
        large = with_error(large, error, "w1", 1.0)
        assert header_size(encode_headers(large)) < MAX_MOVABLE
    assert h.TRACEBACK not in large.headers
    assert read_history(large.headers)
    assert h.TRACEBACK in with_error(JOB, error, "w1", 1.0).headers


@pytest.mark.parametrize("text", ["", "{", "null", "5", "[]", '""', "[" * 50_000], ids=lambda text: text[:12])
def test_an_unreadable_traceback_counts_as_none(text: str) -> None:
    assert read_traceback({h.TRACEBACK: text}) is None


BROKEN = ["", "{", "null", "5", '"x"', "{}", "[1, 2]", '[{"attempt": 1}', "[" * 50_000, "[" + "9" * 5_000 + "]"]


@pytest.mark.parametrize("history", BROKEN, ids=lambda text: text[:12])
def test_an_unreadable_history_counts_as_empty(history: str) -> None:
    job = with_error(JOB._replace(headers={h.ERRORS: history}), ERROR, "w1", 1.0)
    assert [entry["text"] for entry in read_history(job.headers)] == ["boom"]


@pytest.mark.parametrize("cause", [*BROKEN, "[]"], ids=lambda text: text[:12])
def test_an_unreadable_cause_counts_as_empty(cause: str) -> None:
    assert read_cause({h.CAUSE: cause}) == {}


@pytest.mark.parametrize("record", [*BROKEN, "[]", "\xff"], ids=lambda text: text[:12])
def test_a_foreign_record_counts_as_empty(record: str) -> None:
    assert read_record(record.encode("latin-1")) == {}


# The cause of a dead letter


@given(st.text(max_size=1_000), st.text(max_size=8_000), st.integers(3_000, 30_000))
def test_a_cause_fits_into_the_available_size_and_keeps_the_reason(text: str, trace: str, room: int) -> None:
    outcome = DeadLettered(DeadReason.EXHAUSTED, ErrorInfo("ValueError", text, trace))
    line = _cause(NewDeadLetter(JOB, outcome, "subject 1", "w1", 1.0), room)
    assert len(line) <= room
    read: dict[str, Any] = json.loads(line)
    assert (read["reason"], read["type"], read["worker"]) == ("exhausted", "ValueError", "w1")
    assert not set(line) & {"\r", "\n"}
