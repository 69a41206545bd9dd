"""Progress and checkpoint requests of a child: throttled, answered, and closed with the job."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from jetjobs.model.errors import AttemptError, JetJobsError, LeaseLost
from jetjobs.worker.isolation import rpc as asking
from jetjobs.worker.isolation.channel import Channel, Frame
from jetjobs.worker.isolation.rpc import ChildServices


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one), Channel(other)


def received(worker: Channel) -> Frame:
    frame = worker.receive()
    assert frame is not None
    return frame


def test_of_many_reports_the_first_is_sent_at_once_and_the_last_after_the_interval(
    ends: tuple[Channel, Channel],
) -> None:
    child, worker = ends
    services = ChildServices(child)
    for n in range(10_000):
        services.report(None, n / 10_000, None)
    assert received(worker).head["fraction"] == 0.0
    frame = received(worker)
    while frame.head["fraction"] < 0.9999:  # a slow machine comes by the pace in between
        frame = received(worker)
    services.close()


def test_pending_progress_is_sent_before_the_end(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PROGRESS_EVERY_S", 3600.0)
    child, worker = ends
    services = ChildServices(child)
    services.report(None, 0.1, None)
    services.report(None, 0.2, None)
    services.report(None, 0.3, "last")
    services.close()
    child.send(Frame({"kind": "returned"}))
    heads = [received(worker).head for _ in range(3)]
    assert heads == [
        {"kind": "progress", "fraction": 0.1, "message": None},
        {"kind": "progress", "fraction": 0.3, "message": "last"},
        {"kind": "returned"},
    ]


def test_progress_is_sent_at_once_if_no_timer_can_be_started(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    child, worker = ends
    services = ChildServices(child)
    for n in range(3):
        services.report(None, n / 10, None)
    assert [received(worker).head["fraction"] for _ in range(3)] == [0.0, 0.1, 0.2]


def test_after_the_job_nothing_goes_through(ends: tuple[Channel, Channel]) -> None:
    child, worker = ends
    services = ChildServices(child)
    services.close()
    services.report(None, 0.5, None)
    with pytest.raises(AttemptError):
        services.save_sync(None, b"1")
    child.send(Frame({"kind": "returned"}))
    assert received(worker).head == {"kind": "returned"}


def test_a_forked_copy_has_no_part_in_the_channel(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, worker = ends
    services = ChildServices(child)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    services.report(None, 0.5, None)
    with pytest.raises(AttemptError, match="forked"):
        services.load_sync(None)
    child.send(Frame({"kind": "returned"}))
    assert received(worker).head == {"kind": "returned"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"kind": "refused", "type": "LeaseLost", "text": "gone", "hint": None}, LeaseLost),
        ({"kind": "refused", "type": "timedelta", "text": "odd", "hint": "x"}, JetJobsError),
    ],
)
def test_an_error_is_the_same_in_the_child(
    ends: tuple[Channel, Channel], answer: dict[str, object], kind: type[JetJobsError]
) -> None:
    child, worker = ends
    worker.send(Frame(json.loads(json.dumps(answer))))
    with pytest.raises(kind) as caught:
        ChildServices(child).save_sync(None, b"1")
    assert type(caught.value) is kind
    assert received(worker) == Frame({"kind": "save"}, b"1")


def test_a_value_is_distinguished_from_none(ends: tuple[Channel, Channel]) -> None:
    child, worker = ends
    services = ChildServices(child)
    worker.send(Frame({"kind": "kept", "none": True}))
    worker.send(Frame({"kind": "kept", "none": False}, b"null"))
    assert [services.load_sync(None), services.load_sync(None)] == [None, b"null"]


def test_a_worker_that_is_gone_is_a_lost_lease() -> None:
    one, other = socket.socketpair()
    other.close()
    with one:
        services = ChildServices(Channel(one))
        with pytest.raises((LeaseLost, ConnectionError)):
            services.load_sync(None)
