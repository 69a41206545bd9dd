"""States and transitions of jobs, in the code and in the documentation."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import jetjobs
from jetjobs.model.job import FINAL, TRANSITIONS, Job, JobState, JobStatus
from jetjobs.model.wire.ids import NO_KEY, key_token
from jetjobs.model.wire.lenient_json import as_time

DOCUMENT = Path(jetjobs.__file__).parent.parent / "docs" / "reference" / "state-machine.md"


def moves() -> set[tuple[str, str]]:
    return {(str(start), str(end)) for start, ends in TRANSITIONS.items() for end in ends}


def test_the_moves_between_states() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED} == FINAL
    live = {str(state) for state in set(JobState) - FINAL}
    by_replay = {("dead", "queued"), ("dead", "waiting")}
    assert {move for move in moves() if move[0] not in live} == by_replay
    assert {start for start, end in moves() if end == "cancelled"} == live
    assert {start for start, end in moves() if end in ("succeeded", "retrying", "dead")} == {"running"}
    assert set(map(str, JobState)) - {end for _, end in moves()} == {"scheduled"}, (
        "where jobs begin, beside queued and waiting"
    )
    assert [start for start, end in moves() if start == end] == []


def test_the_diagram_in_the_docs_shows_the_same_moves() -> None:
    text = DOCUMENT.read_text()
    documented = {(start, end) for start, end in re.findall(r"^\s*- (\w+) -> (\w+)", text, re.MULTILINE)}
    assert documented == moves()


# Job


def a_job(**fields: object) -> Job:
    return Job("u1", "greet", "mail", "normal", b"{}")._replace(**fields)  # type: ignore[arg-type]


def test_the_uid_follows_the_key() -> None:
    key = key_token("order-1")
    assert a_job().uid == "u1"
    assert a_job().key == NO_KEY
    assert a_job(id=f"{key}-u-2", key=key).uid == "u-2"


def test_the_message_id_differs_with_every_hop_and_every_life() -> None:
    jobs = [a_job(run="a"), a_job(run="a", hop=1), a_job(run="b"), a_job(id="u2", run="a")]
    assert len({job.message_id for job in jobs}) == 4


def test_carried_are_only_headers_of_the_callers_own() -> None:
    headers = {
        "Trace": "1",
        "Nats-Msg-Id": "x",
        "nats-ttl": "1s",
        "NATS-SCHEDULE": "@every 1s",
        "Jetjobs-Attempt": "3",
        "jetjobs-anything": "x",
        "Natsy": "kept",
    }
    assert a_job(headers=headers).carried == {"Trace": "1", "Natsy": "kept"}


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        a_job().attempt = 2  # type: ignore[misc]


def test_times_are_aware_utc_and_zero_is_none() -> None:
    assert as_time(0.0) is None
    assert as_time(1.5) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_a_status_as_a_dict_holds_times_as_text() -> None:
    status = JobStatus("u1", JobState.RUNNING, "mail", "greet", 2, started_at=as_time(1.0))
    shown = status.as_dict()
    assert shown["state"] == "running"
    assert shown["started_at"] == "1970-01-01T00:00:01+00:00"
    assert shown["ended_at"] is None
