"""Those who are told of events, by the kinds they asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import get_args

from jetjobs.model.errors import DefinitionError
from jetjobs.model.events import Event, Observer

_log = logging.getLogger("jetjobs.app")
_KINDS: tuple[type[Event], ...] = get_args(Event)


class Observers:
    """`tell` is an Observer that stands for all of them. What one raises is logged, and the others are told."""

    def __init__(self) -> None:
        self._asked: list[tuple[Observer, Collection[type[Event]]]] = []
        self._of: dict[type[Event], tuple[Observer, ...]] = {}
        self._lock = threading.Lock()
        """For who adds or removes one. To tell needs none: what is found there is never changed, only replaced."""
        self._sort()

    def __bool__(self) -> bool:
        return bool(self._asked)

    def tell(self, event: Event) -> None:
        for observer in self._of[type(event)]:
            try:
                observer(event)
            except Exception:
                _log.exception("an observer failed", extra={"event": "observer.failed"})

    def add(self, observer: Observer, kinds: Collection[type[Event]]) -> None:
        """Of all kinds if none is named. DefinitionError for what is no kind of event."""
        for kind in kinds:
            if kind not in _KINDS:
                raise DefinitionError(
                    f"{kind!r} is no kind of event",
                    hint="name classes of jetjobs.model.events, such as JobFinished",
                )
        if not callable(observer):
            raise DefinitionError(f"{observer!r} is no observer", hint="give a function that takes an event")
        with self._lock:
            self._asked.append((observer, kinds or _KINDS))
            self._sort()

    def remove(self, observer: Observer) -> None:
        """ValueError if it is not there; of one that was added twice, one stays."""
        with self._lock:
            del self._asked[[present for present, _ in self._asked].index(observer)]
            self._sort()

    def clear(self) -> None:
        with self._lock:
            self._asked.clear()
            self._sort()

    def _sort(self) -> None:
        # Sorted beforehand, because two events come with every job.
        self._of = {kind: tuple(o for o, kinds in self._asked if kind in kinds) for kind in _KINDS}
