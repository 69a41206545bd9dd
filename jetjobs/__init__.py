"""jetjobs: a job framework on NATS JetStream."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.define.context import CallNext, Context, Middleware, current_job
    from jetjobs.define.context import ScheduledRun as ScheduledRun
    from jetjobs.define.dependencies import INJECTED, Depends
    from jetjobs.define.enqueue_report import EnqueueReport
    from jetjobs.define.enqueue_report import Entry as Entry
    from jetjobs.define.enqueue_report import Refusal as Refusal
    from jetjobs.define.flows.flow import Flow
    from jetjobs.define.flows.flow import FlowSteps as FlowSteps
    from jetjobs.define.flows.flow_handle import FlowHandle
    from jetjobs.define.flows.flow_task import AsyncFlowTask as AsyncFlowTask
    from jetjobs.define.flows.flow_task import SyncFlowTask as SyncFlowTask
    from jetjobs.define.handle import JobHandle
    from jetjobs.define.options import EnqueueOptions as EnqueueOptions
    from jetjobs.define.options import ScheduleOptions as ScheduleOptions
    from jetjobs.define.options import TaskOptions as TaskOptions
    from jetjobs.define.router import Router
    from jetjobs.define.router import TaskDecorator as TaskDecorator
    from jetjobs.define.secret import Secret
    from jetjobs.define.task import AsyncTask as AsyncTask
    from jetjobs.define.task import Chain as Chain
    from jetjobs.define.task import JobRequest, Task
    from jetjobs.define.task import Step as Step
    from jetjobs.define.task import SyncTask as SyncTask
    from jetjobs.define.task import TaskCall as TaskCall
    from jetjobs.model.durations import Duration as Duration
    from jetjobs.model.errors import (
        BrokerUnavailable,
        EnqueueError,
        FlowFailed,
        InvalidArguments,
        JetJobsError,
        JobCancelled,
        JobFailed,
        JobNotFound,
        ResultNotReady,
    )
    from jetjobs.model.events import Observer
    from jetjobs.model.flow.failed import Failed
    from jetjobs.model.flow.flow_status import FlowState, FlowStatus
    from jetjobs.model.flow.flow_status import StepStatus as StepStatus
    from jetjobs.model.job import Job as Job
    from jetjobs.model.job import JobState, JobStatus
    from jetjobs.model.outcome import Reject, Retry, Snooze
    from jetjobs.model.retry import RetryPolicy
    from jetjobs.model.schedule.schedule import Schedule
    from jetjobs.model.settings import HttpSettings as HttpSettings
    from jetjobs.model.settings import NatsSettings as NatsSettings
    from jetjobs.model.settings import ObserveSettings as ObserveSettings
    from jetjobs.model.settings import QueueSettings as QueueSettings
    from jetjobs.model.settings import Settings
    from jetjobs.model.settings import WebhookSettings as WebhookSettings
    from jetjobs.model.settings import WorkerSettings as WorkerSettings
    from jetjobs.observe.metrics import Metrics as Metrics
    from jetjobs.sync import SyncClient as SyncClient
    from jetjobs.worker.worker import Worker

__all__ = [
    "INJECTED",
    "BrokerUnavailable",
    "CallNext",
    "Context",
    "Depends",
    "EnqueueError",
    "EnqueueReport",
    "Failed",
    "Flow",
    "FlowFailed",
    "FlowHandle",
    "FlowState",
    "FlowStatus",
    "InvalidArguments",
    "JetJobs",
    "JetJobsError",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobRequest",
    "JobState",
    "JobStatus",
    "Middleware",
    "Observer",
    "Reject",
    "ResultNotReady",
    "Retry",
    "RetryPolicy",
    "Router",
    "Schedule",
    "Secret",
    "Settings",
    "Snooze",
    "Task",
    "Worker",
    "current_job",
]

# The module of each name. A name is loaded on first use, so that `jetjobs --help` does not wait for nats and
# pydantic.
_HOMES = {
    "jetjobs.app": "JetJobs",
    "jetjobs.define.context": "CallNext Context Middleware current_job",
    "jetjobs.define.dependencies": "Depends INJECTED",
    "jetjobs.define.enqueue_report": "EnqueueReport",
    "jetjobs.define.flows.flow": "Flow",
    "jetjobs.define.flows.flow_handle": "FlowHandle",
    "jetjobs.define.handle": "JobHandle",
    "jetjobs.define.router": "Router",
    "jetjobs.define.secret": "Secret",
    "jetjobs.define.task": "JobRequest Task",
    "jetjobs.model.errors": "BrokerUnavailable EnqueueError FlowFailed InvalidArguments JetJobsError JobCancelled "
    "JobFailed JobNotFound ResultNotReady",
    "jetjobs.model.events": "Observer",
    "jetjobs.model.flow.failed": "Failed",
    "jetjobs.model.flow.flow_status": "FlowState FlowStatus",
    "jetjobs.model.job": "JobState JobStatus",
    "jetjobs.model.outcome": "Reject Retry Snooze",
    "jetjobs.model.retry": "RetryPolicy",
    "jetjobs.model.schedule.schedule": "Schedule",
    "jetjobs.model.settings": "Settings",
    "jetjobs.worker.worker": "Worker",
}
# Types that public methods take or return and few programs name. They are importable, but not in `__all__`.
_ANNOTATION_HOMES = {
    "jetjobs.define.context": "ScheduledRun",
    "jetjobs.define.enqueue_report": "Entry Refusal",
    "jetjobs.define.flows.flow": "FlowSteps",
    "jetjobs.define.flows.flow_task": "AsyncFlowTask SyncFlowTask",
    "jetjobs.define.options": "EnqueueOptions ScheduleOptions TaskOptions",
    "jetjobs.define.router": "TaskDecorator",
    "jetjobs.define.task": "AsyncTask Chain Step SyncTask TaskCall",
    "jetjobs.model.durations": "Duration",
    "jetjobs.model.flow.flow_status": "StepStatus",
    "jetjobs.model.job": "Job",
    "jetjobs.model.settings": "HttpSettings NatsSettings ObserveSettings QueueSettings WebhookSettings "
    "WorkerSettings",
    "jetjobs.observe.metrics": "Metrics",
    "jetjobs.sync": "SyncClient",
}
_HOME_OF = {
    name: home for homes in (_HOMES, _ANNOTATION_HOMES) for home, names in homes.items() for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
