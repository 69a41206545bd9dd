"""`jetjobs top`: look once a second, draw, and hear keys. It only reads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Annotated, Any, Self

import typer

from jetjobs.admin.queues import RATES_S
from jetjobs.app import JetJobs
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import read_duration
from jetjobs.cli.terminal.output import DONE
from jetjobs.cli.terminal.progress import cut
from jetjobs.cli.terminal.top_screen import Snapshot, plain, view
from jetjobs.model.errors import BrokerError, ConfigError
from jetjobs.model.views.queue_info import QueueState

SHORTEST_S = 0.2
MANY_QUEUES = 50
"""Beyond so many the server is asked every five seconds at the most."""
MANY_S = 5.0
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"
ESCAPE = "\x1b"
RUBOUT = "\x7f"


commands = typer.Typer()


@commands.command()
async def top(
    refresh: Annotated[str, typer.Option(help="Time between two looks.")] = "1s",
) -> int:
    """Queues, running jobs and workers, live. Keys: p pause, / filter, q quit. One look when not on a terminal."""
    seconds = read_duration("--refresh", refresh).total_seconds()
    if not SHORTEST_S <= seconds <= 3600:
        raise ConfigError("--refresh is from 200ms to 1h")
    async with state.reader() as app:
        if state.out.as_json or not sys.stdout.isatty():
            return await _once(app)
        await Top(app, seconds).run()
    return DONE


async def _once(app: JetJobs) -> int:
    before = await app.queues.list(rates_s=0)
    await asyncio.sleep(RATES_S)
    snapshot = await look(app, before)
    if state.out.as_json:
        state.out.json(snapshot.to_json())
    else:
        for line in plain(snapshot):
            state.out.data(line)
    return DONE


async def look(app: JetJobs, before: Sequence[QueueState]) -> Snapshot:
    """Everything at one moment; rates are those since the queues were as `before`."""
    queues, running, workers = await asyncio.gather(
        app.queues.list(rates_s=0, before=before), app.jobs.running(), app.workers.list()
    )
    return Snapshot(time.time(), queues, running, workers)


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
        while True:
            started = time.monotonic()
            if not self._paused:
                try:
                    self._snapshot = (await look(self._app, self._snapshot.queues)).only(self._queue, self._task)
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


class Screen:
    """Takes over the terminal of standard output. `on_key` is called with each character that is typed."""

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(termios.error, OSError, ValueError, NotImplementedError):
            keyboard = sys.stdin.fileno()
            before = termios.tcgetattr(keyboard)  # raises where it is no terminal: then there are no keys
            tty.setcbreak(keyboard)
            self._before = before
            asyncio.get_running_loop().add_reader(keyboard, self._read)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            keyboard = sys.stdin.fileno()
            asyncio.get_running_loop().remove_reader(keyboard)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, self._before)
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, as they are now."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """These lines from the top, cut to the size; nothing else stays."""
        columns, rows = self.size
        # One column less: in the last one, to clear the rest of the line would take its character too.
        shown = [cut(line, columns - 1) + "\x1b[K" for line in lines[:rows]]
        self._write("\x1b[H" + "\r\n".join(shown) + "\x1b[J")

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
        text = data.decode(errors="ignore")
        if text.startswith(ESCAPE) and len(text) > 1:
            return  # an arrow or a function key: none of ours
        for key in text:
            self._on_key(key)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
