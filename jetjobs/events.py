"""Every event that observers receive and `app.events()` yields: the public import path."""

from __future__ import annotations

from jetjobs.model.events import (
    ConnectionLost,
    ConnectionRestored,
    EnqueueFailed,
    Event,
    JobEnqueued,
    JobFinished,
    JobStarted,
    LaneTrouble,
    LeaseLostEvent,
    Observer,
    PermissionDenied,
    Redelivered,
    SettleFailed,
    ThreadStuck,
    WorkerChanged,
)
from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.views.live_events import LiveEvent

__all__ = [
    "ConnectionLost",
    "ConnectionRestored",
    "EnqueueFailed",
    "ErrorInfo",
    "Event",
    "JobEnqueued",
    "JobFinished",
    "JobStarted",
    "LaneTrouble",
    "LeaseLostEvent",
    "LiveEvent",
    "Observer",
    "PermissionDenied",
    "Redelivered",
    "SettleFailed",
    "ThreadStuck",
    "WorkerChanged",
]
