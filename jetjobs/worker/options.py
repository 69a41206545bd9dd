"""Options of a worker, and the phases of its life."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jetjobs.define.context import Middleware
from jetjobs.model.error_classification import Classifier
from jetjobs.model.errors import ConfigError
from jetjobs.worker.lifespan import Lifespan

Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Starts a background task that the worker waits for when it stops."""


MAX_NAME = 100
"""Characters of a worker's name. It is part of every record of its jobs."""


class Phase(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    QUIET = "quiet"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How one worker runs."""

    queues: Mapping[str, int | None]
    """The queues to work on. Each may have a slot limit of its own."""
    slots: int = 10
    name: str = ""
    burst: bool = False
    """Whether to stop once all lanes are empty."""
    max_jobs: int = 0
    """How many jobs to start before the worker stops. 0 for no limit."""
    app: str = ""
    """The name of the app that declares the schedules."""
    schedules: bool = True
    """Whether the worker is a candidate for leadership, and so may plan schedules."""
    middlewares: Sequence[Middleware] = ()
    lifespans: Sequence[Lifespan] = field(default_factory=tuple)
    classifiers: Mapping[type[BaseException], Classifier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not self.name.isprintable():
            raise ConfigError(
                f"invalid worker name {self.name[:40]!r}", hint=f"use up to {MAX_NAME} printable characters"
            )


def default_name() -> str:
    """The name of a worker without a given name."""
    return f"{socket.gethostname()}-{os.getpid()}"
