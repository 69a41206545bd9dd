"""Read the HTTP port of a worker as a scraper and a health probe do."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.support.probe import eventually

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Port:
    """Requests run in threads, so that the test's event loop is not blocked."""

    def __init__(self, number: int) -> None:
        self.address = f"127.0.0.1:{number}"

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text; status 0 when nothing listens on the port."""
        return await asyncio.to_thread(self._get, path)

    def _get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    async def until(self, path: str, status: int) -> None:
        await eventually(lambda: self.get(path), 30, where=lambda found: found[0] == status)

    async def page(self) -> Page:
        status, text = await self.get("/metrics")
        assert status == 200, text
        return Page(text)

    async def until_page(self, name: str, value: float, **labels: str) -> Page:
        """The first page on which that sample has that value."""
        last: list[Page] = []

        async def reached() -> Page | None:
            last[:] = [await self.page()]
            return last[0] if last[0].value(name, **labels) == value else None

        try:
            return await eventually(reached, 30)
        except TimeoutError:
            raise AssertionError(f"{name} {labels} was not {value} in:\n{last[0].text if last else ''}") from None


class Page:
    """The result of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples with that name and these labels."""
        return sum(v for (n, ls), v in self.samples.items() if n == name and frozenset(labels.items()) <= ls)

    def labels(self, label: str) -> set[str]:
        return {dict(labels)[label] for _, labels in self.samples if label in dict(labels)}

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}
