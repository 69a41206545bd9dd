"""Build the schedule of a task from its options, with the arguments checked against the signature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jetjobs.define.options import ScheduleOptions, check_type
from jetjobs.define.task import Task
from jetjobs.model.errors import DefinitionError
from jetjobs.model.schedule.schedule import Schedule, make_schedule
from jetjobs.model.wire.headers import SECRET
from jetjobs.model.wire.subjects import check_priority

_KNOWN = frozenset(ScheduleOptions.__annotations__) | {"cron", "every"}


def schedule_of(task: Task[Any, Any], name: str, options: Mapping[str, Any]) -> Schedule:
    """DefinitionError for invalid options, InvalidArguments for arguments that do not fit the task."""
    if unknown := options.keys() - _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise DefinitionError(f"unknown schedule option {sorted(unknown)[0]!r}", hint=f"known: {known}")
    args = options.get("args", {})
    check_type("args", args, Mapping)
    fills_in = task.signature.takes_scheduled_time and "scheduled_time" not in args
    body = task.request({}, (), {**args, "scheduled_time": datetime.now(UTC)} if fills_in else args).body
    values = {"name": name, "queue": task.queue, "priority": task.priority, **options}
    check_priority(values["priority"], f"schedule {values['name']!r}: ")
    return make_schedule(
        {
            **values,
            "task": task.name,
            "args": {k: v for k, v in json.loads(body).items() if not (fills_in and k == "scheduled_time")},
            "takes_scheduled_time": fills_in,
            "secret": task.own_headers.get(SECRET, ""),
        }
    )
