"""Live events on the wire, and their subjects."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from jetjobs.cli.commands.events import line
from jetjobs.model.events import ConnectionLost, JobFinished, JobStarted, LeaseLostEvent, WorkerChanged
from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.views.live_events import KINDS, LiveEvent, event_subjects, live_event, read_live
from jetjobs.model.wire.subjects import Names

NOW = datetime(2027, 1, 1, tzinfo=UTC)

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
