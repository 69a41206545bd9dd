"""The flows of examples/flows.py run as the documentation says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest

from examples import flows
from jetjobs import JetJobs, RetryPolicy, Settings
from jetjobs.errors import FlowCancelled
from jetjobs.model.events import JobFinished
from tests.support.probe import Probe
from tests.support.workers import provisioned, running


@pytest.fixture
async def worked(settings_for: Callable[..., Settings]) -> AsyncIterator[JetJobs]:
    flows.app.configure(settings_for())
    flows.app._observers.clear()
    async with provisioned(flows.app) as app, running(app.worker(schedules=False)):
        yield app


async def test_an_order_is_charged_shipped_and_announced(worked: JetJobs) -> None:
    assert await (await flows.place_order(7)).result(10) == "order 7 is on its way with dhl"


async def test_a_broken_image_does_not_stop_the_gallery(worked: JetJobs) -> None:
    handle = await flows.upload(1, ["a.png", "b.txt", "c.png"], 7)
    assert await handle.result(20) == "user 7: a.png, c.png; 1 failed"
    assert (await flows.upload(1, ["a.png", "b.txt", "c.png"], 7)).duplicate


async def test_the_nightly_report_has_a_part_for_each_customer(worked: JetJobs) -> None:
    handle = await flows.nightly.enqueue(datetime(2026, 11, 18, tzinfo=UTC))
    assert await handle.result(10) == "2026-11-18: 13 from 3 customers"


async def test_the_diamond_ends_with_its_load_or_with_an_alert(
    worked: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows.stats, "retry", RetryPolicy(max_attempts=1))
    probe = Probe()
    worked.observe(probe)
    assert await (await flows.etl("sensors")).result(10) == 3
    await probe.wait(JobFinished, 1, lambda event: event.task == "vacuum")
    with pytest.raises(FlowCancelled):  # the largest of no rows does not exist
        await (await flows.etl("nothing")).result(10)
    await probe.wait(JobFinished, 1, lambda event: event.task == "alert")
