"""The plan of streams, lanes and buckets, and its comparison with the server."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.jetstream.topology import TopologyChange, check, difference
from jetjobs.jetstream.topology_plan import TopologyItem, plan
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.api import matches
from jetjobs.model.errors import TopologyConflict, TopologyMissing
from jetjobs.model.settings import QueueSettings
from jetjobs.model.wire.subjects import PULLED, Names

NAMES = Names("jobs")
SETTINGS = QueueSettings()
QUEUES = st.lists(st.sampled_from(["a", "b", "c", "mail"]), max_size=6)


def planned(*queues: str, settings: QueueSettings = SETTINGS, replicas: int = 1) -> dict[str, TopologyItem]:
    return {wanted.label: wanted for wanted in plan(NAMES, queues, settings, replicas)}


@given(QUEUES)
def test_the_same_input_gives_the_same_plan_in_any_order(queues: list[str]) -> None:
    first = plan(NAMES, queues, SETTINGS)
    assert first == plan(NAMES, queues, SETTINGS)
    assert first == plan(NAMES, reversed(queues), SETTINGS)
    assert first == plan(NAMES, [*queues, *queues], SETTINGS)


@given(QUEUES)
def test_a_plan_has_each_item_once_and_a_stream_before_its_lanes(queues: list[str]) -> None:
    wanted = plan(NAMES, queues, SETTINGS)
    places = [(one.stream, one.consumer) for one in wanted]
    assert len(set(places)) == len(places)
    for one in wanted:
        if one.consumer:
            assert places.index((one.stream, "")) < places.index((one.stream, one.consumer))


def test_a_queue_needs_a_work_stream_its_lanes_and_a_bucket() -> None:
    labels = list(planned("mail"))
    assert labels == [
        "dead-letter stream jobs-dead",
        "audit stream jobs-audit",
        "ledger stream jobs-ledger",
        "bucket jobs-running",
        "bucket jobs-locks",
        "bucket jobs-cancelled",
        "bucket jobs-workers",
        "bucket jobs-checkpoints",
        "bucket jobs-schedules",
        "bucket jobs-tokens",
        "bucket jobs-flows",
        "object store jobs-payloads",
        "work stream jobs-work-mail",
        "lane mail/high",
        "lane mail/normal",
        "lane mail/low",
        "lane mail/returned",
        "bucket jobs-done-mail",
    ]


def test_no_setting_of_a_work_stream_drops_jobs() -> None:
    config = planned("mail")["work stream jobs-work-mail"].config
    assert config["retention"] == "workqueue"
    assert (config["max_msgs"], config["max_bytes"], config["max_age"]) == (-1, -1, 0)
    assert not config.get("allow_msg_ttl")
    for lane in PULLED:
        # A worker dead-letters a job long before this limit, and the leader finds the job even if none does.
        assert planned("mail")[f"lane mail/{lane}"].config["max_deliver"] > SETTINGS.max_crashes + 1


def test_each_job_subject_matches_exactly_one_lane_of_its_stream() -> None:
    wanted = planned("mail")
    stream = wanted["work stream jobs-work-mail"].config["subjects"]
    for lane in PULLED:
        subject = NAMES.job("mail", lane, "greet", "-", "u1")
        assert sum(matches(pattern, subject) for pattern in stream) == 1
        filters = [wanted[f"lane mail/{other}"].config["filter_subject"] for other in PULLED]
        assert sum(matches(pattern, subject) for pattern in filters) == 1
    for lane in ("later", "retry", "gate", "mark"):
        subject = NAMES.job("mail", lane, "greet", "-", "u1")
        assert sum(matches(pattern, subject) for pattern in stream) == 1
    assert any(matches(pattern, NAMES.pin("mail")) for pattern in stream)


def test_settings_reach_the_plan() -> None:
    settings = QueueSettings(
        lease=timedelta(seconds=5),
        max_running=7,
        storage="memory",
        replicas=3,
        dead_max_age=timedelta(days=1),
        audit_max_age=timedelta(days=2),
    )
    wanted = planned("mail", settings=settings, replicas=1)
    lane = wanted["lane mail/low"].config
    assert (lane["ack_wait"], lane["max_ack_pending"]) == (5 * api.NS, 7)
    assert wanted["dead-letter stream jobs-dead"].config["max_age"] == 86400 * api.NS
    assert wanted["audit stream jobs-audit"].config["max_age"] == 2 * 86400 * api.NS
    for one in wanted.values():
        if not one.consumer:
            assert (one.config["storage"], one.config["num_replicas"]) == ("memory", 3)


def test_without_a_number_of_replicas_that_of_the_cluster_is_used() -> None:
    assert planned("mail", replicas=3)["bucket jobs-running"].config["num_replicas"] == 3


def test_a_plan_is_json() -> None:
    for one in plan(NAMES, ["mail"], SETTINGS):
        assert json.loads(json.dumps(one.config)) == one.config


# Compare


def as_stored(config: dict[str, Any]) -> dict[str, Any]:
    """As a server returns it: with additional keys and its own metadata, without false values."""
    there = {key: value for key, value in copy.deepcopy(config).items() if value or key not in ("max_age",)}
    if "subjects" in there:
        there["subjects"] = list(reversed(there["subjects"]))
    there["metadata"] = {**there.get("metadata", {}), "_nats.ver": "2.12.0", "team": "mail"}
    return {**there, "max_consumers": 5, "placement": {"cluster": "C1"}, "sealed": False}


@pytest.mark.parametrize("wanted", plan(NAMES, ["mail"], SETTINGS), ids=lambda wanted: wanted.label)
def test_additions_of_the_operator_are_not_a_difference(wanted: TopologyItem) -> None:
    assert difference(wanted.config, as_stored(wanted.config)) == {}


@pytest.mark.parametrize("wanted", plan(NAMES, ["mail"], SETTINGS), ids=lambda wanted: wanted.label)
def test_every_planned_key_with_another_value_is_a_difference(wanted: TopologyItem) -> None:
    for key, value in wanted.config.items():
        there = as_stored(wanted.config)
        there[key] = {} if key == "metadata" else ["other"] if key == "subjects" else "other"
        found = difference(wanted.config, there)
        assert list(found) == [key]
        assert found[key][1] == (sorted(value) if key == "subjects" else value)


def test_an_absent_key_equals_a_false_value() -> None:
    assert difference({"a": False, "b": 0, "c": ""}, {}) == {}
    assert difference({"a": True}, {}) == {"a": (None, True)}
    assert difference({"a": False}, {"a": True}) == {"a": (True, False)}


def test_comparing_changes_neither_side() -> None:
    wanted = plan(NAMES, ["mail"], SETTINGS)[3].config
    there = as_stored(wanted)
    before = copy.deepcopy((wanted, there))
    difference(wanted, there)
    assert (wanted, there) == before


# Check


def changes(*actions: Any) -> list[TopologyChange]:
    return [
        TopologyChange(wanted, action, {"ack_wait": (1, 2)} if action == "update" else {})
        for wanted, action in zip(plan(NAMES, ["mail"], SETTINGS), actions, strict=False)
    ]


def test_no_changes_pass_the_check() -> None:
    unchanged = changes("none", "none")
    check(unchanged)
    check([])
    assert [change.action for change in unchanged] == ["none", "none"]


def test_a_missing_item_raises_topology_missing() -> None:
    with pytest.raises(TopologyMissing, match="audit stream jobs-audit, ledger stream jobs-ledger") as caught:
        check(changes("none", "create", "create", "update"))
    assert caught.value.hint == "jetjobs setup apply"


def test_a_difference_raises_a_conflict_that_names_the_keys() -> None:
    with pytest.raises(TopologyConflict, match=r"audit stream jobs-audit \(ack_wait\)"):
        check(changes("none", "update"))
