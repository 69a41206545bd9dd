"""Records of finished jobs, and where they are pushed to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.jetstream.jobs.results import _INBOX, cancelled_record, success_record
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import anonymous_id, key_token
from jetjobs.model.wire.lenient_json import read_record

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
IDS = (
    st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
    | st.text().map(lambda key: f"{key_token(key)}-u1")
    | st.integers(1, 2**63).map(lambda number: anonymous_id(1.7e9, number))
)


def record_of(job_id: str = "u1", run: str = "r1", worker: str = "w1", result: bytes = b"null") -> dict[str, Any]:
    job = Job(job_id, "greet", "mail", "normal", b"{}", run=run, attempt=2, enqueued_at=1.0)
    found: dict[str, Any] = json.loads(success_record(job, result, worker, 2.0, 3.25))
    return found


@given(IDS, st.recursive(st.none() | st.booleans() | st.integers() | TEXT, st.lists, max_leaves=8))
def test_a_record_is_json_for_every_id_and_result(job_id: str, result: Any) -> None:
    assert record_of(job_id, result=json.dumps(result).encode()) == {
        "state": "succeeded",
        "id": job_id,
        "run": "r1",
        "attempt": 2,
        "worker": "w1",
        "enqueued_at": 1.0,
        "started_at": 2.0,
        "ended_at": 3.25,
        "result": result,
    }


def test_only_the_record_of_a_tick_names_its_schedule() -> None:
    scheduled_time = "2027-03-28T01:30:00+00:00"
    job = Job(
        "u1",
        "greet",
        "mail",
        "normal",
        b"{}",
        headers={h.OF_SCHEDULE: 'night"ly', h.SCHEDULED_TIME: scheduled_time},
    )
    for record in (
        json.loads(success_record(job, b"7", "w1", 2.0, 3.25)),
        json.loads(cancelled_record(job, "schedule", "why", "w1", 2.0, 3.25)),
    ):
        assert (record["schedule"], record["scheduled_time"]) == ('night"ly', scheduled_time)
    plain = job._replace(headers={})
    assert "schedule" not in json.loads(success_record(plain, b"7", "w1", 2.0, 3.25))
    assert "schedule" not in json.loads(cancelled_record(plain, "me", "why", "w1", 2.0, 3.25))


def test_only_the_record_of_a_job_that_another_job_enqueued_names_its_parent() -> None:
    job = Job("u3", "greet", "mail", "normal", b"{}", headers={h.PARENT: "u2", h.ROOT: "u1"})
    for record in (
        json.loads(success_record(job, b"7", "w1", 2.0, 3.25)),
        json.loads(cancelled_record(job, "me", "why", "w1", 2.0, 3.25)),
    ):
        assert (record["parent"], record["root"]) == ("u2", "u1")
    assert "parent" not in json.loads(success_record(job._replace(headers={}), b"7", "w1", 2.0, 3.25))


def test_the_record_of_a_cancelled_job_contains_how_it_was_ended_if_it_ran() -> None:
    job = Job("u1", "greet", "mail", "normal", b"{}")
    assert json.loads(cancelled_record(job, "me", "why", "w1", 2.0, 3.25, "killed"))["how"] == "killed"
    assert "how" not in json.loads(cancelled_record(job, "me", "why", "", 0.0, 3.25))


@pytest.mark.parametrize("run", ['a"b', "a\\b", "tab\there", '","state":"dead', "žluť"])
def test_a_record_is_json_for_the_run_of_a_job_published_without_jetjobs(run: str) -> None:
    assert record_of(run=run)["run"] == run


@pytest.mark.parametrize("worker", ['host "a"', "host\\1", "host 1", "žluť"])
def test_a_record_is_json_for_any_name_of_a_worker(worker: str) -> None:
    assert record_of(worker=worker)["worker"] == worker


@pytest.mark.parametrize(
    ("reply", "is_inbox"),
    [
        ("_INBOX.abc", True),
        ("_INBOX.abc.u1", True),
        ("_INBOX_app-1.abc.u1", True),
        ("_INBOX", False),
        ("_INBOX.", False),
        ("_INBOX.*", False),
        ("_INBOX.>", False),
        ("_INBOX.a b", False),
        ("_INBOX.a\r\nPUB x 0", False),
        ("jobs.work.mail.normal.greet.-.u1", False),
        ("$JS.API.STREAM.DELETE.jobs-dead", False),
        ("x_INBOX.a", False),
        ("", False),
    ],
)
def test_records_are_pushed_to_inboxes_only(reply: str, is_inbox: bool) -> None:
    assert (_INBOX.fullmatch(reply) is not None) is is_inbox


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"5", b"\xff"])
def test_a_deleted_or_foreign_record_is_empty(data: bytes) -> None:
    assert read_record(data) == {}


def test_a_record_is_read() -> None:
    assert read_record(b'{"state": "succeeded"}') == {"state": "succeeded"}
