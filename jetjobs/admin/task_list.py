"""The tasks of running workers with the schedules that run them, and their JSON form."""

from __future__ import annotations

import contextlib
import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jetjobs.admin.operations import Operations
from jetjobs.model.errors import AccessDenied, TopologyMissing, UnknownTask
from jetjobs.model.schedule.schedule import Schedule
from jetjobs.model.views.task_info import TaskDefinition, TaskInfo

_SUMMARY = ("queue", "priority", "signature", "description", "aliases", "secret", "timeout_s")


class ScheduledTask(NamedTuple):
    """A task and its schedules, as far as this user may read them."""

    info: TaskInfo
    schedules: Sequence[Schedule]

    def summary(self) -> dict[str, Any]:
        """The fields for lists, as JSON."""
        known = self.info.definition.as_dict() if self.info.definition is not None else {}
        return {
            "task": self.info.name,
            **{key: known.get(key) for key in _SUMMARY},
            "max_attempts": known.get("retry", {}).get("max_attempts"),
            "workers": len(self.info.workers),
            "fingerprints": [one.fingerprint for one in self.info.versions],
            "schedules": [one.name for one in self.schedules],
        }

    def as_dict(self) -> dict[str, Any]:
        """All versions with their definitions, as JSON."""
        return {
            "task": self.info.name,
            "versions": [
                {
                    "fingerprint": one.fingerprint,
                    "workers": list(one.workers),
                    "in_app": one.in_app,
                    "definition": one.definition.as_dict() if one.definition is not None else None,
                }
                for one in self.info.versions
            ],
            "differences": self.info.differences(),
            "schedules": [
                {"name": one.name, "rule": one.rule_text, "paused": one.paused} for one in self.schedules
            ],
        }


async def list_tasks(app: Operations, declared: Iterable[TaskDefinition] = ()) -> list[ScheduledTask]:
    """The tasks that running workers know, and those of `declared`, by name."""
    tasks = await app.workers.tasks(declared)
    schedules: Mapping[str, list[Schedule]] = defaultdict(list)
    with contextlib.suppress(AccessDenied, TopologyMissing):
        for stored in await app.jetstream.schedules.all():
            if stored.schedule is not None:
                schedules[stored.schedule.task].append(stored.schedule)
    return [ScheduledTask(task, schedules[task.name]) for task in tasks]


def find_task(tasks: Iterable[ScheduledTask], name: str) -> ScheduledTask:
    """The task of that name or alias. UnknownTask if there is none; the hint names a similar one."""
    by_name: dict[str, ScheduledTask] = {}
    for task in tasks:
        for version in task.info.versions:
            by_name.update(dict.fromkeys(version.definition.aliases if version.definition else (), task))
    by_name |= {task.info.name: task for task in tasks}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, 1)
    hint = f"did you mean {near[0]!r}?" if near else "list them with `jetjobs tasks list`"
    raise UnknownTask(f"no running worker knows a task {name!r}, and no app here declares it", hint=hint)
