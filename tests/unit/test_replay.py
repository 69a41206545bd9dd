"""Replays as values: run id, options, and the replays recorded in the job."""

from __future__ import annotations

import json

import pytest

from jetjobs.admin import DeadLetter
from jetjobs.errors import DefinitionError
from jetjobs.jetstream.jobs.dead_letters import read_letter
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.model.views.dead_letter import MAX_REPLAYS_BYTES, ReplayOptions, provenance, run_of


def letter(sequence: int = 7, **headers: str) -> DeadLetter:
    named = {"Jetjobs-" + name.replace("_", "-"): value for name, value in headers.items()}
    return read_letter(StoredMessage("jobs.dead.default.work.mine", sequence, named, b"{}", 1_700_000_000.0))


def test_the_run_id_of_a_replay_is_derived_from_its_letter() -> None:
    assert run_of(letter(Run="a")) == run_of(letter(Run="a", Attempt="3"))
    assert len({run_of(letter(Run="a")), run_of(letter(Run="b")), run_of(letter(8, Run="a"))}) == 3


def test_a_replay_records_by_whom_when_why_how_often_and_the_cause_of_death() -> None:
    cause = json.dumps({"reason": "exhausted", "type": "ValueError", "text": "no " + "x" * 300})
    first = provenance(letter(Cause=cause, Attempt="3"), ReplayOptions("ada", "fixed"), 5.0)
    (entry,) = json.loads(first)["replays"]
    assert (entry["by"], entry["at"], entry["why"], entry["attempts"]) == ("ada", 5.0, "fixed", 3)
    assert entry["died_of"].startswith("exhausted: ValueError: no x")
    assert len(entry["died_of"]) == 200
    second = json.loads(provenance(letter(Cause=cause, Replay=first), ReplayOptions("eve"), 6.0))
    assert (second["number"], [entry["by"] for entry in second["replays"]]) == (2, ["ada", "eve"])


def test_the_recorded_replays_are_bounded_and_their_number_keeps_counting() -> None:
    past = ""
    for number in range(1, 9):
        dead = letter(Replay=past) if past else letter()
        past = provenance(dead, ReplayOptions("☃" * 500, "☃" * 500), float(number))
        assert len(past) <= MAX_REPLAYS_BYTES
        found = json.loads(past)
        assert found["number"] == number
        assert found["replays"][-1]["at"] == number
    plain = past = ""
    for number in range(1, 9):
        plain = provenance(letter(Replay=plain) if plain else letter(), ReplayOptions("ada"), float(number))
    assert [entry["at"] for entry in json.loads(plain)["replays"]] == [4.0, 5.0, 6.0, 7.0, 8.0]


@pytest.mark.parametrize(
    "odd", ["", "{", "[]", "5", '{"number":1e999,"replays":[]}', '{"number":"x","replays":[]}', "[" * 5000]
)
def test_unreadable_replays_count_as_none(odd: str) -> None:
    found = letter(Replay=odd)
    assert (found.replay_count, found.replays) == (0, ())
    assert json.loads(provenance(found, ReplayOptions(), 1.0))["number"] == 1


def test_headers_for_the_server_are_not_part_of_a_letter() -> None:
    headers = {"Nats-Expected-Last-Subject-Sequence": "0", "nats-msg-id": "x", "X-Tenant": "acme"}
    found = read_letter(StoredMessage("jobs.dead.default.work.mine", 7, headers, b"{}", 1_700_000_000.0))
    assert found.headers == {"X-Tenant": "acme"}


def test_options_are_validated_before_anything_is_changed() -> None:
    ReplayOptions("x" * 500, "x" * 500, "queue").check()
    for order in (ReplayOptions(by="x" * 501), ReplayOptions(reason="x" * 501), ReplayOptions(to_queue="a.b")):
        with pytest.raises(DefinitionError):
            order.check()
