"""What users get is a frozen dataclass that web frameworks return as an object, with one JSON form."""

from __future__ import annotations

import dataclasses
import json
import typing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

import jetjobs
import jetjobs.admin
import jetjobs.events
from jetjobs import JobState, JobStatus
from jetjobs.admin import (
    CancelAnswer,
    CancelOutcome,
    DeadLetter,
    DeadLetterGroup,
    Finding,
    ImportReport,
    JobPage,
    LaneState,
    ListedJob,
    MoveAnswer,
    MoveOutcome,
    Pause,
    Purged,
    QueueSlots,
    QueueState,
    ReplayAnswer,
    ReplayOutcome,
    RunningJob,
    ScheduleInfo,
    TopologyChange,
    TopologyItem,
    WorkerAnswers,
    WorkerRecord,
)
from jetjobs.events import ErrorInfo, Event, JobFinished, JobStarted, LiveEvent
from jetjobs.model.public import Record
from jetjobs.model.schedule.schedule import Schedule

NOW = datetime(2027, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
STATUS = JobStatus("j", JobState.QUEUED, "mail", "send", 1, due_at=NOW, history=({"attempt": 1},))
LETTER = DeadLetter(
    id="j",
    queue="mail",
    task="send",
    lane="normal",
    reason="exhausted",
    error_type="ValueError",
    text="no",
    traceback="Traceback",
    worker="w",
    died_at=NOW,
    enqueued_at=NOW,
    attempts=3,
    body=b'{"to":"ada"}',
    history=(),
    replays=(),
    run="r",
    sequence=7,
    payload="",
    headers={"X-Tenant": "a"},
)
LANE = LaneState("normal", NOW, 1, 0, 0, 0, 1, None)
QUEUE = QueueState("mail", NOW, Pause(NOW, "why", "ada", NOW), (LANE,), 0, 0, 0, SECOND, 99, 1, 0, 4, 0.5, 0.5)
WORKER = WorkerRecord(
    key="w-1",
    name="w",
    host="h",
    pid=7,
    version="0.1.0",
    python="3.12.1",
    phase="ready",
    queues={"mail": QueueSlots(1, 4)},
    tasks={"send": "abc"},
    busy=1,
    total=4,
    running=(RunningJob("j", "send", "mail", NOW),),
    lag=SECOND,
    memory_bytes=10,
    started_at=NOW,
    seen_at=NOW,
    lease=30 * SECOND,
)
ITEM = TopologyItem("stream", "stream x", "x", "", {})
RECORDS: list[Any] = [
    STATUS,
    LETTER,
    QUEUE,
    WORKER,
    DeadLetterGroup("mail", "send", "exhausted", "ValueError", 3, NOW, NOW),
    CancelAnswer("j", CancelOutcome.STOPPING, JobState.RUNNING, "asked"),
    MoveAnswer("j", MoveOutcome.MOVED, JobState.SCHEDULED),
    ReplayAnswer(LETTER, ReplayOutcome.REFUSED, "no such task"),
    JobPage([ListedJob(STATUS, {"to": "ada"})], None, 1),
    ListedJob(STATUS, None),
    ImportReport(1, 2, ((3, "not JSON"),)),
    Purged(1, 2),
    Finding("ok", "nats", "reachable"),
    ITEM,
    TopologyChange(ITEM, "update", {"a": (1, 2)}),
    WorkerAnswers({"w": {"ok": True}}, ["x"]),
    ScheduleInfo(Schedule(name="s", task="send", every=5 * SECOND), 3, NOW, NOW),
    LiveEvent("job.retried", NOW, "w", "mail", "send", "j", 1, SECOND, SECOND, SECOND),
    JobStarted("mail", "send", "j", 1, 1, 0.5),
    JobFinished("mail", "send", "j", 1, "retried", 0.5, 0.1, error=ErrorInfo("ValueError", "no")),
]
IDS = [type(record).__name__ for record in RECORDS]


def public_records() -> dict[str, type]:
    """Every public class that users get from a call or an event."""
    names = [(jetjobs.admin, name) for name in jetjobs.admin.__all__] + [
        (jetjobs.events, kind.__name__) for kind in typing.get_args(Event)
    ]
    found = {name: getattr(module, name) for module, name in names}
    return {name: kind for name, kind in found.items() if issubclass(kind, Record | tuple)}


@pytest.mark.parametrize("kind", [*public_records().values(), JobStatus, LiveEvent, ErrorInfo])
def test_what_users_get_is_a_frozen_dataclass_that_pydantic_knows(kind: Any) -> None:
    assert issubclass(kind, Record)
    assert kind.as_dict.__doc__
    params: Any = getattr(kind, "__dataclass_params__", None)
    assert params is not None
    assert params.frozen
    TypeAdapter(kind)


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_record_is_returned_as_an_object(record: Any) -> None:
    returned = json.loads(TypeAdapter(type(record)).dump_json(record))
    assert returned.keys() == {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_record_has_a_json_form(record: Any) -> None:
    values = record.as_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values


@pytest.mark.parametrize("record", RECORDS, ids=IDS)
def test_a_record_cannot_be_changed(record: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, dataclasses.fields(record)[0].name, None)


def test_durations_are_seconds_and_times_are_iso_8601() -> None:
    live = LiveEvent("job.retried", NOW, "w", wait=SECOND / 2, run_time=SECOND).as_dict()
    assert (live["at"], live["wait_s"], live["run_s"], live["retry_in_s"]) == (NOW.isoformat(), 0.5, 1.0, None)
    assert QUEUE.as_dict()["oldest_s"] == 1.0
    assert WORKER.as_dict()["lease_s"] == 30.0
    assert STATUS.as_dict()["due_at"] == NOW.isoformat()


def test_nothing_that_users_get_has_a_duration_or_time_as_a_number() -> None:
    """Events of observers are the exception: two are made for every job, and their users count with seconds."""
    events = {kind.__name__ for kind in typing.get_args(Event)}
    for name, kind in public_records().items():
        for field in dataclasses.fields(kind):
            time = field.name.endswith(("_s", "_at")) and not field.name.endswith("_per_s")
            as_number = time or field.name in ("at", "since", "until")
            assert name in events or not as_number or "float" not in str(field.type), f"{name}.{field.name}"
