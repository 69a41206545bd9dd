"""Four flows: an order as a chain, images and a mail, a nightly report, and a diamond over two queues."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import BaseModel

from jetjobs import Failed, Flow, FlowHandle, JetJobs

app = JetJobs("flows")


class Receipt(BaseModel):
    order: int
    cents: int


class Parcel(BaseModel):
    order: int
    carrier: str


class Image(BaseModel):
    path: str
    width: int


# 1. An order: each result is the first argument of the next task.


@app.task
async def charge(order: int) -> Receipt:
    return Receipt(order=order, cents=order * 100)


@app.task
async def ship(receipt: Receipt, carrier: str) -> Parcel:
    return Parcel(order=receipt.order, carrier=carrier)


@app.task
async def notify(parcel: Parcel) -> str:
    return f"order {parcel.order} is on its way with {parcel.carrier}"


async def place_order(order: int) -> FlowHandle[str]:
    return await charge.bind(order).then(ship, carrier="dhl").then(notify).enqueue()


# 2. Images, then one mail: broken images do not stop it.


@app.task(max_attempts=2)
def resize(path: str, width: int) -> Image:
    if path.endswith(".txt"):
        raise ValueError(f"{path} is not an image")
    return Image(path=path, width=width)


@app.task
async def gallery(images: list[Image | Failed], user: int) -> str:
    shown = [image.path for image in images if isinstance(image, Image)]
    return f"user {user}: {', '.join(shown)}; {len(images) - len(shown)} failed"


async def upload(upload_id: int, paths: list[str], user: int) -> FlowHandle[str]:
    flow = Flow("upload", id=f"upload-{upload_id}", deadline=timedelta(hours=2))
    images = flow.map(resize.settled, paths, width=800)
    return await app.enqueue_flow(flow.returns(flow.add(gallery, images, user)))


# 3. A nightly report: how many customers there are is known when it runs.


@app.task
async def customers(day: datetime) -> list[str]:
    return ["ada", "grace", "linus"]


@app.task
async def report(customer: str, day: datetime) -> int:
    return len(customer)


@app.task
async def summary(totals: list[int], day: datetime) -> str:
    return f"{day:%Y-%m-%d}: {sum(totals)} from {len(totals)} customers"


@app.cron("0 2 * * *", tz="Europe/Berlin")
@app.task
async def nightly(scheduled_time: datetime) -> Flow[str]:
    flow = Flow("nightly")
    totals = flow.map(report, flow.add(customers, scheduled_time), scheduled_time)
    return flow.returns(flow.add(summary, totals, scheduled_time))


# 4. A diamond over two queues, with a step that only waits, and an alarm.


@app.task
async def extract(source: str) -> list[int]:
    return [3, 1, 2] if source == "sensors" else []


@app.task
async def clean(raw: list[int]) -> list[int]:
    return sorted(raw)


@app.task
async def stats(raw: list[int]) -> dict[str, int]:
    return {"rows": len(raw), "largest": max(raw)}


@app.task(queue="warehouse")
async def load(rows: list[int], facts: dict[str, int]) -> int:
    assert len(rows) == facts["rows"]
    return len(rows)


@app.task(queue="warehouse", store_result=False)
async def vacuum() -> None: ...


@app.task
async def alert(text: str) -> None:
    print(f"{text} failed")


async def etl(source: str) -> FlowHandle[int]:
    flow = Flow("etl", on_failure="cancel")
    raw = flow.add(extract, source)
    rows = flow.add(load.options(priority="high"), flow.add(clean, raw), flow.add(stats, raw))
    flow.after(rows).add(vacuum)
    flow.on_failed(alert, text="etl")
    return await app.enqueue_flow(flow.returns(rows))
