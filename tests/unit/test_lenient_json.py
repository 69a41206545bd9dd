"""Values that other programs wrote are read without trust."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from jetjobs.config import find_dev_server
from jetjobs.jetstream.jobs.status import done_status, live_status
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.messages.payloads import read_info
from jetjobs.model.errors import ConfigError
from jetjobs.model.job import JobState, running_status
from jetjobs.model.views.job_query import JobQuery, Position, read_cursor, write_cursor
from jetjobs.model.views.live_events import read_live
from jetjobs.model.views.worker_info import read_worker
from jetjobs.model.wire.lenient_json import (
    as_float,
    as_int,
    as_seconds,
    as_time,
    read_json,
    read_record,
    read_running,
)

NESTED = "[" * 100_000
FORGED = "x 0\r\n\r\nPUB pwned.here 5\r\nhello\r\nPUB junk"
ODD: list[Any] = [None, "x", [], {}, True, float("nan"), float("inf"), -1, 1e300, 10**400]


def test_deeply_nested_brackets_are_not_read_as_json() -> None:
    with pytest.raises(ValueError, match="nested"):
        read_json(NESTED)
    assert read_record(NESTED.encode()) == {}
    assert read_live("job.started", NESTED.encode(), 1.0) is None
    assert read_json('{"a": [1]}') == {"a": [1]}


def test_a_cursor_of_nested_brackets_is_refused() -> None:
    cursor = base64.urlsafe_b64encode(NESTED.encode()).decode()
    with pytest.raises(ConfigError, match="invalid cursor"):
        read_cursor(JobQuery(), cursor)


def test_a_dev_file_of_nested_brackets_is_ignored(tmp_path: Any) -> None:
    (tmp_path / ".jetjobs").mkdir()
    (tmp_path / ".jetjobs" / "dev.json").write_text(NESTED)
    assert find_dev_server(tmp_path) is None


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_an_odd_value_has_its_default(value: Any) -> None:
    assert as_time(value) is None
    assert as_seconds(value) == 0.0
    assert as_int(value) in (0, -1)
    assert as_float(value, 7.0) in (7.0, -1.0, 1e300)


def test_a_good_value_is_taken() -> None:
    assert as_time(1.5) == datetime.fromtimestamp(1.5, UTC)
    assert (as_seconds(2), as_int(3.7), as_float(4)) == (2.0, 3, 4.0)


@pytest.mark.parametrize("value", [FORGED, "", "a.b", "*", ">", 7, None, "a b", "a\tb", "a\n"])
def test_a_running_record_with_an_invalid_queue_or_task_is_not_read(value: Any) -> None:
    good = {"queue": "default", "task": "send", "run": "r"}
    assert read_running(good)["queue"] == "default"
    assert read_running({**good, "queue": value}) == {}
    assert read_running({**good, "task": value}) == {}


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("key", ["started_at", "attempt", "progress", "worker", "message", "run"])
def test_an_odd_running_record_can_be_shown(key: str, value: Any) -> None:
    record = read_running({"queue": "default", "task": "send", "run": "r", key: value})
    json.dumps(running_status("j1", record).as_dict(), allow_nan=False)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("key", ["lag_s", "started_at", "memory_bytes", "pid"])
def test_an_odd_worker_record_can_be_shown(key: str, value: Any) -> None:
    record = read_worker(
        "w1", {"name": "w1", "running": [{"id": "j", "task": "t", "since": value}], key: value}, 0.0
    )
    json.dumps(record.as_dict(), allow_nan=False)


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize(
    "key", ["attempt", "started_at", "ended_at", "worker", "replay", "scheduled_time", "reason"]
)
def test_an_odd_done_record_can_be_shown(key: str, value: Any) -> None:
    status = done_status({"state": "succeeded", "run": "r", key: value}, "default", "send", "j1")
    json.dumps(status.as_dict(), allow_nan=False)


@pytest.mark.parametrize("key", ["queue", "task", "id", "run"])
def test_an_object_with_forged_labels_belongs_to_no_job(key: str) -> None:
    labels = {"jetjobs.queue": "default", "jetjobs.task": "send", "jetjobs.id": "j1", "jetjobs.run": "r"}

    def info(labels: dict[str, str]) -> dict[str, str]:
        body = json.dumps({"name": "j1.r", "nuid": "n", "metadata": labels}).encode()
        return read_info(StoredMessage("s", 1, {}, body, 0.0)).labels

    assert info(labels)["queue"] == "default"
    assert info({**labels, f"jetjobs.{key}": FORGED}) == {}


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        ("true", True, True),
        ("true", 1, False),
        ("1", True, False),
        ("1", 1, True),
        ("1", 1.0, False),
        ("false", 0, False),
        ("[1]", [True], False),
        ('{"a": true}', {"a": 1}, False),
        ('{"a": [1, null]}', {"a": [1, None]}, True),
        ("true", "true", True),
        ("null", None, True),
    ],
)
def test_arguments_are_compared_as_json(wanted: str, found: Any, fits: bool) -> None:
    assert JobQuery(where=(("args.n", wanted),)).matches({"n": found}) is fits


@pytest.mark.parametrize("sequence", [0, -1, 2**63, 10**30, True, 1.5, "7", None])
def test_a_cursor_names_a_sequence_that_a_stream_can_have(sequence: Any) -> None:
    query = JobQuery()
    with pytest.raises(ConfigError, match="invalid cursor"):
        read_cursor(query, write_cursor(query, Position("default/high", sequence)))
    assert read_cursor(query, write_cursor(query, Position("default/high", 7))) == ("default/high", 7)


def test_a_job_for_later_says_when_it_fires_and_which_lane_it_is_for() -> None:
    headers = {
        "Nats-Schedule": "@at 2026-01-02T03:04:05.000000Z",
        "Nats-Schedule-Target": "jobs.work.default.low.send.-.j1",
        "Jetjobs-Run": "r",
    }
    message = StoredMessage("jobs.work.default.later.send.-.j1", 1, headers, b"{}", 1.0)
    status = live_status(message, "default", "send", "j1", {})
    assert (status.lane, status.priority) == ("later", "low")
    assert status.due_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    odd = message._replace(headers={"Nats-Schedule": "@at x", "Nats-Schedule-Target": "a.b"})
    shown = live_status(odd, "default", "send", "j1", {})
    assert (shown.due_at, shown.priority) == (None, None)
    back = message._replace(subject="jobs.work.default.returned.send.-.j1", headers={"Jetjobs-Lane": "high"})
    assert live_status(back, "default", "send", "j1", {}).priority == "high"


def test_a_query_says_what_is_wrong_with_it_in_words_for_python() -> None:
    assert JobQuery(state="dead") == JobQuery(JobState.DEAD)  # type: ignore[arg-type]
    assert JobQuery(where=[["args.n", "1"]]) == JobQuery(where=(("args.n", "1"),))  # type: ignore[arg-type]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"state": "foo"}, "invalid state 'foo': use one of scheduled, queued"),
        ({"where": (("id", "1"),)}, "invalid where 'id': use the path of an argument"),
        ({"where": ("args.n", "1")}, "where takes pairs such as"),
        ({"where": (("args.n", 1),)}, "where takes pairs such as"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError) as caught:
            JobQuery(**given)
        assert str(caught.value).startswith(said)
