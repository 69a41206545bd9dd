"""Checks of the app: its queues, and where its settings lead."""

from __future__ import annotations

from pathlib import Path

from jetjobs.config import DEV_FILE, find_dev_server
from jetjobs.doctor.finding import Check, Finding, Look, many
from jetjobs.model.settings import Settings


async def tasks(look: Look) -> list[Finding]:
    if look.router is None:
        return []  # said elsewhere
    by_queue: dict[str, list[str]] = {}
    for name, task in sorted(look.router.tasks.items()):
        by_queue.setdefault(task.queue, []).append(name)
    found = []
    for queue, names in sorted(by_queue.items()):
        if queue not in look.queues:
            text = f"queue {queue} is not on the server: {', '.join(names[:3])} cannot be enqueued"
            found.append(Finding("fail", "app", text, "jetjobs setup apply", "tasks"))
    text = f"{many(len(look.router.tasks), 'task')}, each with its queue on the server"
    return found or [Finding("ok", "app", text, check="tasks")]


def dev_server(settings: Settings) -> Finding:
    """The server of `jetjobs dev` is for one machine, and its data in a folder of the project."""
    dev = find_dev_server(Path.cwd()) if settings.env == "production" else None
    if dev is not None and dev["url"] == settings.nats.url:
        text = f"env is production, and the server is the one of jetjobs dev ({DEV_FILE})"
        return Finding("fail", "app", text, "set nats.url (JETJOBS_NATS__URL)", "dev_server")
    return Finding("ok", "app", f"env {settings.env}, settings read", check="dev_server")


CHECKS: tuple[Check, ...] = (tasks,)
