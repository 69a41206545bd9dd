"""Error lines of the server about missing permissions."""

from __future__ import annotations

import pytest

from jetjobs.jetstream.transport.denials import MAX_REPORTED, Denials, read_violation
from jetjobs.jetstream.transport.nats_client import FastClient
from jetjobs.model.events import Event, PermissionDenied


@pytest.mark.parametrize(
    ("line", "verb", "subject"),
    [
        ("nats: 'Permissions Violation for Publish to \"Shop.X\"'", "publish", "Shop.X"),
        ('Permissions Violation for Subscription to "shop.*"', "subscription", "shop.*"),
        ('Permissions Violation for Subscription to "shop.>" using queue "q"', "subscription", "shop.>"),
        ('Permissions Violation for Subscription to "shop.a" (sid "7")', "subscription", "shop.a"),
    ],
)
def test_a_violation_names_its_subject(line: str, verb: str, subject: str) -> None:
    assert read_violation(line) == (verb, subject)


@pytest.mark.parametrize("line", ["Authorization Violation", "Stale Connection", "maximum payload exceeded", ""])
def test_other_errors_are_not_violations(line: str) -> None:
    assert read_violation(line) is None


def reported(*subjects: str) -> list[tuple[str, bool]]:
    events: list[Event] = []
    denials = Denials(FastClient(), "_INBOX_w", events.append, lambda: None)
    for subject in subjects:
        denials.report("publish", subject)
    return [(event.subject, event.repeated) for event in events if isinstance(event, PermissionDenied)]


def test_subjects_that_differ_only_in_an_id_are_reported_once() -> None:
    assert reported("a.work.q.normal.t.-.1", "a.work.q.normal.t.-.2", "a.work.q.later.t.-.2") == [
        ("a.work.q.normal.t.-.1", False),
        ("a.work.q.normal.t.-.2", True),
        ("a.work.q.later.t.-.2", False),
    ]
    assert [repeated for _, repeated in reported("$KV.a-running.1", "$KV.a-running.2", "$KV.a-done-q.t.1")] == [
        False,
        True,
        False,
    ]


def test_acks_and_inboxes_are_shown_by_what_they_have_in_common() -> None:
    acks = (
        "$JS.ACK.a-work-q.normal.1.5.5.17.0",
        "$JS.ACK.a-work-q.normal.2.6.6.17.0",
        "$JS.ACK.a-work-q.low.1.1.1.1.0",
    )
    assert reported(*acks) == [
        ("$JS.ACK.a-work-q.normal.>", False),
        ("$JS.ACK.a-work-q.normal.>", True),
        ("$JS.ACK.a-work-q.low.>", False),
    ]
    assert reported("$JS.ACK.a-work-q.normal.>") == [("$JS.ACK.a-work-q.normal.>", False)]
    assert reported("_INBOX_w.abc.1", "_INBOX_w.def") == [("_INBOX_w.>", False), ("_INBOX_w.>", True)]


def test_a_bounded_number_of_subjects_is_remembered() -> None:
    events: list[Event] = []
    denials = Denials(FastClient(), "_INBOX", events.append, lambda: None)
    for number in range(3 * MAX_REPORTED):
        denials.report("publish", f"a{number}")
    assert len(denials._reported) <= MAX_REPORTED
