"""Streams of another version of jetjobs are refused with one error, and left alone."""

from __future__ import annotations

import pytest

from jetjobs import JetJobs
from jetjobs.model.errors import TopologyConflict
from tests.conftest import MakeApp
from tests.support.layouts import STREAMS, change_layout
from tests.support.server import Truth
from tests.support.workers import provisioned


def with_task(app: JetJobs) -> JetJobs:
    @app.task
    async def work() -> None: ...

    return app


@pytest.mark.parametrize("version", ["1", "3"])
async def test_an_app_does_not_open_on_streams_of_another_layout(
    make_app: MakeApp, truth: Truth, version: str
) -> None:
    async with provisioned(with_task(make_app())):
        await change_layout(truth, version)
    before = [await truth.api(f"STREAM.INFO.{stream}") for stream in STREAMS]
    app = with_task(make_app())
    with pytest.raises(TopologyConflict) as caught:
        await app.open()
    assert str(caught.value) == (
        "streams of another version of jetjobs: jobs-dead, jobs-work-default "
        f"(layout {version}; this version uses layout 2)"
    )
    assert "`jetjobs dev --fresh`" in (caught.value.hint or "")
    assert "delete these streams" in (caught.value.hint or "")
    assert not app.is_open
    after = [await truth.api(f"STREAM.INFO.{stream}") for stream in STREAMS]
    assert [info["config"] for info in after] == [info["config"] for info in before]


async def test_an_open_app_neither_provisions_nor_verifies_streams_of_another_layout(
    app: JetJobs, truth: Truth
) -> None:
    with_task(app)
    async with provisioned(app):
        await change_layout(truth, "1")
        for attempt in (app.plan, app.provision, app.verify):
            with pytest.raises(TopologyConflict, match="jobs-dead, jobs-work-default"):
                await attempt()


async def test_an_old_dead_letter_stream_alone_is_refused_when_queues_are_provisioned(
    app: JetJobs, truth: Truth
) -> None:
    with_task(app)
    async with provisioned(app):
        await change_layout(truth, "1")
        await truth.js.delete_stream("jobs-work-default")
    async with app:
        with pytest.raises(TopologyConflict, match="jobs-dead"):
            await app.provision()
        assert not await truth.has_stream("jobs-work-default")


async def test_a_worker_does_not_start_on_a_queue_of_another_layout(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        await change_layout(truth, "1")
        with pytest.raises(TopologyConflict, match="jobs-dead, jobs-work-default"):
            await app.worker().run()


async def test_streams_without_a_layout_are_compared_as_before(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        config = (await truth.api("STREAM.INFO.jobs-dead"))["config"]
        await truth.api("STREAM.UPDATE.jobs-dead", {**config, "metadata": {}})
    async with app:
        changed = [change for change in await app.plan() if change.action != "none"]
        assert [sorted(change.diff) for change in changed] == [["metadata"]]
        await app.provision()
        await app.verify()


async def test_the_doctor_reports_the_layout_and_skips_the_checks_that_depend_on_it(
    app: JetJobs, truth: Truth
) -> None:
    with_task(app)
    async with provisioned(app):
        await change_layout(truth, "1")
    found = await app.doctor()
    failed = [finding for finding in found if finding.level == "fail"]
    assert [(finding.area, finding.check) for finding in failed] == [("topology", "layout")]
    assert "jobs-work-default" in failed[0].text
    assert "`jetjobs dev --fresh`" in failed[0].hint
    assert {finding.area for finding in found if finding.check == "layout"} >= {"topology", "queues", "workers"}
