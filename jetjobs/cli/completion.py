"""Shell completion of names, read from the server within 300 ms; offers nothing on failure."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetjobs.cli.global_options import hoist

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.model.settings import Settings

LIMIT_S = 0.3
MOST = 200
"""Maximum number of dead letter ids offered."""


def queue_names(incomplete: str) -> list[str]:
    return _names("queues", incomplete)


def task_names(incomplete: str) -> list[str]:
    return _names("tasks", incomplete)


def worker_names(incomplete: str) -> list[str]:
    return _names("workers", incomplete)


def schedule_names(incomplete: str) -> list[str]:
    return _names("schedules", incomplete)


def dead_ids(incomplete: str) -> list[str]:
    return _names("dead", incomplete)


def priorities(incomplete: str) -> list[str]:
    return [word for word in ("high", "normal", "low") if word.startswith(incomplete)]


def states(incomplete: str) -> list[str]:
    from jetjobs.model.job import JobState

    return [str(word) for word in JobState if word.startswith(incomplete)]


def event_kinds(incomplete: str) -> list[str]:
    from jetjobs.model.views.live_events import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _names(what: str, incomplete: str) -> list[str]:
    """On any error nothing is offered: a message would garble the line being typed."""
    with contextlib.suppress(Exception):
        found = _query(what, _settings())
        return [name for name in found if name.startswith(incomplete) and name.isprintable()]
    return []


def _settings() -> Settings:
    """The settings of the line being typed, with global options anywhere in it."""
    from jetjobs.config import load_settings

    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    try:
        words = shlex.split(typed)
    except ValueError:  # an unclosed quote
        words = typed.split()
    given: dict[str, str] = {}
    front = iter(hoist(words[1:]))
    for word in front:
        name, equals, value = word.partition("=")
        key = {"-s": "server", "--server": "server"}.get(name, name.lstrip("-"))
        if name in ("-s", "--server", "--namespace", "--creds", "--context", "--config"):
            given[key] = value if equals else next(front, "")
    flags = {
        "nats.url": given.get("server"),
        "nats.creds": given.get("creds"),
        "queues.namespace": given.get("namespace"),
    }
    config = Path(given["config"]) if given.get("config") else None
    return load_settings(flags, config=config, context=given.get("context")).settings


def _query(what: str, settings: Settings) -> list[str]:
    """Query in a thread that is abandoned when time is up: a server that hangs must not block the shell."""
    import asyncio
    import logging

    from jetjobs.app import JetJobs
    from jetjobs.cli.state import namespaces_on, only_one

    logging.disable()
    found: list[list[str]] = []
    done = threading.Event()

    async def query() -> None:
        # Importing the app could take longer, and print on the line being typed.
        namespace = settings.queues.namespace or only_one(await namespaces_on(settings))
        app = JetJobs(namespace)
        app.configure(settings)
        async with app:
            found.append(await _QUERIES[what](app))
            done.set()

    def work() -> None:
        with contextlib.suppress(BaseException):
            asyncio.run(query())
        done.set()

    threading.Thread(target=work, daemon=True).start()
    done.wait(LIMIT_S)
    return found[0] if found else []


async def _queues(app: JetJobs) -> list[str]:
    return await app.queues.names()


async def _tasks(app: JetJobs) -> list[str]:
    return sorted({task for worker in await app.workers.list() for task in worker.tasks})


async def _workers(app: JetJobs) -> list[str]:
    return [worker.key for worker in await app.workers.list()]


async def _schedules(app: JetJobs) -> list[str]:
    from jetjobs.model.wire.validation import is_schedule_name

    # A name written without jetjobs may contain characters that the shell would interpret.
    return [one.name for one in await app.jetstream.schedules.all() if is_schedule_name(one.name)]


async def _dead(app: JetJobs) -> list[str]:
    found: dict[str, None] = {}
    async for letter in app.dead.list():
        found[letter.id] = None
        if len(found) == MOST:
            break
    return list(found)


_QUERIES: dict[str, Callable[[JetJobs], Coroutine[Any, Any, list[str]]]] = {
    "queues": _queues,
    "tasks": _tasks,
    "workers": _workers,
    "schedules": _schedules,
    "dead": _dead,
}
