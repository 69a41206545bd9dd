"""Operations on jobs, flows, queues, dead letters, schedules and workers; where their types are imported from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetjobs.admin.dead_letter_files import ImportReport
    from jetjobs.admin.dead_letters import DeadLetters
    from jetjobs.admin.flows import Flows
    from jetjobs.admin.jobs import Jobs
    from jetjobs.admin.queues import Queues
    from jetjobs.admin.schedules import PutOptions, ScheduleInfo, Schedules
    from jetjobs.admin.workers import Workers
    from jetjobs.doctor.finding import Finding
    from jetjobs.jetstream.audit_log import AuditLog
    from jetjobs.jetstream.queues.purge import Purged
    from jetjobs.jetstream.tokens import Tokens
    from jetjobs.jetstream.topology import TopologyChange
    from jetjobs.jetstream.topology_plan import TopologyItem
    from jetjobs.jetstream.workers.control_client import WorkerAnswers
    from jetjobs.model.flow.flow_status import FlowCancelAnswer, FlowCancelOutcome, FlowRetryAnswer
    from jetjobs.model.views.audit import AuditEntry, AuditFilter, AuditPage
    from jetjobs.model.views.dead_letter import (
        DeadLetter,
        DeadLetterFilter,
        DeadLetterGroup,
        ReplayAnswer,
        ReplayOptions,
        ReplayOutcome,
    )
    from jetjobs.model.views.job_changes import CancelAnswer, CancelOutcome, MoveAnswer, MoveOutcome
    from jetjobs.model.views.job_query import JobPage, JobQuery, ListedJob
    from jetjobs.model.views.queue_info import LaneState, Pause, QueueState
    from jetjobs.model.views.task_info import TaskDefinition, TaskInfo, TaskVersion
    from jetjobs.model.views.token import TokenInfo
    from jetjobs.model.views.worker_info import QueueSlots, RunningJob, WorkerRecord

__all__ = [
    "AuditEntry",
    "AuditFilter",
    "AuditLog",
    "AuditPage",
    "CancelAnswer",
    "CancelOutcome",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeadLetters",
    "Finding",
    "FlowCancelAnswer",
    "FlowCancelOutcome",
    "FlowRetryAnswer",
    "Flows",
    "ImportReport",
    "JobPage",
    "JobQuery",
    "Jobs",
    "LaneState",
    "ListedJob",
    "MoveAnswer",
    "MoveOutcome",
    "Pause",
    "Purged",
    "PutOptions",
    "QueueSlots",
    "QueueState",
    "Queues",
    "ReplayAnswer",
    "ReplayOptions",
    "ReplayOutcome",
    "RunningJob",
    "ScheduleInfo",
    "Schedules",
    "TaskDefinition",
    "TaskInfo",
    "TaskVersion",
    "TokenInfo",
    "Tokens",
    "TopologyChange",
    "TopologyItem",
    "WorkerAnswers",
    "WorkerRecord",
    "Workers",
]

# The module of each name. A name is loaded on first use, so that `jetjobs --help` does not wait for nats and
# pydantic.
_HOMES = {
    "jetjobs.admin.dead_letter_files": "ImportReport",
    "jetjobs.admin.dead_letters": "DeadLetters",
    "jetjobs.admin.flows": "Flows",
    "jetjobs.admin.jobs": "Jobs",
    "jetjobs.admin.queues": "Queues",
    "jetjobs.admin.schedules": "PutOptions ScheduleInfo Schedules",
    "jetjobs.admin.workers": "Workers",
    "jetjobs.doctor.finding": "Finding",
    "jetjobs.jetstream.audit_log": "AuditLog",
    "jetjobs.jetstream.queues.purge": "Purged",
    "jetjobs.jetstream.tokens": "Tokens",
    "jetjobs.jetstream.topology": "TopologyChange",
    "jetjobs.jetstream.topology_plan": "TopologyItem",
    "jetjobs.jetstream.workers.control_client": "WorkerAnswers",
    "jetjobs.model.flow.flow_status": "FlowCancelAnswer FlowCancelOutcome FlowRetryAnswer",
    "jetjobs.model.views.audit": "AuditEntry AuditFilter AuditPage",
    "jetjobs.model.views.dead_letter": "DeadLetter DeadLetterFilter DeadLetterGroup "
    "ReplayAnswer ReplayOptions ReplayOutcome",
    "jetjobs.model.views.job_changes": "CancelAnswer CancelOutcome MoveAnswer MoveOutcome",
    "jetjobs.model.views.job_query": "JobPage JobQuery ListedJob",
    "jetjobs.model.views.queue_info": "LaneState Pause QueueState",
    "jetjobs.model.views.task_info": "TaskDefinition TaskInfo TaskVersion",
    "jetjobs.model.views.token": "TokenInfo",
    "jetjobs.model.views.worker_info": "QueueSlots RunningJob WorkerRecord",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
