"""An app with the tasks of a shop."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from jetjobs import JetJobs, RetryPolicy, current_job

HOUR = timedelta(hours=1)


class Order(BaseModel):
    id: int
    amount: float = 1.0


class Shop:
    """An app and its tasks."""

    def __init__(self, app: JetJobs) -> None:
        self.app = app

        @app.task
        async def greet(name: str, times: int = 1) -> str:
            return f"Hello, {name}!" * times

        @app.task(queue="money")
        async def charge(order: Order, notes: list[str] = []) -> None:  # noqa: B006 - it is not changed
            return None

        @app.task(retry=RetryPolicy(max_attempts=3, base=HOUR, jitter=False))
        async def flaky(good_from: int) -> int:
            if current_job().attempt < good_from:
                raise ConnectionError("the bank does not answer")
            return current_job().attempt

        self.greet, self.charge, self.flaky = greet, charge, flaky
