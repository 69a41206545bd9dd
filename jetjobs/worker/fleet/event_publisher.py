"""Publish live events of jobs and workers on core NATS while a client watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.events import Event, Observer, WorkerChanged
from jetjobs.model.views.live_events import WATCHED_S, LiveEvent, live_event

MAX_PER_SECOND = 500
"""Events of one kind and task. The rest are counted but not published, so that watchers never slow the work."""
MAX_COUNTERS = 1_000
"""Pairs of kind and task that are counted at a time. Jobs published without jetjobs may have any task name."""


class EventPublisher:
    """An observer that publishes an event and passes it on to the worker's observers.

    Without a watcher it costs a job two comparisons of a number. ADR 35.
    """

    def __init__(self, jetstream: JetStreamClient, worker: str, observe: Observer) -> None:
        self._connection = jetstream.connection
        self._names = jetstream.names
        self._worker = worker
        self._observe = observe
        self._watched_until = 0.0
        self._counters: dict[tuple[str, str], tuple[float, int, int]] = {}
        """By kind and task: when the current second began, events published in it, events skipped."""

    def __call__(self, event: Event) -> None:
        if self._watched_until or type(event) is WorkerChanged:
            self._publish_live(event)
        self._observe(event)

    @property
    def watched(self) -> bool:
        """Whether a watcher has announced itself within the last `WATCHED_S` seconds."""
        return time.monotonic() < self._watched_until

    def on_watch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Handle the control request `watch`: publish events for the next `WATCHED_S` seconds."""
        self._watched_until = time.monotonic() + WATCHED_S
        return {}

    def _publish_live(self, event: Event) -> None:
        now = time.monotonic()
        if now >= self._watched_until:
            self._watched_until = 0.0
            self._counters.clear()  # the next watcher did not miss what was skipped for this one
            if type(event) is not WorkerChanged:
                return
        live = live_event(event, self._worker, round(time.time(), 6))
        skipped = self._skipped_before(live, now) if live is not None else None
        if live is not None and skipped is not None:
            self._publish(replace(live, skipped=skipped))

    def _skipped_before(self, live: LiveEvent, now: float) -> int | None:
        """How many events of this kind and task were skipped before this one; None if it must be skipped too."""
        key = live.kind, live.task
        if key not in self._counters and len(self._counters) >= MAX_COUNTERS:
            self._counters.clear()
        since, published, skipped = self._counters.get(key, (now, 0, 0))
        if now - since >= 1.0:
            since, published = now, 0
        if published >= MAX_PER_SECOND:
            self._counters[key] = since, published, skipped + 1
            return None
        self._counters[key] = since, published + 1, 0
        return skipped

    def _publish(self, live: LiveEvent) -> None:
        names, word = self._names, live.kind.partition(".")[2]
        if live.kind.startswith("worker."):
            subject = names.worker_event(word, live.worker)
        else:
            subject = names.job_event(word, live.queue, live.task or "-", live.job_id or "-")
        self._connection.post(subject, live.to_wire())
