"""`jetjobs top`: a live view of queues, running jobs and workers, with keys that open, cancel and pause.

This module imports little: the first frame is drawn before nats-py, pydantic and the app are imported.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from jetjobs.cli.exit_codes import DONE
from jetjobs.cli.live.frame import frame
from jetjobs.cli.live.snapshot import Data, Snapshot
from jetjobs.cli.live.view_state import Page, View
from jetjobs.cli.state import run_async, state
from jetjobs.cli.terminal.options import read_duration
from jetjobs.cli.terminal.screen import Screen
from jetjobs.model.errors import ConfigError

commands = typer.Typer()


@commands.command()
def top(
    refresh: Annotated[
        str, typer.Option(help="Time between two updates, from 200ms to 1h.", metavar="DURATION")
    ] = "1s",
) -> int:
    """Show queues, running jobs and workers, live.

    Open queues and jobs, cancel, pause: ? lists the keys. Prints once when not on a terminal.
    """
    seconds = read_duration("--refresh", refresh).total_seconds()
    if not 0.2 <= seconds <= 3600:
        raise ConfigError("--refresh must be from 200ms to 1h")
    if state.out.as_json or not sys.stdout.isatty():
        return run_async(_once)
    return show(Page("queues"), seconds)


def show(page: Page, refresh_s: float, queue: str | None = None, task: str | None = None) -> int:
    """Open the live view on this page until it is left; with `queue` or `task`, only their running jobs."""
    view, screen = View((page,)), Screen()
    try:
        with screen:
            first = Data(Snapshot(0.0), namespace=state.namespace or "", connected=False)
            screen.draw(frame(view, first, *screen.size).painted(state.out.colour))
            with screen.quit_key():  # importing an app may take seconds
                from jetjobs.cli.live.live_view import LiveView

                loaded = state.discover()
            run_async(lambda: LiveView(screen, view, refresh_s, queue=queue, task=task).run(loaded))
    except KeyboardInterrupt:
        if not screen.quit_pressed:
            raise
    return DONE


async def _once() -> int:
    import asyncio
    import time

    from jetjobs.admin.queues import RATES_OVER
    from jetjobs.cli.live.plain_text import plain

    async with state.reader() as app:
        before = await app.queues.list(rates_over=0)
        await asyncio.sleep(RATES_OVER.total_seconds())
        queues, running, workers = await asyncio.gather(
            app.queues.list(rates_over=0, before=before), app.jobs.running(), app.workers.list()
        )
    snapshot = Snapshot(time.time(), queues, running, workers)
    if state.out.as_json:
        state.out.json(snapshot.to_json())
    else:
        for line in plain(snapshot):
            state.out.data(line)
    return DONE
