"""Slots: taken, given back, never more than there are."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.worker.intake.slots import Slots


def test_no_more_slots_are_taken_than_there_are() -> None:
    slots = Slots(2, {})
    assert [slots.take("a"), slots.take("b"), slots.take("a")] == [True, True, False]
    assert (slots.busy, slots.free) == (2, 0)
    slots.give_back("a")
    assert slots.take("b")


def test_a_queue_with_a_cap_leaves_room_for_others() -> None:
    slots = Slots(3, {"reports": 1})
    assert slots.take("reports")
    assert not slots.take("reports")
    assert (slots.free_for("reports"), slots.free_for("mail")) == (0, 2)
    assert slots.take("mail")
    slots.give_back("reports")
    assert slots.free_for("reports") == 1


def test_a_cap_above_the_total_does_not_make_room() -> None:
    slots = Slots(1, {"mail": 5})
    assert slots.free_for("mail") == 1
    assert slots.take("mail")
    assert slots.free_for("mail") == 0


def test_a_refused_take_changes_nothing() -> None:
    slots = Slots(1, {"mail": 0})
    assert not slots.take("mail")
    assert (slots.busy, slots.free, slots.free_for("mail")) == (0, 1, 0)


@given(
    st.integers(1, 8),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 8)),
    st.lists(st.sampled_from("abcABC")),
)
def test_counts_agree_with_what_is_held(total: int, caps: dict[str, int], steps: list[str]) -> None:
    """Small letters take a slot of their queue, capital ones give one back."""
    slots = Slots(total, caps)
    held: list[str] = []
    for step in steps:
        queue = step.lower()
        if step != queue:
            if queue in held:
                held.remove(queue)
                slots.give_back(queue)
        elif slots.take(queue):
            held.append(queue)
        assert slots.busy == len(held) <= total
        assert slots.free == total - len(held)
        for capped, cap in caps.items():
            assert held.count(capped) <= cap
            assert slots.free_for(capped) == min(slots.free, cap - held.count(capped))


async def test_idle_waits_until_nothing_runs() -> None:
    slots = Slots(2, {"mail": 1})
    await asyncio.wait_for(slots.idle(), 1)
    slots.take("mail")
    slots.take("other")
    waiting = asyncio.create_task(slots.idle())
    slots.give_back("mail")
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.give_back("other")
    await asyncio.wait_for(waiting, 1)
    assert slots.free == 2


async def test_idle_waits_again_after_a_take() -> None:
    slots = Slots(1, {})
    slots.take("a")
    slots.give_back("a")
    slots.take("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slots.idle(), 0)
