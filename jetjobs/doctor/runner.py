"""Run the checks of the doctor, each within a time limit, and collect their findings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import get_args

from jetjobs.define.router import Router
from jetjobs.doctor.checks import app, queues, schedules, server, topology, workers
from jetjobs.doctor.finding import AREAS, Area, Check, CheckContext, Finding
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.wire_version import check_layout
from jetjobs.model.errors import AccessDenied, BrokerError, ConfigError, JetJobsError, TopologyConflict
from jetjobs.model.events import Event
from jetjobs.model.settings import Settings
from jetjobs.model.wire.subjects import Names

NO_NAMES = Names("-")
"""Stands for an unknown namespace; none has this name."""
LIMIT_S = 20.0
"""Time limit of each check. Exceeding it is a finding."""
CHECKS: dict[Area, tuple[Check, ...]] = {
    "nats": server.CHECKS,
    "topology": topology.CHECKS,
    "queues": queues.CHECKS,
    "schedules": schedules.CHECKS,
    "workers": workers.CHECKS,
    "app": app.CHECKS,
}
NEED_QUEUES = frozenset(
    {server.writes, server.durability, server.permissions, topology.pin, topology.orphans, *queues.CHECKS}
    - {queues.letters}
)
"""Checks that are pointless without a queue on the server."""


async def run_checks(
    settings: Settings,
    names: Names | None,
    router: Router | None = None,
    *,
    only: Collection[str] | None = None,
    trouble: Finding | None = None,
    limit_s: float = LIMIT_S,
) -> list[Finding]:
    """Run every check of the areas in `only`, or of all areas. ConfigError for an unknown area.

    It opens a connection of its own, so that it can report why connecting fails. `trouble` is a finding that the
    caller has already: why the app could not be loaded. Without `names`, no namespace is known.
    """
    wanted = areas(only)
    before = [trouble] if trouble is not None and "app" in wanted else []
    if "app" in wanted:
        before.append(app.dev_server(settings))
        if router is None and trouble is None:
            before.append(Finding("skip", "app", "tasks: no app was given", check="tasks"))
    jetstream = JetStreamClient(settings, names or NO_NAMES, "jetjobs-doctor", _ignore)
    try:
        await jetstream.open()
        try:
            with contextlib.suppress(AccessDenied):  # a user without this permission can still read streams
                await jetstream.connection.api(api.ACCOUNT_INFO)
            found = await _run_all(jetstream, settings, router, wanted, limit_s)
        finally:
            await jetstream.close()
    except (BrokerError, ConfigError) as error:
        return [*_unreachable(error, wanted), *before]
    return [*found, *before]


def areas(only: Collection[str] | None) -> list[Area]:
    """The given areas in the order of the report. ConfigError for an unknown area, and if none is given."""
    if only is not None and not only:
        raise ConfigError("--only names no area", hint=f"areas: {', '.join(AREAS)}")
    if unknown := sorted(set(only or ()) - set(get_args(Area))):
        raise ConfigError(f"unknown area {unknown[0]!r}", hint=f"areas: {', '.join(AREAS)}")
    return [area for area in AREAS if only is None or area in only]


async def _run_all(
    jetstream: JetStreamClient, settings: Settings, router: Router | None, wanted: list[Area], limit_s: float
) -> list[Finding]:
    found: list[Finding] = []
    try:
        existing = await list_queues(jetstream.connection, jetstream.names)
    except AccessDenied as error:
        # A user that may not list streams can still check the queues of the app.
        existing = router.task_queues if router is not None else []
        text = f"this user may not list streams ({error}): only the queues of the app are checked"
        found.append(Finding("skip", "topology", text, "run it with the permissions of an operator", "queues"))
    await check_layout(jetstream.connection, jetstream.names, existing)
    if not existing and router is None and "topology" in wanted:
        known = jetstream.names is not NO_NAMES
        text = f"namespace {jetstream.names.namespace} has no queues" if known else "the server has no queues"
        found.append(Finding("warn", "topology", text, "jetjobs setup apply", "queues"))
    context = CheckContext(jetstream, settings, tuple(existing), router)
    for area in wanted:
        # One after the other: they are quick, and must not affect each other's measurements.
        for check in CHECKS[area]:
            if existing or check not in NEED_QUEUES:
                found += await _run_one(check, area, context, limit_s)
        if area == "queues" and not existing:
            found.append(Finding("skip", "queues", "the server has no queues", check="queues"))
    return found


async def _run_one(check: Check, area: Area, context: CheckContext, limit_s: float) -> list[Finding]:
    name = getattr(check, "__name__", "check")
    try:
        async with asyncio.timeout(limit_s):
            results = await check(context)
        return [Finding(one.level, area, one.text, one.hint, one.check or name) for one in results]
    except TimeoutError:
        text = f"{name}: no answer within {limit_s:g} s"
        return [Finding("fail", area, text, "check the load and the log of the server", name)]
    except AccessDenied as error:
        hint = "run it with the permissions of setup or operator"
        return [Finding("skip", area, f"{name}: missing permissions ({error})", hint, name)]
    except JetJobsError as error:
        return [Finding("fail", area, f"{name}: {error}", error.hint or "", name)]
    except Exception as error:
        # A broken check must not hide the findings of the others.
        text = f"{name}: internal error (please report): {type(error).__name__}: {error}"
        return [Finding("fail", area, text, "", name)]


def _unreachable(error: JetJobsError, wanted: list[Area]) -> list[Finding]:
    skipped = [area for area in wanted if area not in ("nats", "app")]
    if isinstance(error, TopologyConflict):
        found = [Finding("fail", "topology", str(error), error.hint or "", "layout")]
        skipped = [area for area in skipped if area != "topology"]
        return found + [
            Finding("skip", area, "the streams have another layout", check="layout") for area in skipped
        ]
    found = [Finding("fail", "nats", str(error), error.hint or "", "reach")]
    return found + [Finding("skip", area, "the server is unreachable", check="reach") for area in skipped]


def _ignore(event: Event) -> None:
    """Events of the doctor's own connection appear in its findings."""
