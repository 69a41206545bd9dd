"""jetjobs: a job framework that lives inside NATS JetStream."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jetjobs.admin.dead_letters import ReplayOutcome
    from jetjobs.admin.schedules import ScheduleInfo
    from jetjobs.app import JetJobs
    from jetjobs.define.context import Context, current_job
    from jetjobs.define.dependencies import INJECTED, Depends
    from jetjobs.define.enqueue_report import EnqueueReport
    from jetjobs.define.handle import JobHandle
    from jetjobs.define.middleware import CallNext, Middleware
    from jetjobs.define.router import Router
    from jetjobs.define.secret import Secret
    from jetjobs.define.task import JobRequest, Task
    from jetjobs.doctor.finding import Finding
    from jetjobs.model.error_classification import PERMANENT, TRANSIENT, Verdict
    from jetjobs.model.errors import (
        AccessDenied,
        BrokerError,
        BrokerUnavailable,
        CheckpointError,
        ChildDied,
        ConfigError,
        DefinitionError,
        EnqueueError,
        EnqueueUnconfirmed,
        InvalidArguments,
        JetJobsError,
        JobAmbiguous,
        JobCancelled,
        JobFailed,
        JobNotFound,
        JobTimeout,
        JobTooLarge,
        QueueNotFound,
        Reject,
        ResultError,
        ResultExpired,
        ResultNotReady,
        Retry,
        ScheduleConflict,
        ScheduleNotFound,
        Signal,
        Snooze,
        UnstorableValue,
        WorkerNotFound,
        WorkerSilent,
    )
    from jetjobs.model.events import Event, Observer
    from jetjobs.model.job import JobState, JobStatus
    from jetjobs.model.retry import RetryPolicy
    from jetjobs.model.schedule.schedule import Schedule
    from jetjobs.model.settings import Settings
    from jetjobs.model.views.dead_letter import DeadLetter, DeadLetterFilter
    from jetjobs.model.views.job_query import JobQuery
    from jetjobs.model.views.live_events import LiveEvent
    from jetjobs.model.views.queue_info import QueueState
    from jetjobs.model.views.worker_info import WorkerRecord
    from jetjobs.worker.worker import Worker

__all__ = [
    "INJECTED",
    "PERMANENT",
    "TRANSIENT",
    "AccessDenied",
    "BrokerError",
    "BrokerUnavailable",
    "CallNext",
    "CheckpointError",
    "ChildDied",
    "ConfigError",
    "Context",
    "DeadLetter",
    "DeadLetterFilter",
    "DefinitionError",
    "Depends",
    "EnqueueError",
    "EnqueueReport",
    "EnqueueUnconfirmed",
    "Event",
    "Finding",
    "InvalidArguments",
    "JetJobs",
    "JetJobsError",
    "JobAmbiguous",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobQuery",
    "JobRequest",
    "JobState",
    "JobStatus",
    "JobTimeout",
    "JobTooLarge",
    "LiveEvent",
    "Middleware",
    "Observer",
    "QueueNotFound",
    "QueueState",
    "Reject",
    "ReplayOutcome",
    "ResultError",
    "ResultExpired",
    "ResultNotReady",
    "Retry",
    "RetryPolicy",
    "Router",
    "Schedule",
    "ScheduleConflict",
    "ScheduleInfo",
    "ScheduleNotFound",
    "Secret",
    "Settings",
    "Signal",
    "Snooze",
    "Task",
    "UnstorableValue",
    "Verdict",
    "Worker",
    "WorkerNotFound",
    "WorkerRecord",
    "WorkerSilent",
    "current_job",
]

# Where each name lives. Loaded on first use, so that `jetjobs --help` does not wait for nats and pydantic.
_HOMES = {
    "jetjobs.app": ("JetJobs",),
    "jetjobs.admin.dead_letters": ("ReplayOutcome",),
    "jetjobs.define.context": ("Context", "current_job"),
    "jetjobs.define.dependencies": ("INJECTED", "Depends"),
    "jetjobs.define.handle": ("JobHandle",),
    "jetjobs.define.middleware": ("CallNext", "Middleware"),
    "jetjobs.define.router": ("Router",),
    "jetjobs.define.enqueue_report": ("EnqueueReport",),
    "jetjobs.define.secret": ("Secret",),
    "jetjobs.define.task": ("JobRequest", "Task"),
    "jetjobs.model.errors": (
        "AccessDenied",
        "BrokerError",
        "BrokerUnavailable",
        "CheckpointError",
        "ChildDied",
        "ConfigError",
        "DefinitionError",
        "EnqueueError",
        "EnqueueUnconfirmed",
        "InvalidArguments",
        "JetJobsError",
        "JobAmbiguous",
        "JobCancelled",
        "JobFailed",
        "JobNotFound",
        "JobTimeout",
        "JobTooLarge",
        "QueueNotFound",
        "Reject",
        "ResultError",
        "ResultExpired",
        "ResultNotReady",
        "Retry",
        "ScheduleConflict",
        "ScheduleNotFound",
        "Signal",
        "Snooze",
        "UnstorableValue",
        "WorkerNotFound",
        "WorkerSilent",
    ),
    "jetjobs.model.events": ("Event", "Observer"),
    "jetjobs.model.job": ("JobState", "JobStatus"),
    "jetjobs.model.views.job_query": ("JobQuery",),
    "jetjobs.model.views.live_events": ("LiveEvent",),
    "jetjobs.model.views.dead_letter": ("DeadLetter", "DeadLetterFilter"),
    "jetjobs.model.views.worker_info": ("WorkerRecord",),
    "jetjobs.model.views.queue_info": ("QueueState",),
    "jetjobs.doctor.finding": ("Finding",),
    "jetjobs.model.retry": ("RetryPolicy",),
    "jetjobs.model.schedule.schedule": ("Schedule",),
    "jetjobs.model.settings": ("Settings",),
    "jetjobs.model.error_classification": ("PERMANENT", "TRANSIENT", "Verdict"),
    "jetjobs.admin.schedules": ("ScheduleInfo",),
    "jetjobs.worker.worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
