"""Observers are notified of the kinds they subscribed to, independently of each other."""

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


def test_an_observer_gets_all_kinds_unless_it_names_some() -> None:
    observers, everything, some = Observers(), list[Event](), list[Event]()
    observers.add(everything.append, ())
    observers.add(some.append, {JobEnqueued, WorkerChanged})
    for event in (ENQUEUED, RESTORED, CHANGED):
        observers.notify(event)
    assert everything == [ENQUEUED, RESTORED, CHANGED]
    assert some == [ENQUEUED, CHANGED]


def test_a_failing_observer_is_logged_and_the_next_is_notified(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("no")

    observers, notified = Observers(), list[Event]()
    observers.add(fail, ())
    observers.add(notified.append, ())
    with caplog.at_level(logging.ERROR):
        observers.notify(ENQUEUED)
    assert notified == [ENQUEUED]
    assert [getattr(record, "event", "") for record in caplog.records] == ["observer.failed"]


def test_one_that_was_added_twice_stays_once() -> None:
    observers, notified = Observers(), list[Event]()
    append = notified.append
    observers.add(append, (JobEnqueued,))
    observers.add(append, ())
    observers.remove(append)
    observers.notify(ENQUEUED)
    observers.notify(RESTORED)
    assert notified == [ENQUEUED, RESTORED]
    observers.remove(append)
    assert not observers
    with pytest.raises(ValueError, match="is not in list"):
        observers.remove(append)


def test_an_observer_may_remove_itself_while_it_is_notified() -> None:
    observers, notified = Observers(), list[Event]()

    def once(event: Event) -> None:
        notified.append(event)
        observers.remove(once)

    observers.add(once, ())
    observers.add(notified.append, ())
    observers.notify(ENQUEUED)
    observers.notify(RESTORED)
    assert notified == [ENQUEUED, ENQUEUED, RESTORED]


@pytest.mark.parametrize("kind", [str, Event, "JobEnqueued", ENQUEUED])
def test_observers_of_unknown_kinds_are_refused(kind: Any) -> None:
    observers, notified = Observers(), list[Event]()
    with pytest.raises(DefinitionError, match="invalid kind of event"):
        observers.add(notified.append, (JobEnqueued, kind))
    assert not observers


@pytest.mark.parametrize("observer", [None, "print", 5])
def test_an_observer_that_cannot_be_called_is_refused(observer: Any) -> None:
    with pytest.raises(DefinitionError, match="invalid observer"):
        Observers().add(observer, ())


def test_threads_may_add_and_remove() -> None:
    observers, notified, stop = Observers(), Counter[int](), threading.Event()

    def come_and_go() -> None:
        passing: list[Event] = []
        while not stop.is_set():
            observers.add(passing.append, (JobEnqueued,))
            observers.remove(passing.append)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        observers.add(lambda event, number=number: notified.update([number]), (JobEnqueued,))  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()
    observers.notify(ENQUEUED)
    assert notified == Counter(range(200))
