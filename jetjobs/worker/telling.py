"""A worker tells what happens to whoever watches, on core NATS. While nobody does, it tells nothing. ADR 20."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.events import Event, Observer, WorkerChanged
from jetjobs.model.live import LiveEvent, Wish, live_event, read_wish

MOST_A_SECOND = 1_000
"""A worker that runs more is not slowed by its watchers: the rest is counted, not told."""
MOST_WATCHERS = 100
RECENT_S = 30.0
"""How old the news of a start may be when somebody begins to watch."""


class Telling:
    """Stands before the worker's observers. Unwatched it costs a job two looks at an empty dict."""

    def __init__(self, jetstream: JetStreamClient, worker: str, observe: Observer) -> None:
        self._connection = jetstream.connection
        self._names = jetstream.names
        self._worker = worker
        self._observe = observe
        self._wishes: dict[str, tuple[Wish, float]] = {}
        self._recent: deque[LiveEvent] = deque(maxlen=8)
        """Phases of this worker that nobody heard of. A worker that has just started has not been asked yet."""
        self._second, self._told, self._skipped = 0.0, 0, 0

    def __call__(self, event: Event) -> None:
        if self._wishes or type(event) is WorkerChanged:
            self._tell(event)
        self._observe(event)

    @property
    def watchers(self) -> int:
        """How many want to hear, as far as is known."""
        return len(self._wishes)

    def hear(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The control word `watch`: somebody watches, and for how long; not any more, when `for_s` is 0."""
        watcher = str(request.get("watcher", ""))[:100]
        try:
            wish, for_s = read_wish(request)
        except ValueError as error:
            return {"ok": False, "error": str(error)}
        if for_s <= 0:
            self._wishes.pop(watcher, None)
            return {}
        if watcher not in self._wishes:
            self._forget_gone(time.monotonic())
            if len(self._wishes) >= MOST_WATCHERS:
                return {"ok": False, "error": f"{MOST_WATCHERS} watch already"}
            if not self._wishes:
                self._skipped = 0  # those were left out for watchers that are gone
        self._wishes[watcher] = (wish, time.monotonic() + for_s)
        recent, self._recent = self._recent, deque(maxlen=8)
        for event in recent:
            if time.time() - event.at <= RECENT_S and wish.wants(event.kind, "", ""):
                self._publish(event)
        return {}

    def _forget_gone(self, now: float) -> None:
        for watcher in [watcher for watcher, (_, until) in self._wishes.items() if now > until]:
            del self._wishes[watcher]

    def _tell(self, event: Event) -> None:
        told = live_event(event, self._worker, round(time.time(), 6))
        if told is None:
            return
        now = time.monotonic()
        self._forget_gone(now)
        if not self._wishes:
            if type(event) is WorkerChanged:
                self._recent.append(told)
            return
        if not any(wish.wants(told.kind, told.queue, told.task) for wish, _ in self._wishes.values()):
            return
        if now - self._second >= 1.0:
            self._second, self._told = now, 0
        if self._told >= MOST_A_SECOND:
            self._skipped += 1
            return
        self._told += 1
        if self._skipped:
            told, self._skipped = told._replace(skipped=self._skipped), 0
        self._publish(told)

    def _publish(self, told: LiveEvent) -> None:
        names, word = self._names, told.kind.partition(".")[2]
        if told.kind.startswith("worker."):
            subject = names.worker_event(word, told.worker)
        else:
            subject = names.job_event(word, told.queue, told.task or "-", told.job_id or "-")
        self._connection.post(subject, told.to_wire())
