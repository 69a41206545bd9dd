"""Metric pages of several processes as one: written as plain data, summed, and shown again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

Page = list[dict[str, Any]]
"""Families in order: name, kind, text, and samples as [name, labels, value]."""

_SUMMED = frozenset({"jetjobs_running_jobs", "jetjobs_slots", "jetjobs_stuck_threads"})
_LEAST = frozenset({"jetjobs_nats_connected"})
_GROWING = frozenset({"counter", "histogram"})


def write_page(families: Iterable[Metric]) -> Page:
    """A page that can cross between processes as JSON."""
    return [
        {
            "name": family.name,
            "kind": family.type,
            "text": family.documentation,
            "samples": [[sample.name, sample.labels, sample.value] for sample in family.samples],
        }
        for family in families
    ]


def merge(live: Iterable[Page], ended: Iterable[Page]) -> Page:
    """One page of many. Counters and histograms are summed, those of processes that have ended too: they never go
    back. Gauges are of live processes: summed, the least or the greatest of them, as fits each."""
    merged: dict[str, dict[str, Any]] = {}
    values: dict[str, dict[tuple[Any, ...], float]] = {}
    for pages, alive in ((live, True), (ended, False)):
        for page in pages:
            for family in page:
                name = family["name"]
                merged.setdefault(name, {k: family[k] for k in ("name", "kind", "text")})
                samples = values.setdefault(name, {})
                if not alive and family["kind"] not in _GROWING:
                    continue
                combine = _combination(family)
                for sample, labels, value in family["samples"]:
                    key = (sample, *sorted(labels.items()))
                    samples[key] = combine(samples[key], value) if key in samples else value
    return [{**family, "samples": _samples(values[name])} for name, family in merged.items()]


def _combination(family: dict[str, Any]) -> Callable[[float, float], float]:
    if family["kind"] in _GROWING or family["name"] in _SUMMED:
        return lambda one, other: one + other
    # A queue is counted by one process, the leader; for a moment two may believe to be it.
    return min if family["name"] in _LEAST else max


def _samples(values: dict[tuple[Any, ...], float]) -> list[list[Any]]:
    return [[name, dict(labels), value] for (name, *labels), value in values.items()]


class PageCollector:
    """Shows a page that is asked for at each scrape."""

    def __init__(self, page: Callable[[], Page]) -> None:
        self._page = page
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for family in self._page():
            metric = Metric(family["name"], family["text"], family["kind"])
            for name, labels, value in family["samples"]:
                metric.add_sample(name, labels, value)
            yield metric
