"""What `jetjobs top` does: look once a second, draw, and hear keys. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from jetjobs.app import JetJobs
from jetjobs.cli.output import DONE
from jetjobs.cli.run_workers import reader
from jetjobs.cli.screen import ESCAPE, RUBOUT, Screen
from jetjobs.cli.state import state
from jetjobs.cli.top_view import Snapshot, plain, view
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import BrokerError, ConfigError
from jetjobs.queues import RATES_S, Glances

SHORTEST_S = 0.2
MANY_QUEUES = 50
"""Beyond so many the server is asked every five seconds at the most."""
MANY_S = 5.0


async def top_command(refresh: str) -> int:
    try:
        seconds = parse_duration(refresh).total_seconds()
    except ValueError as error:
        raise ConfigError(f"--refresh: {error}") from None
    if not SHORTEST_S <= seconds <= 3600:
        raise ConfigError("--refresh is from 200ms to 1h")
    async with reader() as app:
        if state.out.as_json or not sys.stdout.isatty():
            return await _once(app)
        await Top(app, seconds).run()
    return DONE


async def _once(app: JetJobs) -> int:
    seen = Glances()
    await look(app, seen)
    await asyncio.sleep(RATES_S)
    snapshot = await look(app, seen)
    if state.out.as_json:
        state.out.json(snapshot.to_json())
    else:
        for line in plain(snapshot):
            state.out.data(line)
    return DONE


async def look(app: JetJobs, seen: Glances) -> Snapshot:
    """Everything at one moment; rates are those since the last look."""
    workers, running = await asyncio.gather(app.workers.list(), app.jobs.running())
    return Snapshot(time.time(), await app.queues.glance(seen, workers), running, workers)


class Top:
    """The live view. Looking and drawing go on beside one another: a key is heard while the server is silent."""

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
        self._trouble = ""
        self._changed = asyncio.Event()
        self._quit = self._paused = False
        self._queue, self._task = queue, task
        self._filter = self._typing = ""
        self._asking = False

    async def run(self) -> None:
        looking = asyncio.create_task(self._look_for_ever())
        try:
            with Screen(self._on_key) as screen:
                while not self._quit:
                    if looking.done():
                        looking.result()  # a fault of ours; it ends by nothing else
                    screen.draw(self.lines(*screen.size))
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    def lines(self, columns: int, rows: int) -> list[str]:
        """What is drawn on a screen of that size."""
        # One column less, as the screen draws: else it would cut the last one that fits.
        return view(
            self._snapshot,
            columns - 1,
            rows,
            self._foot(),
            only_running=self._only_running,
            text=self._filter,
        )

    async def _look_for_ever(self) -> None:
        seen = Glances()
        while True:
            started = time.monotonic()
            if not self._paused:
                try:
                    self._snapshot = (await look(self._app, seen)).only(self._queue, self._task)
                    self._answered_at, self._trouble = time.monotonic(), ""
                except BrokerError as error:
                    self._trouble = str(error)
                self._changed.set()
            every_s = self._refresh_s if len(self._snapshot.queues) <= MANY_QUEUES else MANY_S
            await asyncio.sleep(max(SHORTEST_S, every_s - (time.monotonic() - started)))

    def _foot(self) -> str:
        if self._asking:
            return f"filter: {self._typing}_"
        parts = ["q quit", "p go on" if self._paused else "p pause", "/ filter"]
        if self._filter:
            parts.append(f"[{self._filter}]")
        if self._paused:
            parts.insert(0, "PAUSED")
        elif self._trouble or not self._app.jetstream.connection.connected:
            since = "" if self._answered_at is None else f" for {time.monotonic() - self._answered_at:.0f} s"
            parts.insert(0, f"NO ANSWER{since}, retrying")
        return "  ".join(parts)

    def _on_key(self, key: str) -> None:
        if self._asking:
            self._on_filter_key(key)
        elif key in ("q", "Q"):
            self._quit = True
        elif key in ("p", "P"):
            self._paused = not self._paused
        elif key == "/":
            self._asking, self._typing = True, ""
        elif key == ESCAPE:
            self._filter = ""
        self._changed.set()

    def _on_filter_key(self, key: str) -> None:
        if key in ("\r", "\n"):
            self._filter, self._asking = self._typing, False
        elif key == ESCAPE:
            self._filter, self._asking = "", False
        elif key in (RUBOUT, "\b"):
            self._typing = self._typing[:-1]
        elif key.isprintable():
            self._typing += key
