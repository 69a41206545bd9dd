"""Those who are told of events, by the kinds they asked for."""

from __future__ import annotations

import logging
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
        self._asked.append((observer, kinds or _KINDS))
        self._sort()

    def remove(self, observer: Observer) -> None:
        """ValueError if it is not there; of one that was added twice, one stays."""
        del self._asked[[present for present, _ in self._asked].index(observer)]
        self._sort()

    def clear(self) -> None:
        self._asked.clear()
        self._sort()

    def _sort(self) -> None:
        # Sorted beforehand, because two events come with every job.
        self._of = {kind: tuple(o for o, kinds in self._asked if kind in kinds) for kind in _KINDS}
