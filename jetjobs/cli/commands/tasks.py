"""`jetjobs tasks`: list and show the tasks that running workers know, with or without the app."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from jetjobs.admin.task_list import find_task
from jetjobs.admin.task_list import list_tasks as read_tasks
from jetjobs.app import JetJobs
from jetjobs.cli.app_discovery import find_app
from jetjobs.cli.completion import task_names
from jetjobs.cli.exit_codes import AppImportError
from jetjobs.cli.state import state
from jetjobs.cli.terminal.table import Look
from jetjobs.cli.terminal.text import one_line, printable
from jetjobs.doctor.finding import many
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import JetJobsError
from jetjobs.model.schedule.schedule import Schedule
from jetjobs.model.views.task_info import TaskDefinition, TaskInfo, TaskVersion

commands = typer.Typer()

_NONE = "no running worker knows a task, and this folder has no app; start a worker with `jetjobs worker`"
_HEAD = ["TASK", "QUEUE", "WORKERS", "ATTEMPTS", "TIMEOUT", "SCHEDULES", "SIGNATURE"]


@commands.command("list")
async def list_tasks() -> None:
    """List tasks of running workers and of the app in this folder."""
    async with state.reader() as app:
        tasks = await read_tasks(app, _declared(app))
    out = state.out
    if out.as_json:
        out.json({"items": [task.summary() for task in tasks], "cursor": None})
        return
    rows = [_row(task.info, task.schedules) for task in tasks]
    out.table(_HEAD, rows, shrink=(6,), look=Look(right=(2, 3, 4, 5)))
    if not tasks:
        out.note(_NONE)
    if differing := [task.info.name for task in tasks if len(task.info.versions) > 1]:
        listed = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
        out.note(f"workers have different versions of {listed}; `jetjobs tasks show TASK` shows which")


@commands.command()
async def show(
    name: Annotated[str, typer.Argument(help="Name of the task, or an alias.", autocompletion=task_names)],
) -> None:
    """Show one task: its signature, JSON schema and retry policy. Also shows which workers have which version."""
    async with state.reader() as app:
        found = find_task(await read_tasks(app, _declared(app)), name)
    task, out = found.info, state.out
    if out.as_json:
        out.json(found.as_dict())
        return
    definition = task.definition
    out.data(_line("task", task.name))
    for key, value in _facts(definition) if definition is not None else ():
        out.data(_line(key, value))
    for schedule in found.schedules:
        paused = " (paused)" if schedule.paused else ""
        out.data(_line("schedule", f"{schedule.name}: {schedule.rule_text}{paused}"))
    for version in task.versions:
        out.data(_line("version", f"{version.fingerprint or '-'}: {_where(version)}"))
    if len(task.versions) > 1:
        what = ", ".join(task.differences())
        shown = f"{many(len(task.versions), 'version')} differ" + (f" in {what}" if what else "")
        out.note(f"{shown}; shown is the version of the most workers")
    if definition is None:
        out.note("no definition is stored: the workers could not publish it, or run an older jetjobs")
    elif definition.schema is not None:
        out.data("\n" + printable(json.dumps(definition.schema, indent=2, ensure_ascii=False)))
    else:
        out.note("no JSON schema: a type of the arguments has none, or it is longer than 64 KiB")


# Parts


def _declared(reader: JetJobs) -> list[TaskDefinition]:
    """The tasks of the app in this folder, if it has the same namespace. One that cannot be imported is left out,
    unless --app names it.
    """
    try:
        app = find_app(state.settings().settings.app)
    except (AppImportError, JetJobsError):
        if state.app is not None:
            raise
        return []
    if (state.settings(app=app).settings.queues.namespace or app.name) != reader.namespace:
        return []
    return [task.definition for name, task in app.tasks.items() if name == task.name]


def _row(task: TaskInfo, schedules: Sequence[Schedule]) -> list[str]:
    known = task.definition
    return [
        task.name,
        known.queue if known is not None else "-",
        str(len(task.workers)) + (" (differ)" if len(task.versions) > 1 else ""),
        str(known.retry.get("max_attempts", "-")) if known is not None else "-",
        show_duration(known.timeout) if known is not None and known.timeout is not None else "default",
        str(len(schedules)),
        known.signature if known is not None else "-",
    ]


def _facts(task: TaskDefinition) -> list[tuple[str, str]]:
    found = [("signature", task.signature)]
    found += [("about", line) for line in task.description.splitlines()[:1]]
    found += [("queue", f"{task.queue}, priority {task.priority}")]
    found += [("aliases", ", ".join(task.aliases))] if task.aliases else []
    found += [("secret", ", ".join(task.secret))] if task.secret else []
    found += [("retry", _policy(task.retry))]
    found += [(key, ", ".join(task.retry[key])) for key in ("retry_on", "dead_on") if task.retry.get(key)]
    found += [
        (
            "timeout",
            show_duration(task.timeout)
            if task.timeout is not None
            else "worker.timeout of the worker (default 5m)",
        )
    ]
    found += [("result", f"stored for {show_duration(task.result_ttl)}" if task.store_result else "not stored")]
    limit = f", at most {task.memory_limit / 2**20:.0f} MiB" if task.memory_limit is not None else ""
    found += [("isolation", task.isolation + limit)] if task.isolation != "none" else []
    return found


def _policy(retry: Mapping[str, Any]) -> str:
    """The policy in words.

    >>> _policy({"max_attempts": 5, "backoff": "exponential", "base_s": 2, "cap_s": 3600, "jitter": True})
    '5 attempts, exponential backoff from 2.0 s to 1h00m with jitter'
    """
    number = retry.get("max_attempts", "?")
    if number == 1:
        return "none: 1 attempt"
    base, cap = show_duration(float(retry.get("base_s") or 0)), show_duration(float(retry.get("cap_s") or 0))
    text = f"{number} attempts, {retry.get('backoff', '?')} backoff from {base} to {cap}"
    text += " with jitter" if retry.get("jitter") else ""
    age = retry.get("max_age_s")
    return text + (f", not after {show_duration(float(age))}" if age is not None else "")


def _where(version: TaskVersion) -> str:
    """Who has the version."""
    shown = ", ".join(version.workers[:10]) or "no running worker"
    shown += f" and {len(version.workers) - 10} more" if len(version.workers) > 10 else ""
    return shown + (", this app" if version.in_app else "")


def _line(key: str, value: str) -> str:
    return f"{key:<12}{one_line(value, None)}"
