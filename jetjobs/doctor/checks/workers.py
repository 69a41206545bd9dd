"""Checks of the running workers: versions, task signatures and blocked event loops."""

from __future__ import annotations

from collections import defaultdict

from jetjobs.doctor.finding import Check, CheckContext, CheckResult, many
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration

BLOCKED_S = 2.0
"""An event loop that lagged this much counts as blocked."""


async def versions(context: CheckContext) -> list[CheckResult]:
    workers = await live_workers(context.jetstream.connection, context.jetstream.names)
    by_version = defaultdict(list)
    for worker in workers:
        by_version[worker.version].append(worker.key)
    if len(by_version) < 2:
        version = f" of version {workers[0].version}" if workers else ""
        slots = sum(worker.total for worker in workers)
        return [CheckResult("ok", f"{many(len(workers), 'worker')}{version}, {many(slots, 'slot')}")]
    listed = ", ".join(f"{version} ({_first_few(keys)})" for version, keys in sorted(by_version.items()))
    return [CheckResult("warn", f"workers run different versions: {listed}", "finish the deployment")]


async def schemas(context: CheckContext) -> list[CheckResult]:
    """Finds tasks with different arguments in different workers: a worker may get a job it cannot read."""
    workers_by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for worker in await live_workers(context.jetstream.connection, context.jetstream.names):
        for task, fingerprint in worker.tasks.items():
            if fingerprint:
                workers_by[task][fingerprint].append(worker.key)
    for name, declared in (context.router.tasks if context.router is not None else {}).items():
        if declared.signature.fingerprint and name in workers_by:
            workers_by[name][declared.signature.fingerprint].append("this app")
    found = []
    for task, workers in sorted(workers_by.items()):
        if len(workers) > 1:
            groups = " and ".join(_first_few(keys) for keys in workers.values())
            text = f"the arguments of task {task} differ between {groups}"
            found.append(CheckResult("warn", text, "finish the deployment"))
    return found or [CheckResult("ok", "every task has the same arguments everywhere")]


async def lag(context: CheckContext) -> list[CheckResult]:
    found = []
    for worker in await live_workers(context.jetstream.connection, context.jetstream.names):
        if worker.lag_s >= BLOCKED_S:
            text = f"the event loop of worker {worker.key} was blocked for {show_duration(worker.lag_s)}"
            hint = 'a task blocks it: declare it as a plain `def` or with isolation="process"'
            found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", "no event loop is blocked")]


def _first_few(keys: list[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


CHECKS: tuple[Check, ...] = (versions, schemas, lag)
