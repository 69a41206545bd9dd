"""Checks of the app: its tasks have queues, and production does not use the development server."""

from __future__ import annotations

from pathlib import Path

from jetjobs.config import DEV_FILE, find_dev_server
from jetjobs.doctor.finding import Check, CheckContext, CheckResult, Finding, many
from jetjobs.model.settings import Settings


async def tasks(context: CheckContext) -> list[CheckResult]:
    if context.router is None:
        return []  # reported by the runner
    by_queue: dict[str, list[str]] = {}
    declared = set(context.router.tasks.values())
    for task in sorted(declared, key=lambda task: task.name):
        by_queue.setdefault(task.queue, []).append(task.name)
    found = []
    for queue, names in sorted(by_queue.items()):
        if queue not in context.queues:
            text = f"queue {queue} does not exist: {', '.join(names[:3])} cannot be enqueued"
            found.append(CheckResult("fail", text, "jetjobs setup apply"))
    return found or [CheckResult("ok", f"{many(len(declared), 'task')}, every queue exists")]


def dev_server(settings: Settings) -> Finding:
    """The server of `jetjobs dev` serves one machine and keeps its data in the project's folder."""
    dev = find_dev_server(Path.cwd()) if settings.env == "production" else None
    if dev is not None and dev["url"] == settings.nats.url:
        text = f"env is production, but the server is the one of `jetjobs dev` ({DEV_FILE})"
        return Finding("fail", "app", text, "set nats.url (JETJOBS_NATS__URL)", "dev_server")
    return Finding("ok", "app", f"env {settings.env}, settings are valid", check="dev_server")


CHECKS: tuple[Check, ...] = (tasks,)
