"""Checks of the workers that live: versions, the tasks they know, blocked event loops."""

from __future__ import annotations

from collections import defaultdict

from jetjobs.doctor.finding import Check, Finding, Look, many
from jetjobs.jetstream.inspection import live_workers
from jetjobs.model.durations import show_duration

LAG_S = 2.0


async def versions(look: Look) -> list[Finding]:
    workers = await live_workers(look.jetstream.connection, look.jetstream.names)
    by_version = defaultdict(list)
    for worker in workers:
        by_version[worker.version].append(worker.key)
    if len(by_version) < 2:
        one = f" of version {workers[0].version}" if workers else ""
        slots = sum(worker.total for worker in workers)
        return [
            Finding(
                "ok", "workers", f"{many(len(workers), 'worker')}{one}, {many(slots, 'slot')}", check="versions"
            )
        ]
    shown = ", ".join(f"{version} ({_few(keys)})" for version, keys in sorted(by_version.items()))
    return [
        Finding("warn", "workers", f"versions differ: {shown}", "finish the deployment of one version", "versions")
    ]


async def schemas(look: Look) -> list[Finding]:
    """One task with two shapes of arguments: a job may meet the worker that cannot read it."""
    shapes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for worker in await live_workers(look.jetstream.connection, look.jetstream.names):
        for task, shape in worker.tasks.items():
            if shape:
                shapes[task][shape].append(worker.key)
    for name, known in (look.router.tasks if look.router is not None else {}).items():
        if known.signature.fingerprint and name in shapes:
            shapes[name][known.signature.fingerprint].append("this app")
    found = [
        Finding(
            "warn",
            "workers",
            f"task {task} takes other arguments on {' than on '.join(_few(keys) for keys in of.values())}",
            "finish the deployment of one version",
            "schemas",
        )
        for task, of in sorted(shapes.items())
        if len(of) > 1
    ]
    return found or [Finding("ok", "workers", "every task has the same arguments everywhere", check="schemas")]


async def lag(look: Look) -> list[Finding]:
    found = []
    for worker in await live_workers(look.jetstream.connection, look.jetstream.names):
        if worker.lag_s >= LAG_S:
            text = f"the event loop of {worker.key} stood still for {show_duration(worker.lag_s)}"
            hint = 'a task blocks it: make it a plain def, or isolation="process"'
            found.append(Finding("warn", "workers", text, hint, "lag"))
    return found or [Finding("ok", "workers", "no event loop is blocked", check="lag")]


def _few(keys: list[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


CHECKS: tuple[Check, ...] = (versions, schemas, lag)
