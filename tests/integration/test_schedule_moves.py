"""Schedules that have left a queue, and ticks that were moved by hand: all of it is taken back with the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.model.schedule import slot_token
from jetjobs.moving import MoveOutcome
from jetjobs.worker.worker import running
from tests.integration.test_schedules import HOUR, MINUTE, SECOND, now_of, planning, set_marker, slots_of, standing
from tests.support.probe import eventually
from tests.support.server import Truth

Edit = Callable[[JetJobs], Awaitable[object]]


@pytest.fixture
async def opened(app: JetJobs) -> Any:
    @app.task
    async def work() -> None: ...

    @app.task(queue="b")
    async def other() -> None: ...

    async with app:
        await app.provision()
        yield app


async def pause(app: JetJobs) -> None:
    await app.schedules.pause("s")


async def delete(app: JetJobs) -> None:
    await app.schedules.delete("s")


async def pause_and_resume(app: JetJobs) -> None:
    await app.schedules.pause("s")
    await app.schedules.resume("s")


async def delete_and_put(app: JetJobs) -> None:
    await app.schedules.delete("s")
    await app.schedules.put("s", "work", every=SECOND, queue="b")


@pytest.mark.parametrize("edit", [pause, delete])
async def test_nothing_fires_in_a_queue_it_has_just_left_once_it_is_off(
    opened: JetJobs, truth: Truth, edit: Edit
) -> None:
    await opened.schedules.put("s", "work", every=SECOND)
    await opened.schedules.put("s", "work", every=SECOND, queue="b")
    await edit(opened)
    off = slot_token(await now_of(opened))
    for queue in ("default", "b"):
        assert [uid for uid in slots_of(await standing(truth, queue)) if uid > off] == []


@pytest.mark.parametrize("edit", [pause_and_resume, delete_and_put])
async def test_no_slot_is_doubled_by_edits_right_after_a_move(opened: JetJobs, truth: Truth, edit: Edit) -> None:
    await opened.schedules.put("s", "work", every=SECOND)
    await opened.schedules.put("s", "work", every=SECOND, queue="b")
    await edit(opened)
    found = Counter(slots_of([*await standing(truth, "default"), *await standing(truth, "b")]))
    assert len(found) > 50
    assert {uid: count for uid, count in found.items() if count > 1} == {}


@pytest.mark.parametrize("edit", [pause, delete])
async def test_what_waits_for_its_jitter_in_a_queue_it_has_left_is_taken_back(
    opened: JetJobs, truth: Truth, edit: Edit
) -> None:
    await opened.schedules.put("s", "work", every=SECOND, jitter=HOUR)
    await opened.schedules.put("s", "work", every=SECOND, jitter=HOUR, queue="b")
    left = slots_of(await truth.jobs(lane="later"))
    assert left, "the definition before keeps the slots of two seconds"
    last = max(left)

    async def passed() -> bool:
        return slot_token(await now_of(opened)) > last

    await eventually(passed, 10)
    await edit(opened)
    assert await truth.jobs(lane="later") == []


async def test_ticks_are_found_though_their_definition_cannot_be_read(opened: JetJobs, truth: Truth) -> None:
    await opened.schedules.put("s", "work", every=SECOND)
    await truth.nc.request("$KV.jobs-schedules.s", b'{"v": 2}')
    await opened.schedules.delete("s")
    off = slot_token(await now_of(opened))
    assert [uid for uid in slots_of(await standing(truth)) if uid > off] == []

    await opened.schedules.put("s", "work", every=SECOND)
    await truth.nc.request("$KV.jobs-schedules.s", b'{"v": 2}')
    await opened.schedules.put("s", "work", every=SECOND, queue="b")
    found = Counter(slots_of([*await standing(truth, "default"), *await standing(truth, "b")]))
    assert {uid: count for uid, count in found.items() if count > 1 and uid > off} == {}


async def test_one_definition_without_a_generation_stops_no_other(opened: JetJobs, truth: Truth) -> None:
    await opened.schedules.put("good", "work", every=SECOND)
    await truth.nc.request("$KV.jobs-schedules.hand", b'{"name":"hand","task":"work","every":"PT10S"}')
    first = max(slots_of(await truth.jobs()))
    async with planning(opened):

        async def goes_on() -> bool:
            return max(slots_of(await truth.jobs())) > first

        await eventually(goes_on, 50)
    assert [info.schedule.name for info in await opened.schedules.list()] == ["good"]


@pytest.mark.parametrize("edit", [pause, delete])
@pytest.mark.parametrize("by", ["time", "lane"])
async def test_a_tick_that_was_moved_by_hand_is_still_taken_back(
    opened: JetJobs, truth: Truth, edit: Edit, by: str
) -> None:
    await opened.schedules.put("s", "work", every=10 * SECOND)
    moved = max(await truth.jobs(lane="later")).split(".")
    job_id = f"{moved[5]}-{moved[6]}"
    if by == "time":
        answer = await opened.jobs.reschedule(job_id, await now_of(opened) + HOUR)
    else:
        answer = await opened.jobs.set_priority(job_id, "high")
    assert answer.outcome is MoveOutcome.MOVED
    await edit(opened)
    assert await truth.jobs(lane="later") == []


async def test_a_moved_tick_that_has_not_begun_keeps_no_other_from_running(opened: JetJobs, truth: Truth) -> None:
    await opened.schedules.put("s", "work", every=SECOND, overlap="skip")
    soon = slot_token(await now_of(opened) + 4 * SECOND)
    subject = next(s for s in await truth.jobs(lane="later") if s.endswith(soon))
    answer = await opened.jobs.reschedule("-".join(subject.split(".")[5:7]), await now_of(opened) + HOUR)
    assert answer.outcome is MoveOutcome.MOVED

    async def ran_after() -> bool:
        done = await truth.done()
        return any(job_id.rsplit("-", 1)[1] > soon for job_id, r in done.items() if r["state"] == "succeeded")

    async with running(opened.worker()):
        await eventually(ran_after, 30)


async def test_slots_of_an_outage_that_a_pause_ends_are_counted(opened: JetJobs) -> None:
    await opened.schedules.put("s", "work", every=SECOND, misfire="all", misfire_limit=500)
    await set_marker(opened, "s", await now_of(opened) - 2 * MINUTE)
    paused = await opened.schedules.pause("s")
    assert 115 <= paused.missed <= 130
    assert (await opened.schedules.resume("s")).missed == paused.missed


async def test_the_last_slot_of_the_definition_before_is_the_last(opened: JetJobs, truth: Truth) -> None:
    await opened.schedules.put("s", "work", every=2 * SECOND)
    info = await opened.schedules.put("s", "work", every=HOUR)
    slot = max(slots_of(await truth.jobs()), default="")
    assert slot, "the definition before keeps the slots of two seconds"

    async def told() -> bool:
        last = (await opened.schedules.get("s")).last
        return last is not None and slot_token(last) == slot

    assert info.schedule is not None
    await eventually(told, 10)
