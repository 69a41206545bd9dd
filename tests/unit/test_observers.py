"""Observers: told of the kinds they asked for, each for itself."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest

from jetjobs.model.errors import DefinitionError
from jetjobs.model.events import ConnectionRestored, Event, JobEnqueued, WorkerChanged
from jetjobs.observe.observers import Observers

ENQUEUED = JobEnqueued("mail", "greet", "u1", False, 0.001)
RESTORED = ConnectionRestored(1.0, "nats://a:1")
CHANGED = WorkerChanged("ready")


def test_all_kinds_are_told_unless_some_are_named() -> None:
    observers, everything, some = Observers(), list[Event](), list[Event]()
    observers.add(everything.append, ())
    observers.add(some.append, {JobEnqueued, WorkerChanged})
    for event in (ENQUEUED, RESTORED, CHANGED):
        observers.notify(event)
    assert everything == [ENQUEUED, RESTORED, CHANGED]
    assert some == [ENQUEUED, CHANGED]


def test_one_that_fails_is_logged_and_the_next_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("no")

    observers, told = Observers(), list[Event]()
    observers.add(fail, ())
    observers.add(told.append, ())
    with caplog.at_level(logging.ERROR):
        observers.notify(ENQUEUED)
    assert told == [ENQUEUED]
    assert [getattr(record, "event", "") for record in caplog.records] == ["observer.failed"]


def test_one_that_was_added_twice_stays_once() -> None:
    observers, told = Observers(), list[Event]()
    append = told.append
    observers.add(append, (JobEnqueued,))
    observers.add(append, ())
    observers.remove(append)
    observers.notify(ENQUEUED)
    observers.notify(RESTORED)
    assert told == [ENQUEUED, RESTORED]
    observers.remove(append)
    assert not observers
    with pytest.raises(ValueError, match="is not in list"):
        observers.remove(append)


def test_one_may_leave_while_it_is_told() -> None:
    observers, told = Observers(), list[Event]()

    def once(event: Event) -> None:
        told.append(event)
        observers.remove(once)

    observers.add(once, ())
    observers.add(told.append, ())
    observers.notify(ENQUEUED)
    observers.notify(RESTORED)
    assert told == [ENQUEUED, ENQUEUED, RESTORED]


@pytest.mark.parametrize("kind", [str, Event, "JobEnqueued", ENQUEUED])
def test_what_is_no_kind_of_event_is_refused(kind: Any) -> None:
    observers, told = Observers(), list[Event]()
    with pytest.raises(DefinitionError, match="invalid kind of event"):
        observers.add(told.append, (JobEnqueued, kind))
    assert not observers


@pytest.mark.parametrize("observer", [None, "print", 5])
def test_what_cannot_be_called_is_no_observer(observer: Any) -> None:
    with pytest.raises(DefinitionError, match="invalid observer"):
        Observers().add(observer, ())


def test_threads_may_add_and_remove() -> None:
    observers, told, stop = Observers(), Counter[int](), threading.Event()

    def come_and_go() -> None:
        passing: list[Event] = []
        while not stop.is_set():
            observers.add(passing.append, (JobEnqueued,))
            observers.remove(passing.append)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        observers.add(lambda event, number=number: told.update([number]), (JobEnqueued,))  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()
    observers.notify(ENQUEUED)
    assert told == Counter(range(200))
