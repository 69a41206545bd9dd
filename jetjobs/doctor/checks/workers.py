"""Checks of the running workers: versions, tasks and their arguments, leases and blocked event loops."""

from __future__ import annotations

from collections import defaultdict

from jetjobs.doctor.finding import Check, CheckContext, CheckResult, Level, many
from jetjobs.jetstream.queues.inspection import consumers_of
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.views.task_info import schema_hash
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.model.wire import subjects as n

BLOCKED_S = 2.0
"""An event loop that lagged this much counts as blocked."""


async def versions(context: CheckContext) -> list[CheckResult]:
    workers = await live_workers(context.jetstream.connection, context.jetstream.names)
    if not workers:
        return [CheckResult("warn", "no running workers", "start one with `jetjobs worker`")]
    by_version = defaultdict(list)
    for worker in workers:
        by_version[worker.version].append(worker.key)
    if len(by_version) < 2:
        slots = sum(worker.total for worker in workers)
        text = f"{many(len(workers), 'worker')} of version {workers[0].version}, {many(slots, 'slot')}"
        return [CheckResult("ok", text)]
    listed = ", ".join(f"{version} ({_first_few(keys)})" for version, keys in sorted(by_version.items()))
    return [CheckResult("warn", f"workers run different versions: {listed}", "finish the deployment")]


async def task_sets(context: CheckContext) -> list[CheckResult]:
    """Finds workers of one queue that know different tasks: a job that meets the wrong one is parked."""
    by_queue: dict[str, list[WorkerRecord]] = defaultdict(list)
    for worker in await live_workers(context.jetstream.connection, context.jetstream.names):
        if worker.takes_jobs and worker.total:
            for queue in worker.queues:
                by_queue[queue].append(worker)
    found = []
    for queue, workers in sorted(by_queue.items()):
        every = {task for worker in workers for task in worker.tasks}
        by_lack: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for worker in workers:
            if missing := every - worker.tasks.keys():
                by_lack[tuple(sorted(missing))].append(worker.key)
        for lack, keys in sorted(by_lack.items()):
            what = f"{'worker' if len(keys) == 1 else 'workers'} {_first_few(keys)}"
            what += f" {'lacks' if len(keys) == 1 else 'lack'} {'task' if len(lack) == 1 else 'tasks'}"
            text = f"queue {queue}: {what} {_first_few([*lack])}, known to other workers of the queue"
            hint = "finish the deployment; if these are workers of different apps, give each a queue of its own"
            found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", "workers of one queue know the same tasks")]


async def schemas(context: CheckContext) -> list[CheckResult]:
    """Finds tasks with different arguments in different workers: a worker may get a job it cannot read."""
    workers_by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for worker in await live_workers(context.jetstream.connection, context.jetstream.names):
        for task, fingerprint in worker.tasks.items():
            if schema := schema_hash(fingerprint):
                workers_by[task][schema].append(worker.key)
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


async def leases(context: CheckContext) -> list[CheckResult]:
    """Finds workers that send heartbeats for a longer lease than their lanes have."""
    connection, names = context.jetstream.connection, context.jetstream.names
    shortest: dict[str, float] = {}
    found = []
    for worker in await live_workers(connection, names):
        for queue in sorted(worker.queues):
            if queue not in shortest:
                lanes = await consumers_of(connection, names.work_stream(queue))
                waits = [lane["config"]["ack_wait"] / api.NS for lane in lanes if lane["name"] in n.PULLED]
                shortest[queue] = min(waits, default=worker.lease.total_seconds())
            lease_s = worker.lease.total_seconds()
            if lease_s > shortest[queue]:
                text = f"worker {worker.key} sends heartbeats for a lease of {show_duration(lease_s)}, but "
                text += f"a lane of queue {queue} has {show_duration(shortest[queue])}: its jobs may run twice"
                level: Level = "fail" if lease_s / 3 >= shortest[queue] else "warn"
                hint = "it reads the lease of its lanes once a minute; restart it if it does not"
                found.append(CheckResult(level, text, hint))
    return found or [CheckResult("ok", "every worker knows the lease of its lanes")]


async def lag(context: CheckContext) -> list[CheckResult]:
    found = []
    for worker in await live_workers(context.jetstream.connection, context.jetstream.names):
        if worker.lag.total_seconds() >= BLOCKED_S:
            text = f"the event loop of worker {worker.key} was blocked for {show_duration(worker.lag)}"
            hint = 'a task blocks it: declare it as a plain `def` or with isolation="process"'
            found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", "no event loop is blocked")]


def _first_few(keys: list[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


CHECKS: tuple[Check, ...] = (versions, task_sets, schemas, leases, lag)
