"""Live events on the wire, their subjects, and the view of `top`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from jetjobs import JetJobs
from jetjobs.cli.commands.events import line
from jetjobs.cli.commands.top import Top
from jetjobs.cli.terminal.top_screen import Snapshot, plain, shares, view
from jetjobs.model.events import ConnectionLost, JobFinished, JobStarted, LeaseLostEvent, WorkerChanged
from jetjobs.model.job import running_status
from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.views.live_events import KINDS, LiveEvent, event_subjects, live_event, read_live
from jetjobs.model.views.queue_info import LaneState, QueueState
from jetjobs.model.wire.subjects import Names

NOW = datetime(2027, 1, 1, tzinfo=UTC)
TWO_S = timedelta(seconds=2)

DEAD = JobFinished(
    "mail", "send", "j1", 3, "dead_lettered", 1.5, 0.25, "exhausted", 0.0, ErrorInfo("ValueError", "no" * 500)
)


def test_an_event_comes_back_as_it_went() -> None:
    for event in (
        DEAD,
        JobStarted("mail", "send", "j1", 1, 1, 0.5),
        LeaseLostEvent("mail", "", ""),
        WorkerChanged("ready", "10 slots"),
    ):
        published = live_event(event, "w1", 12.5)
        assert published is not None
        assert published.kind in KINDS
        assert read_live(published.kind, published.to_wire(), 99.0) == published


def test_what_has_its_default_is_not_sent_and_texts_are_cut() -> None:
    published = live_event(DEAD, "w1", 12.5)
    assert published is not None
    wire = json.loads(published.to_wire())
    assert wire.keys() == {
        "at", "worker", "queue", "task", "job_id", "attempt", "wait_s", "run_s", "reason", "error_type", "error",
    }  # fmt: skip
    assert len(wire["error"]) == 300
    assert live_event(ConnectionLost("gone"), "w1", 1.0) is None


@given(st.binary(max_size=60) | st.builds(lambda v: json.dumps(v).encode(), st.dictionaries(
    st.sampled_from(["at", "worker", "attempt", "run_s", "skipped", "id", "progress"]),
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
)))  # fmt: skip
def test_whatever_comes_is_read_or_dropped(data: bytes) -> None:
    event = read_live("job.succeeded", data, 5.0)
    assert event is None or json.dumps(event.as_dict())
    if event is not None:
        assert "\n" not in line(event)


def test_a_watcher_subscribes_to_what_it_wants() -> None:
    names = Names("jobs")
    assert event_subjects(names, None, None, ()) == ["jobs.events.job.*.*.*.*", "jobs.events.worker.*.*"]
    assert event_subjects(names, "mail", None, ()) == ["jobs.events.job.*.mail.*.*"]
    assert event_subjects(names, None, "send", ["job.st*", "job.dead_lettered", "worker.*"]) == [
        "jobs.events.job.dead_lettered.*.send.*",
        "jobs.events.job.started.*.send.*",
    ]
    assert event_subjects(names, None, None, "worker.r*") == [
        "jobs.events.worker.ready.*",
        "jobs.events.worker.recycling.*",
    ]
    for subject in (names.job_event("succeeded", "mail", "send", "j1"), "jobs.events.job.succeeded.mail.send.j1"):
        assert names.kind_of_event(subject) == "job.succeeded"
    assert names.worker_event("ready", "web.1 a") == "jobs.events.worker.ready.web-1-a"


def test_a_line_for_people_is_one_line() -> None:
    times = timedelta(seconds=0.1), timedelta(seconds=0.5), timedelta(seconds=3)
    event = LiveEvent("job.retried", NOW, "w\x1b[2J1", "mail", "send", "j1", 2, *times, "", "E", "a\nb")
    shown = line(event)
    assert shown.isprintable()
    for text in ("job.retried", "mail/send  j1", "attempt 2", "ran 500 ms", "retry in 3.0 s", "E: a b"):
        assert text in shown


def _snapshot(queues: int, jobs: int) -> Snapshot:
    lanes = (LaneState("normal", NOW, 5, 1, 0, 0, 0, None),)
    states = [
        QueueState(f"queue-{i}", NOW, None, lanes, 3, 0, 0, TWO_S, 99, 1, 1, 4, 1.0, 0.0) for i in range(queues)
    ]
    record = {"queue": "queue-0", "task": "count", "started_at": 1.0, "progress": 0.5, "message": "half\n"}
    return Snapshot(10.0, states, [running_status(f"{i:032}", record) for i in range(jobs)], [])


@given(st.integers(1, 200), st.integers(1, 80), st.integers(0, 60), st.integers(0, 60))
def test_the_view_has_exactly_the_rows_there_are(columns: int, rows: int, queues: int, jobs: int) -> None:
    lines = view(_snapshot(queues, jobs), columns, rows, "foot")
    assert len(lines) == rows
    assert lines[-1] == "foot"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(0, 100))
def test_shares_fill_the_room_and_no_more(wanted: list[int], room: int) -> None:
    given_ = shares(wanted, room)
    assert all(g <= w for g, w in zip(given_, wanted, strict=True))
    assert sum(given_) == min(room, sum(wanted))


def test_the_filter_keeps_what_has_the_text_in_a_name() -> None:
    shown = _snapshot(12, 2).filtered("QUEUE-1")
    assert [queue.queue for queue in shown.queues] == ["queue-1", "queue-10", "queue-11"]
    assert shown.running == []
    assert len(_snapshot(3, 2).only("queue-0", "count").running) == 2
    assert "… 5 more" in "\n".join(view(_snapshot(8, 0), 80, 12, ""))


async def test_a_column_is_shown_whole_or_not_at_all() -> None:
    """The screen draws one column less than the terminal has."""
    lanes = (LaneState("normal", NOW, 123_456, 1, 0, 0, 0, None),)
    state = replace(_snapshot(1, 0).queues[0], queue="q" * 13, lanes=lanes)
    top = Top(JetJobs("test"), 1.0)
    top._snapshot = Snapshot(1.0, [state], [], [])
    top._paused = True
    head, row = top.lines(40, 24)[2:4]
    assert (head, row) == (f"{'QUEUE':<13}  STATE    QUEUED", f"{'q' * 13}  running  123,456")


async def test_the_heading_of_a_filtered_view_counts_everything() -> None:
    top = Top(JetJobs("test"), 1.0)
    top._snapshot = _snapshot(3, 2)
    top._paused = True
    whole = top.lines(80, 24)[0]
    for key in "/count\r":
        top._on_key(key)
    lines = top.lines(80, 24)
    assert lines[0] == whole
    assert "15 queued  3 running" in whole
    text = "\n".join(lines)
    assert "queue-1" not in text
    assert text.count("count  ") == 2


def test_columns_stay_in_line_whatever_a_message_holds() -> None:
    record = {"queue": "q", "task": "count", "started_at": 1.0, "progress": 0.5, "message": "a\x1b[2J\tb\x07"}
    jobs = [running_status("j1", record), running_status("j2", {**record, "message": "plain"})]
    head, *rows = plain(Snapshot(10.0, [], jobs, []), only_running=True)
    assert all(row.isprintable() for row in rows)
    assert [row.index("j") for row in rows] == [head.index("JOB")] * 2
