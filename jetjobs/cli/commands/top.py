"""`jetjobs top`: a live view of queues, running jobs and workers, with keys. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from jetjobs.admin.queues import RATES_OVER
from jetjobs.app import JetJobs
from jetjobs.cli.exit_codes import DONE
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import read_duration
from jetjobs.cli.terminal.screen import ESCAPE, RUBOUT, Screen
from jetjobs.cli.terminal.top_screen import Snapshot, plain, view
from jetjobs.model.errors import BrokerError, ConfigError
from jetjobs.model.views.queue_info import QueueState

SHORTEST_S = 0.2
MANY_QUEUES = 50
"""With more queues than this, the server is queried at most every `MANY_S`."""
MANY_S = 5.0

commands = typer.Typer()


@commands.command()
async def top(
    refresh: Annotated[
        str, typer.Option(help="Time between two updates, from 200ms to 1h.", metavar="DURATION")
    ] = "1s",
) -> int:
    """Show queues, running jobs and workers, live.

    Keys: p pause, / filter, q quit. Prints once when not on a terminal.
    """
    seconds = read_duration("--refresh", refresh).total_seconds()
    if not SHORTEST_S <= seconds <= 3600:
        raise ConfigError("--refresh must be from 200ms to 1h")
    async with state.reader() as app:
        if state.out.as_json or not sys.stdout.isatty():
            return await _once(app)
        await Top(app, seconds).run()
    return DONE


async def _once(app: JetJobs) -> int:
    before = await app.queues.list(rates_over=0)
    await asyncio.sleep(RATES_OVER.total_seconds())
    snapshot = await take_snapshot(app, before)
    if state.out.as_json:
        state.out.json(snapshot.to_json())
    else:
        for line in plain(snapshot):
            state.out.data(line)
    return DONE


async def take_snapshot(app: JetJobs, before: Sequence[QueueState]) -> Snapshot:
    """A snapshot of everything. Rates cover the time since the queue counts in `before`."""
    queues, running, workers = await asyncio.gather(
        app.queues.list(rates_over=0, before=before), app.jobs.running(), app.workers.list()
    )
    return Snapshot(time.time(), queues, running, workers)


class Top:
    """The live view. Querying and drawing run concurrently, so that keys work while the server does not answer."""

    def __init__(
        self,
        app: JetJobs,
        refresh_s: float,
        *,
        only_running: bool = False,
        queue: str | None = None,
        task: str | None = None,
    ) -> None:
        self._app = app
        self._refresh_s = refresh_s
        self._only_running = only_running
        self._snapshot = Snapshot(time.time(), [], [], [])
        self._answered_at: float | None = None
        self._error = ""
        self._changed = asyncio.Event()
        self._quit = self._paused = False
        self._queue, self._task = queue, task
        self._filter = self._typing = ""
        self._filtering = False

    async def run(self) -> None:
        querying = asyncio.create_task(self._refresh())
        try:
            with Screen(self._on_key) as screen:
                while not self._quit:
                    if querying.done():
                        querying.result()  # raises: only a bug ends this task
                    screen.draw(self.lines(*screen.size))
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()
        finally:
            querying.cancel()
            await asyncio.gather(querying, return_exceptions=True)

    def lines(self, columns: int, rows: int) -> list[str]:
        """The lines to draw on a screen of this size."""
        # One column less, because the screen draws one less and would cut the last table column.
        return view(
            self._snapshot,
            columns - 1,
            rows,
            self._foot(),
            only_running=self._only_running,
            text=self._filter,
        )

    async def _refresh(self) -> None:
        while True:
            started = time.monotonic()
            if not self._paused:
                try:
                    snapshot = await take_snapshot(self._app, self._snapshot.queues)
                    self._snapshot = snapshot.only(self._queue, self._task)
                    self._answered_at, self._error = time.monotonic(), ""
                except BrokerError as error:
                    self._error = str(error)
                self._changed.set()
            every_s = self._refresh_s if len(self._snapshot.queues) <= MANY_QUEUES else MANY_S
            await asyncio.sleep(max(SHORTEST_S, every_s - (time.monotonic() - started)))

    def _foot(self) -> str:
        if self._filtering:
            return f"filter: {self._typing}_"
        parts = ["q quit", "p resume" if self._paused else "p pause", "/ filter"]
        if self._filter:
            parts.append(f"[{self._filter}]")
        if self._paused:
            parts.insert(0, "PAUSED")
        elif self._error or not self._app.jetstream.connection.connected:
            since = "" if self._answered_at is None else f" for {time.monotonic() - self._answered_at:.0f} s"
            parts.insert(0, f"NO ANSWER{since}, retrying")
        return "  ".join(parts)

    def _on_key(self, key: str) -> None:
        if self._filtering:
            self._on_filter_key(key)
        elif key in ("q", "Q"):
            self._quit = True
        elif key in ("p", "P"):
            self._paused = not self._paused
        elif key == "/":
            self._filtering, self._typing = True, ""
        elif key == ESCAPE:
            self._filter = ""
        self._changed.set()

    def _on_filter_key(self, key: str) -> None:
        if key in ("\r", "\n"):
            self._filter, self._filtering = self._typing, False
        elif key == ESCAPE:
            self._filter, self._filtering = "", False
        elif key in (RUBOUT, "\b"):
            self._typing = self._typing[:-1]
        elif key.isprintable():
            self._typing += key
