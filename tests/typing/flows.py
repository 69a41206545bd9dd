"""Steps of flows keep the parameters and results of their tasks. Each ignore is an error that must be reported."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime
from typing import Any, assert_type

from examples.flows import (
    Image,
    Parcel,
    Receipt,
    alert,
    app,
    charge,
    clean,
    customers,
    extract,
    gallery,
    load,
    nightly,
    notify,
    report,
    resize,
    ship,
    summary,
    vacuum,
)
from jetjobs import Failed, Flow, FlowHandle, FlowStatus, JobHandle


@app.task
def decide(order: int) -> Flow[Parcel]:
    return Flow.of(charge.bind(order).then(ship, "dhl"))


@app.task
async def perhaps(order: int) -> Flow[Parcel]:
    if order:
        return Flow.of(charge.bind(order).then(ship, carrier="dhl"))
    return Flow.value(Parcel(order=0, carrier="none"))


@app.task
async def other(order: int) -> Flow[str]:
    return Flow.of(charge.bind(order).then(ship, carrier="dhl"))  # type: ignore[arg-type]


async def chains() -> None:
    handle = await charge.bind(7).then(ship, carrier="dhl").then(notify).enqueue()
    assert_type(handle, FlowHandle[str])
    assert_type(await handle.result(), str)
    assert_type(await handle, str)
    assert_type(await handle.status(), FlowStatus)
    async for status in handle.follow():
        assert_type(status, FlowStatus)
    assert_type(
        await charge.options(queue="bank", step="pay").bind(7).then(ship, "dhl").enqueue(), FlowHandle[Parcel]
    )
    charge.bind(7).then(notify)  # type: ignore[arg-type]
    charge.bind(7).then(ship)  # type: ignore[call-arg]
    charge.bind(7).then(ship, carrier=7)  # type: ignore[arg-type]


async def groups(paths: list[str], day: datetime) -> None:
    flow = Flow("upload", id="upload-7", deadline="2h", on_failure="cancel")
    assert_type(flow.add(charge, 7), Receipt)
    assert_type(flow.add(charge.settled, 7), Receipt | Failed)
    assert_type(flow.add(charge.options(max_attempts=2).settled, 7), Receipt | Failed)
    assert_type(flow.map(resize, paths, width=800), list[Image])
    images = flow.map(resize.settled, paths, 800)
    assert_type(images, list[Image | Failed])
    assert_type(flow.add(gallery, images, 7), str)
    assert_type(flow.map(report, flow.add(customers, day), day), list[int])
    assert_type(flow.returns(flow.add(gallery, images, 7)), Flow[str])
    assert_type(await app.enqueue_flow(flow.returns(flow.add(gallery, images, 7))), FlowHandle[str])
    flow.map(resize, paths)  # type: ignore[call-arg]
    flow.map(resize, [1, 2], width=800)  # type: ignore[arg-type]
    flow.add(gallery, paths, 7)  # type: ignore[arg-type]
    flow.add(summary, images, day)  # type: ignore[arg-type]
    Flow("upload", on_failure="settled")  # type: ignore[arg-type]


async def graphs() -> None:
    flow = Flow("etl")
    raw = flow.add(extract, "sensors")
    rows = flow.add(load.options(priority="high", step="load"), flow.add(clean, raw), {"rows": 1})
    assert_type(rows, int)
    flow.after(rows, raw).add(vacuum)
    assert_type(flow.after(rows).map(resize, ["a.png"], 800), list[Image])
    flow.on_failed(alert, text="etl")
    flow.on_failed(alert)  # type: ignore[call-arg]
    flow.add(clean, rows)  # type: ignore[arg-type]


async def returned(day: datetime) -> None:
    assert_type(await nightly.enqueue(day), JobHandle[str])
    assert_type(await nightly.options(key="k").enqueue(day), JobHandle[str])
    plain: Coroutine[Any, Any, Flow[str]] = nightly(day)
    assert_type(await plain, Flow[str])
    assert_type(decide(7), Flow[Parcel])
    assert_type(await decide.enqueue(7), JobHandle[Parcel])
    assert_type(await perhaps.enqueue(7), JobHandle[Parcel])
    flow = Flow("outer")
    assert_type(flow.add(nightly, day), str)
    assert_type(flow.map(decide, [1, 2]), list[Parcel])
    flow.add(notify, flow.add(decide, 7))
