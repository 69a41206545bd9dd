"""Run the checks, each within a time limit, and gather what they found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import get_args

from jetjobs.define.registry import Router
from jetjobs.doctor import app, nats, queues, schedules, topology, workers
from jetjobs.doctor.finding import AREAS, Area, Check, Finding, Look
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.topology import queues_on
from jetjobs.model.errors import AccessDenied, BrokerError, ConfigError, JetJobsError
from jetjobs.model.events import Event
from jetjobs.model.settings import Settings

LIMIT_S = 20.0
"""For each check. One that takes longer is a finding itself."""
CHECKS: dict[Area, tuple[Check, ...]] = {
    "nats": nats.CHECKS,
    "topology": topology.CHECKS,
    "queues": queues.CHECKS,
    "schedules": schedules.CHECKS,
    "workers": workers.CHECKS,
    "app": app.CHECKS,
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
        before.append(app.dev_server(settings))
        if router is None and trouble is None:
            before.append(Finding("skip", "app", "tasks: no app was given", check="tasks"))
    jetstream = JetStreamClient(settings, "jetjobs-doctor", _ignore)
    try:
        await jetstream.open()
        try:
            with contextlib.suppress(AccessDenied):  # who may not ask for limits can still look at streams
                await jetstream.connection.check_server()
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
        there = await queues_on(jetstream.connection, jetstream.names)
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
            return await check(look)
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
