"""The state of a queue: when a new job starts, and records on the wire."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from jetjobs import JetJobs
from jetjobs.admin import QueueState
from jetjobs.model.views.queue_info import LaneState, Pause
from jetjobs.model.views.worker_info import QueueSlots, RunningJob, WorkerRecord, read_worker


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def state(queued: int = 0, busy: int = 0, slots: int = 0, **more: Any) -> QueueState:
    base: dict[str, Any] = {
        "queue": "mail",
        "at": at(1000),
        "pause": None,
        "lanes": (LaneState("normal", at(1000), queued, busy, 0, 0, 0, None),),
        "scheduled": 3,
        "retrying": 2,
        "dead": 0,
        "oldest": None,
        "bytes": 0,
        "workers": 1,
        "busy": busy,
        "slots": slots,
    }
    return QueueState(**{**base, **more})


@pytest.mark.parametrize(
    ("found", "starts"),
    [
        (state(0, 0, 2), 0.0),
        (state(1, 0, 2), 0.0),
        (state(0, 2, 2), None),
        (state(0, 2, 2, out_per_s=2.0), 0.5),
        (state(100, 2, 2, out_per_s=10.0), 10.0),
        (state(100, 2, 2, out_per_s=0.0), None),
        (state(0, 0, 2, workers=0), None),
        (state(0, 0, 2, pause=Pause(None)), None),
        (state(0, 0, 2, pause=Pause(at(1060))), 60.0),
        (state(1, 2, 2, pause=Pause(at(1060))), 60.0),
        (state(100, 0, 2, pause=Pause(at(1060)), out_per_s=10.0), 70.0),
        (state(100, 0, 2, pause=Pause(at(1060))), None),
    ],
)
def test_when_a_new_job_starts(found: QueueState, starts: float | None) -> None:
    assert found.starts_in == (None if starts is None else timedelta(seconds=starts))


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (state(0, 0, 2), "idle"),
        (state(0, 0, 0, workers=0), "idle"),
        (state(0, 1, 2), "running"),
        (state(5, 0, 2), "running"),
        (state(5, 0, 0, workers=0), "no worker"),
        (state(0, 1, 0, workers=0), "no worker"),  # it was lost with its worker
        (state(0, 1, 0, workers=0, finishing=1), "running"),  # a quiet worker finishes it
        (state(1, 1, 0, workers=0, finishing=1), "no worker"),
        (state(5, 1, 2, pause=Pause(None)), "paused"),
        (state(5, 0, 0, workers=0, pause=Pause(None)), "paused"),
    ],
)
def test_one_word_says_what_a_queue_does(found: QueueState, word: str) -> None:
    assert found.activity == found.summary()["activity"] == word
    assert found.summary()["state"] == ("paused" if word == "paused" else "running")


def test_a_state_is_json_and_adds_up() -> None:
    found = state(3, 1, 2, pause=Pause(at(1060), "why", "ada", at(990)))
    assert (found.queued, found.running, found.demand) == (3, 1, 4)
    details = json.loads(json.dumps(found.as_dict()))
    assert details["state"] == "paused"
    assert details["pause"]["reason"] == "why"
    assert details["lanes"] == [{"lane": "normal", "queued": 3, "running": 1, "waiting_pulls": 0}]


RECORD = WorkerRecord(
    key="w-1",
    name="w.1",
    host="h",
    pid=7,
    version="0.1.0",
    python="3.12.1",
    phase="ready",
    queues={"mail": QueueSlots(1, 4)},
    tasks={"send": "abc"},
    busy=1,
    total=4,
    running=(RunningJob("id", "send", "mail", at(99.5)),),
    lag=timedelta(seconds=0.25),
    memory_bytes=10,
    started_at=at(50),
    seen_at=at(100),
)


def test_a_record_survives_the_wire() -> None:
    assert read_worker("w-1", json.loads(json.dumps(RECORD.to_wire())), 100.0) == RECORD
    assert json.loads(json.dumps(RECORD.as_dict()))["running"][0]["since"] == at(99.5).isoformat()


@pytest.mark.parametrize(
    ("changes", "queue", "task", "can"),
    [
        ({}, "mail", "send", True),
        ({"phase": "starting"}, "mail", "send", True),
        ({}, "mail", "receive", False),
        ({}, "default", "send", False),
        ({"phase": "quiet"}, "mail", "send", False),
        ({"queues": {"mail": QueueSlots(0, 0)}}, "mail", "send", False),
    ],
)
def test_a_worker_can_run_the_tasks_it_knows_in_the_queues_it_takes(
    changes: dict[str, Any], queue: str, task: str, can: bool
) -> None:
    assert replace(RECORD, **changes).can_run(queue, task) is can


def test_what_a_record_does_not_say_has_a_default() -> None:
    bare = read_worker("w", {}, 1.0)
    assert (bare.name, bare.pid, bare.queues, bare.running, bare.started_at) == ("w", 0, {}, (), None)
    assert bare.summary()["started_at"] is None


class Order(BaseModel):
    number: int


def test_a_fingerprint_changes_with_the_arguments_and_with_nothing_else() -> None:
    def made(function: Any) -> str:
        return str(JetJobs("x").task(name="t")(function).signature.fingerprint)

    def one(a: int) -> None: ...
    def same(a: int) -> str:
        return "other result"

    def renamed(b: int) -> None: ...
    def optional(a: int = 3) -> None: ...
    def model(a: Order) -> None: ...

    prints = [made(f) for f in (one, renamed, optional, model)]
    assert made(same) == prints[0]
    assert len(set(prints)) == 4
    assert all(len(text) == 12 for text in prints)
