"""The observers of an app, each notified of the kinds of events it subscribed to."""

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
    """All observers behind one: `notify` is itself an Observer. If one raises, that is logged and the rest run."""

    def __init__(self) -> None:
        self._subscribed: list[tuple[Observer, Collection[type[Event]]]] = []
        self._by_kind: dict[type[Event], tuple[Observer, ...]] = {}
        self._lock = threading.Lock()
        """For adding and removing. `notify` needs none: the tuples it reads are replaced, never changed."""
        self._index()

    def __bool__(self) -> bool:
        return bool(self._subscribed)

    def notify(self, event: Event) -> None:
        for observer in self._by_kind[type(event)]:
            try:
                observer(event)
            except Exception:
                _log.exception("an observer raised an exception", extra={"event": "observer.failed"})

    def add(self, observer: Observer, kinds: Collection[type[Event]]) -> None:
        """Notify it of these kinds, or of all if none is given. DefinitionError for an unknown kind of event."""
        for kind in kinds:
            if kind not in _KINDS:
                raise DefinitionError(
                    f"invalid kind of event {kind!r}",
                    hint="use classes of jetjobs.events, such as JobFinished",
                )
        if not callable(observer):
            raise DefinitionError(f"invalid observer {observer!r}", hint="use a function that takes an event")
        with self._lock:
            self._subscribed.append((observer, kinds or _KINDS))
            self._index()

    def remove(self, observer: Observer) -> None:
        """ValueError if it was not added. If it was added twice, one subscription remains."""
        with self._lock:
            del self._subscribed[[present for present, _ in self._subscribed].index(observer)]
            self._index()

    def clear(self) -> None:
        with self._lock:
            self._subscribed.clear()
            self._index()

    def _index(self) -> None:
        # Prepared once, because every job causes two events.
        self._by_kind = {kind: tuple(o for o, kinds in self._subscribed if kind in kinds) for kind in _KINDS}
