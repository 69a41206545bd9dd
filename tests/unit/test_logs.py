"""One line for each event, as JSON and for people."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetjobs.model.events import (
    ConnectionLost,
    ConnectionRestored,
    EnqueueFailed,
    Event,
    JobEnqueued,
    JobFinished,
    JobStarted,
    LaneTrouble,
    LeaseLostEvent,
    PermissionDenied,
    Redelivered,
    SettleFailed,
    ThreadStuck,
    WorkerChanged,
)
from jetjobs.model.outcome import ErrorInfo
from jetjobs.observe.logs import ConsoleFormatter, JsonFormatter, log_event, set_up

LOGGER = "jetjobs.worker"


def finished(outcome: str = "succeeded", **fields: Any) -> JobFinished:
    return JobFinished("mail", "greet", "u1", fields.pop("attempt", 1), outcome, 0.0123, 0.5, **fields)


DEAD = finished("dead_lettered", attempt=5, reason="exhausted", error=ErrorInfo("ValueError", "boom", "trace"))

EVENTS: list[tuple[Event, int, str]] = [
    (finished(), logging.INFO, "job.succeeded"),
    (finished("retried", retry_in_s=2.0, error=ErrorInfo("ValueError", "boom")), logging.INFO, "job.retried"),
    (finished("parked", retry_in_s=1.0), logging.INFO, "job.parked"),
    (finished("released"), logging.INFO, "job.released"),
    (DEAD, logging.ERROR, "job.dead_lettered"),
    (JobStarted("mail", "greet", "u1", 1, 1, 0.1), logging.DEBUG, "job.started"),
    (JobEnqueued("mail", "greet", "u1", False, 0.1), logging.DEBUG, "job.enqueued"),
    (EnqueueFailed("mail", "greet", "QueueNotFound", "none", 0.1), logging.WARNING, "job.enqueue_failed"),
    (Redelivered("mail", "normal", 7, 2), logging.WARNING, "job.redelivered"),
    (finished("cancelled"), logging.INFO, "job.cancelled"),
    (LeaseLostEvent("mail", "greet", "u1"), logging.WARNING, "job.lease_lost"),
    (SettleFailed("mail", "greet", "u1", "no space"), logging.ERROR, "job.settle_failed"),
    (SettleFailed("mail", "greet", "u1", "full", "record"), logging.ERROR, "job.record_dropped"),
    (finished("dead_lettered", reason="crashed", delivery=0), logging.ERROR, "job.lost"),
    (finished("suspected"), logging.WARNING, "job.suspected"),
    (ConnectionLost("eof"), logging.WARNING, "nats.lost"),
    (ConnectionRestored(1.23456, "nats://a:1"), logging.WARNING, "nats.restored"),
    (PermissionDenied("publish", "$JS.ACK.jobs-work-mail.normal.>", False), logging.WARNING, "nats.denied"),
    (LaneTrouble("mail", "high", "409 Consumer Deleted"), logging.WARNING, "lane.trouble"),
    (WorkerChanged("ready", "3 lanes"), logging.INFO, "worker.ready"),
    (WorkerChanged("recycling", "10 stuck threads"), logging.WARNING, "worker.recycling"),
    (ThreadStuck("mail", "greet", "u1", 3), logging.WARNING, "worker.thread_stuck"),
]
IDS = [kind for _, _, kind in EVENTS]


def record_of(event: Event, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, LOGGER):
        log_event(event)
    assert len(caplog.records) == 1
    return caplog.records[0]


@pytest.mark.parametrize(("event", "level", "kind"), EVENTS, ids=IDS)
def test_each_event_is_one_line_and_one_json_object_of_its_level(
    event: Event, level: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = record_of(event, caplog)
    assert record.levelno == level
    assert vars(record)["event"] == kind
    assert "%" not in record.msg, "a constant message: facts are in the fields"
    line = as_json(record)
    assert (line["event"], line["level"]) == (kind, logging.getLevelName(level).lower())
    assert line["logger"] == LOGGER
    assert line["ts"].endswith("+00:00")


@pytest.mark.parametrize(("event", "level", "kind"), EVENTS, ids=IDS)
def test_a_line_below_the_level_is_not_made(
    event: Event, level: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level + 1, LOGGER):
        log_event(event)
    assert caplog.records == []


def test_a_repeated_violation_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    log_event(PermissionDenied("publish", "a.b", True))
    assert caplog.records == []


def test_every_kind_of_event_has_a_line() -> None:
    kinds = {type(event) for event, _, _ in EVENTS}
    assert kinds == set(Event.__args__)


# JSON


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


def test_the_line_of_a_dead_letter_has_everything(caplog: pytest.LogCaptureFixture) -> None:
    line = as_json(record_of(DEAD, caplog))
    del line["ts"]
    assert line == {
        "level": "error",
        "logger": LOGGER,
        "msg": "job dead-lettered",
        "event": "job.dead_lettered",
        "queue": "mail",
        "task": "greet",
        "job_id": "u1",
        "root_id": "u1",
        "attempt": 5,
        "delivery": 1,
        "stream_seq": 0,
        "outcome": "dead_lettered",
        "run_s": 0.0123,
        "wait_s": 0.5,
        "reason": "exhausted",
        "error_type": "ValueError",
        "error": "boom",
        "traceback": "trace",
    }


TRACE = "Traceback (most recent call last):\n  shop.py:3 in pay\n    charge()\n\nValueError: one\ntwo"


@pytest.mark.parametrize("outcome", ["retried", "dead_lettered"])
def test_the_line_of_a_failed_attempt_is_followed_by_its_traceback(
    outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = record_of(finished(outcome, error=ErrorInfo("ValueError", "one\ntwo", TRACE)), caplog)
    first, *others = ConsoleFormatter(colour=False).format(record).split("\n")
    assert first.endswith(": ValueError: one")
    assert others == [f"  {line}".rstrip() for line in TRACE.split("\n")]
    line = as_json(record)
    assert (line["traceback"], line["error"]) == (TRACE, "one\ntwo")


def test_a_traceback_cannot_fake_lines_or_colours(caplog: pytest.LogCaptureFixture) -> None:
    trace = "Traceback\n12:00:00 \u2713 forged\n\x1b[2J\r\u2028x"
    shown = ConsoleFormatter(colour=False).format(
        record_of(finished("retried", error=ErrorInfo("E", "x", trace)), caplog)
    )
    assert not {"\x1b", "\r", "\u2028"} & set(shown)
    assert all(line.startswith("  ") for line in shown.split("\n")[1:])


def test_an_error_without_text_is_its_type(caplog: pytest.LogCaptureFixture) -> None:
    shown = ConsoleFormatter(colour=False).format(
        record_of(finished("retried", error=ErrorInfo("MemoryError", "")), caplog)
    )
    assert shown.endswith(": MemoryError")


def test_a_failure_says_of_how_many_attempts_and_of_which_line_of_jobs(caplog: pytest.LogCaptureFixture) -> None:
    event = finished("retried", attempt=2, delivery=3, sequence=17, root_id="u0", max_attempts=5)
    record = record_of(event, caplog)
    line = as_json(record)
    fields = {name: line[name] for name in ("root_id", "delivery", "stream_seq", "max_attempts")}
    assert fields == {"root_id": "u0", "delivery": 3, "stream_seq": 17, "max_attempts": 5}
    assert "(attempt 2 of 5)" in ConsoleFormatter(colour=False).format(record)


def a_record(message: str = "hello", *args: Any, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("shop").makeRecord("shop", level, __file__, 1, message, args, None, extra=extra)


@pytest.mark.parametrize(
    "value",
    [object(), b"\xff", {1, 2}, ValueError("x"), {("a", 1): 2}, "line\nbreak", "žluť", None],
    ids=lambda value: type(value).__name__,
)
def test_any_extra_value_makes_a_line(value: Any) -> None:
    assert "thing" in as_json(a_record(thing=value))


def test_an_extra_value_cannot_overwrite_the_level_or_the_message() -> None:
    extra = {"level": "debug", "ts": "never"}
    line = as_json(
        logging.getLogger("shop").makeRecord("shop", logging.ERROR, "", 1, "real", (), None, extra=extra)
    )
    assert line["msg"] == "real"
    assert line["level"] == "error"
    assert line["ts"] != "never"


def test_an_exception_is_logged_with_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        record = a_record("hello %s", "Ada")
        record.exc_info = sys.exc_info()
    line = as_json(record)
    assert "ValueError: boom" in line["exception"]
    assert line["msg"] == "hello Ada"


def test_an_exception_of_a_child_process_is_logged_as_the_text_it_sent() -> None:
    record = logging.makeLogRecord(
        {
            "name": "mine",
            "levelno": 20,
            "levelname": "INFO",
            "msg": "it failed",
            "exc_text": "Traceback\nValueError: no",
        }
    )
    assert as_json(record)["exception"] == "Traceback\nValueError: no"
    assert ConsoleFormatter(False).format(record).endswith("mine: it failed\n  Traceback\n  ValueError: no")


# Console


def console(record: logging.LogRecord, *, colour: bool = False) -> str:
    """The line without its clock."""
    text = ConsoleFormatter(colour).format(record)
    return text if colour else text.split(" ", 1)[1]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (finished(), "✓ greet u1 succeeded in 12 ms"),
        (finished(attempt=2), "✓ greet u1 succeeded in 12 ms (attempt 2)"),
        (
            finished("retried", retry_in_s=90.0, error=ErrorInfo("ValueError", "boom")),
            "↻ greet u1 failed after 12 ms (attempt 1), retry in 1m30s: ValueError: boom",
        ),
        (
            finished("parked", retry_in_s=1.0, error=ErrorInfo("UnknownTask", "no worker knows task 'greet'")),
            "‖ greet u1 parked after 12 ms, next try in 1.0 s: UnknownTask: no worker knows task 'greet'",
        ),
        (finished("released"), "↩ greet u1 released after 12 ms"),
        (DEAD, "✗ greet u1 dead-lettered after 12 ms (attempt 5) [exhausted]: ValueError: boom\n  trace"),
        (WorkerChanged("ready", "3 lanes"), "worker ready  detail=3 lanes"),
        (WorkerChanged("quiet"), "worker quiet"),
        (ConnectionLost("eof"), "warning: connection lost  error=eof"),
    ],
)
def test_lines_for_people(event: Event, line: str, caplog: pytest.LogCaptureFixture) -> None:
    assert console(record_of(event, caplog)) == line


def test_an_outcome_that_has_no_mark_still_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert console(record_of(finished("odd"), caplog)).startswith("· greet u1 odd")


def test_lines_of_others_say_whose_they_are() -> None:
    assert console(a_record("paid", amount=5)) == "shop: paid  amount=5"
    assert console(a_record("odd", level=logging.WARNING)) == "warning: shop: odd"


def test_colour_only_where_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    dead = console(record_of(DEAD, caplog), colour=True)
    assert "\x1b[31m✗\x1b[0m greet \x1b[2mu1\x1b[0m \x1b[31mdead-lettered\x1b[0m after 12 ms" in dead
    assert "\x1b[32msucceeded\x1b[0m in 12 ms" in console(record_of(finished(), caplog), colour=True)
    assert "\x1b[33mwarning: \x1b[0mconnection lost" in console(
        record_of(ConnectionLost("x"), caplog), colour=True
    )
    assert "\x1b" not in console(record_of(DEAD, caplog))


def test_texts_from_outside_cannot_colour_a_coloured_line(caplog: pytest.LogCaptureFixture) -> None:
    hostile = "\x1b[2J\x07"
    event = JobFinished(
        "mail", hostile, hostile, 2, "retried", 0.1, 0.1, error=ErrorInfo(hostile, hostile, hostile)
    )
    shown = console(record_of(event, caplog), colour=True)
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


def test_a_line_names_its_job_once() -> None:
    fields: dict[str, Any] = {
        "job_id": "01a1e2531c847834a12f8c60fdba4d6e",
        "task": "pay",
        "queue": "mail",
        "attempt": 1,
    }
    record = a_record("paid", amount=5, root_id=fields["job_id"], **fields)
    assert console(record) == "shop: paid  amount=5  pay 01a1e2531c847834a12f8c60fdba4d6e"
    assert ConsoleFormatter(False, short=True).format(record).endswith("shop: paid  amount=5  pay 60fdba4d6e")
    again = a_record("paid", root_id="another", **{**fields, "attempt": 3})
    assert console(again) == "shop: paid  pay 01a1e2531c847834a12f8c60fdba4d6e attempt 3"


# Set up


@pytest.fixture
def standard_error(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What was written there. Logging as a worker sets it up is taken back afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("jetjobs")
    before = root.handlers[:], root.level, ours.level
    yield lambda: capsys.readouterr().err
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_off_a_terminal_lines_are_json_and_carry_the_running_job(standard_error: Callable[[], str]) -> None:
    set_up("info", "auto", lambda: {"job_id": "u9", "task": "greet"})
    logging.getLogger("shop").info("paid")
    line = json.loads(standard_error())
    assert (line["msg"], line["job_id"], line["task"]) == ("paid", "u9", "greet")


def test_a_line_that_names_its_job_keeps_it(standard_error: Callable[[], str]) -> None:
    set_up("info", "json", lambda: {"job_id": "u9"})
    log_event(finished())
    assert json.loads(standard_error())["job_id"] == "u1"


def test_every_line_says_which_app_and_worker_it_is_of(standard_error: Callable[[], str]) -> None:
    set_up("info", "json", dict, {"app": "shop", "worker_id": "w1"})
    logging.getLogger("shop").info("paid")
    logging.getLogger("shop").info("paid", extra={"app": "mine"})
    lines = [json.loads(line) for line in standard_error().splitlines()]
    assert [(line["app"], line["worker_id"]) for line in lines] == [("shop", "w1"), ("mine", "w1")]


def test_console_lines_may_be_asked_for(standard_error: Callable[[], str]) -> None:
    set_up("info", "console", dict)
    log_event(finished())
    assert "✓ greet u1 succeeded" in standard_error()


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["job.started", "job.succeeded", "job.lease_lost"]),
        ("info", ["job.succeeded", "job.lease_lost"]),
        ("warning", ["job.lease_lost"]),
        ("error", []),
    ],
)
def test_the_level_decides_what_is_shown(level: str, shown: list[str], standard_error: Callable[[], str]) -> None:
    set_up(level, "json", dict)
    log_event(JobStarted("mail", "greet", "u1", 1, 1, 0.1))
    log_event(finished())
    log_event(LeaseLostEvent("mail", "greet", "u1"))
    assert [json.loads(line)["event"] for line in standard_error().splitlines()] == shown


def test_debug_of_ours_is_not_debug_of_every_library(standard_error: Callable[[], str]) -> None:
    set_up("debug", "json", dict)
    logging.getLogger("nats").debug("chatter")
    assert standard_error() == ""
