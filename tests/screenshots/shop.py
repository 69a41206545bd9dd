"""The app in the images: a shop with jobs in every state."""

from __future__ import annotations

import asyncio
from typing import Annotated

from jetjobs import JetJobs, RetryPolicy, Secret, current_job

app = JetJobs("shop")
ONCE = RetryPolicy(max_attempts=1)


class CardDeclined(Exception):
    """The bank refuses a payment."""


class MailServerBusy(Exception):
    """The mail server asks for a later attempt."""


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.task(queue="mail", retry=RetryPolicy(base="40s", max_attempts=5, jitter=False))
async def send_email(to: str, subject: str) -> None:
    if to.endswith("@example.net"):
        raise MailServerBusy("450 mailbox of ada@example.net is busy, try again later")
    await asyncio.sleep(0.01)


@app.task(retry=ONCE)
async def charge(order: int, amount: float, card: Annotated[str, Secret()]) -> str:
    return await ask_bank(order, amount)


async def ask_bank(order: int, amount: float) -> str:
    raise CardDeclined(f"order {order}: the bank declined {amount:.2f} EUR")


@app.task(queue="reports", timeout="1h")
async def build_report(month: str, pages: int) -> None:
    page = pages * 62 // 100
    current_job().progress(page / pages, f"page {page} of {pages}")
    await asyncio.sleep(3000)


@app.task(queue="images")
async def make_thumbnail(file: str) -> None:
    await asyncio.sleep(0.05)


@app.task(retry=ONCE)
async def import_feed(url: str) -> None:
    raise TimeoutError(f"no answer from {url} within 2 s")
