"""How one worker is to run, and the phases of its life."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jetjobs.define.middleware import Middleware
from jetjobs.model.error_classification import Classifier

Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[Any]]


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    QUIET = "quiet"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How one worker runs. `queues` maps each to its own slot limit, or None."""

    queues: Mapping[str, int | None]
    slots: int = 10
    name: str = ""
    burst: bool = False
    max_jobs: int = 0
    app: str = ""
    """Whose schedules the registry declares."""
    schedules: bool = True
    """Whether to be a candidate for the lead, and so for planning schedules."""
    middlewares: Sequence[Middleware] = ()
    lifespans: Sequence[Lifespan] = field(default_factory=tuple)
    classifiers: Mapping[type[BaseException], Classifier] = field(default_factory=dict)


def default_name() -> str:
    """Of a worker that was given none."""
    return f"{socket.gethostname()}-{os.getpid()}"
