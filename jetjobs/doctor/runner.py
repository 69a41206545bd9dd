"""Run the checks, each within a time limit, and gather what they found. With the checks of workers and app."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import get_args

from jetjobs.config import DEV_FILE, find_dev_server
from jetjobs.define.router import Router
from jetjobs.doctor.checks import queues, schedules, topology
from jetjobs.doctor.checks import server as nats
from jetjobs.doctor.finding import AREAS, Answer, Area, Check, Finding, Look, many
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.topology import list_queues
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import AccessDenied, BrokerError, ConfigError, JetJobsError
from jetjobs.model.events import Event
from jetjobs.model.settings import Settings

LIMIT_S = 20.0
"""For each check. One that takes longer is a finding itself."""
LAG_S = 2.0
"""An event loop that stood still for so long is blocked."""


async def versions(look: Look) -> list[Answer]:
    workers = await live_workers(look.jetstream.connection, look.jetstream.names)
    by_version = defaultdict(list)
    for worker in workers:
        by_version[worker.version].append(worker.key)
    if len(by_version) < 2:
        one = f" of version {workers[0].version}" if workers else ""
        slots = sum(worker.total for worker in workers)
        return [Answer("ok", f"{many(len(workers), 'worker')}{one}, {many(slots, 'slot')}")]
    shown = ", ".join(f"{version} ({_few(keys)})" for version, keys in sorted(by_version.items()))
    return [Answer("warn", f"versions differ: {shown}", "finish the deployment of one version")]


async def schemas(look: Look) -> list[Answer]:
    """One task with two shapes of arguments: a job may meet the worker that cannot read it."""
    shapes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for worker in await live_workers(look.jetstream.connection, look.jetstream.names):
        for task, shape in worker.tasks.items():
            if shape:
                shapes[task][shape].append(worker.key)
    for name, known in (look.router.tasks if look.router is not None else {}).items():
        if known.signature.fingerprint and name in shapes:
            shapes[name][known.signature.fingerprint].append("this app")
    found = []
    for task, of in sorted(shapes.items()):
        if len(of) > 1:
            text = f"task {task} takes other arguments on {' than on '.join(_few(keys) for keys in of.values())}"
            found.append(Answer("warn", text, "finish the deployment of one version"))
    return found or [Answer("ok", "every task has the same arguments everywhere")]


async def lag(look: Look) -> list[Answer]:
    found = []
    for worker in await live_workers(look.jetstream.connection, look.jetstream.names):
        if worker.lag_s >= LAG_S:
            text = f"the event loop of {worker.key} stood still for {show_duration(worker.lag_s)}"
            hint = 'a task blocks it: make it a plain def, or isolation="process"'
            found.append(Answer("warn", text, hint))
    return found or [Answer("ok", "no event loop is blocked")]


def _few(keys: list[str]) -> str:
    return ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


async def tasks(look: Look) -> list[Answer]:
    if look.router is None:
        return []  # said elsewhere
    by_queue: dict[str, list[str]] = {}
    for name, task in sorted(look.router.tasks.items()):
        by_queue.setdefault(task.queue, []).append(name)
    found = []
    for queue, names in sorted(by_queue.items()):
        if queue not in look.queues:
            text = f"queue {queue} is not on the server: {', '.join(names[:3])} cannot be enqueued"
            found.append(Answer("fail", text, "jetjobs setup apply"))
    text = f"{many(len(look.router.tasks), 'task')}, each with its queue on the server"
    return found or [Answer("ok", text)]


def dev_server(settings: Settings) -> Finding:
    """The server of `jetjobs dev` is for one machine, and its data in a folder of the project."""
    dev = find_dev_server(Path.cwd()) if settings.env == "production" else None
    if dev is not None and dev["url"] == settings.nats.url:
        text = f"env is production, and the server is the one of jetjobs dev ({DEV_FILE})"
        return Finding("fail", "app", text, "set nats.url (JETJOBS_NATS__URL)", "dev_server")
    return Finding("ok", "app", f"env {settings.env}, settings read", check="dev_server")


CHECKS: dict[Area, tuple[Check, ...]] = {
    "nats": nats.CHECKS,
    "topology": topology.CHECKS,
    "queues": queues.CHECKS,
    "schedules": schedules.CHECKS,
    "workers": (versions, schemas, lag),
    "app": (tasks,),
}
OF_QUEUES = frozenset(
    {nats.durability, nats.permissions, topology.pin, topology.orphans, *queues.CHECKS} - {queues.letters}
)
"""Checks that have nothing to look at where no queue is."""


async def examine(
    settings: Settings,
    router: Router | None = None,
    *,
    only: Collection[str] | None = None,
    trouble: Finding | None = None,
    limit_s: float = LIMIT_S,
) -> list[Finding]:
    """Every check of the areas in `only`, or of all. Over a connection of its own, so that it can say why there is
    none. `trouble` is what is known already: why there is no app. ConfigError for an area that is unknown."""
    wanted = areas(only)
    before = [trouble] if trouble is not None and "app" in wanted else []
    if "app" in wanted:
        before.append(dev_server(settings))
        if router is None and trouble is None:
            before.append(Finding("skip", "app", "tasks: no app was given", check="tasks"))
    jetstream = JetStreamClient(settings, "jetjobs-doctor", _ignore)
    try:
        await jetstream.open()
        try:
            with contextlib.suppress(AccessDenied):  # who may not ask for limits can still look at streams
                await jetstream.connection.api(api.ACCOUNT_INFO)
            found = await _examine(jetstream, settings, router, wanted, limit_s)
        finally:
            await jetstream.close()
    except BrokerError as error:
        return [*_unreachable(error, wanted), *before]
    return [*found, *before]


def areas(only: Collection[str] | None) -> list[Area]:
    """Those named, in the order of the output. ConfigError for one that is none, and for no area at all."""
    if only is not None and not only:
        raise ConfigError("--only names no area", hint=f"areas: {', '.join(AREAS)}")
    if unknown := sorted(set(only or ()) - set(get_args(Area))):
        raise ConfigError(f"there is no area {unknown[0]!r}", hint=f"areas: {', '.join(AREAS)}")
    return [area for area in AREAS if only is None or area in only]


async def _examine(
    jetstream: JetStreamClient, settings: Settings, router: Router | None, wanted: list[Area], limit_s: float
) -> list[Finding]:
    found: list[Finding] = []
    try:
        there = await list_queues(jetstream.connection, jetstream.names)
    except AccessDenied as error:
        # A user that may not list streams can still be told of the queues that the app has.
        there = router.task_queues if router is not None else []
        text = f"this user may not list streams ({error}): only queues of the app are looked at"
        found.append(Finding("skip", "topology", text, "run it as a user with the rights of operator", "queues"))
    if not there and router is None and "topology" in wanted:
        text = f"no queue stands in namespace {settings.queues.namespace}"
        found.append(Finding("warn", "topology", text, "jetjobs setup apply", "queues"))
    look = Look(jetstream, settings, tuple(there), router)
    for area in wanted:
        # One after the other: they are quick, and so do not disturb each other's looks.
        for check in CHECKS[area]:
            if there or check not in OF_QUEUES:
                found += await _one(check, area, look, limit_s)
        if area == "queues" and not there:
            found.append(Finding("skip", "queues", "there is no queue to look at", check="queues"))
    return found


async def _one(check: Check, area: Area, look: Look, limit_s: float) -> list[Finding]:
    name = getattr(check, "__name__", "check")
    try:
        async with asyncio.timeout(limit_s):
            answers = await check(look)
        return [Finding(a.level, area, a.text, a.hint, a.check or name) for a in answers]
    except TimeoutError:
        text = f"{name}: no answer within {limit_s:g} s"
        return [Finding("fail", area, text, "look at the server's load and log", name)]
    except AccessDenied as error:
        hint = "run it as a user with the rights of setup or operator"
        return [Finding("skip", area, f"{name}: this user may not look ({error})", hint, name)]
    except JetJobsError as error:
        return [Finding("fail", area, f"{name}: {error}", error.hint or "", name)]
    except Exception as error:
        # One check that breaks must not hide what the others see.
        return [Finding("fail", area, f"{name}: the check broke: {type(error).__name__}: {error}", "", name)]


def _unreachable(error: BrokerError, wanted: list[Area]) -> list[Finding]:
    left_out = [area for area in wanted if area not in ("nats", "app")]
    found = [Finding("fail", "nats", str(error), error.hint or "", "reach")]
    return found + [Finding("skip", area, "no server to look at", check="reach") for area in left_out]


def _ignore(event: Event) -> None:
    """What happens to the doctor's own connection is said in its findings."""
