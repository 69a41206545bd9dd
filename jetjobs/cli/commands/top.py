"""`jetjobs top`: a live view of queues, running jobs and workers, with keys that open, cancel and pause."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from jetjobs.admin.queues import RATES_OVER
from jetjobs.app import JetJobs
from jetjobs.cli.exit_codes import DONE
from jetjobs.cli.live.collector import Collector
from jetjobs.cli.live.snapshot import Content, Data, Snapshot
from jetjobs.cli.live.view_state import (
    Action,
    Cancel,
    Extent,
    Page,
    PauseQueue,
    ResumeQueue,
    Say,
    View,
    press,
)
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.options import read_duration
from jetjobs.cli.terminal.screen import Screen
from jetjobs.model.errors import BrokerError, ConfigError, JetJobsError
from jetjobs.model.views.job_changes import CancelOutcome

SHORTEST_S = 0.2
NOTE_S = 6.0
"""How long the outcome of an action is shown."""
CANCEL_S = 3.0
"""How long a cancel waits for a running job to end."""

commands = typer.Typer()


@commands.command()
async def top(
    refresh: Annotated[
        str, typer.Option(help="Time between two updates, from 200ms to 1h.", metavar="DURATION")
    ] = "1s",
) -> int:
    """Show queues, running jobs and workers, live.

    Open queues and jobs, cancel, pause: ? lists the keys. Prints once when not on a terminal.
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
    from jetjobs.cli.live.plain_text import plain

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


class Top:
    """The live view. Reading, drawing and acting run concurrently, so that keys work while the server does not
    answer."""

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
        self._queue, self._task = queue, task
        self._collector = Collector(app, only_running=only_running)
        self._view = View((Page("running" if only_running else "queues"),))
        self._snapshot = Snapshot(0.0)
        self._content: Content | None = None
        self._place = self._view.page.place
        self._size = (80, 24)
        self._drawn = self._view
        self._extent = Extent()
        self._visible: tuple[str, ...] = ()
        self._answered_at = time.monotonic()
        self._failed = False
        self._note, self._bad, self._noted_at = "", False, 0.0
        self._changed, self._refresh_now = asyncio.Event(), asyncio.Event()
        self._acting: set[asyncio.Task[None]] = set()
        self._reads: Callable[[], int] = lambda: 0
        self._asked_in = -1
        """The read of the keyboard that opened a question."""

    async def run(self) -> None:
        # Here and not at the top: only this command needs rich.
        from rich.console import Console

        console = Console(force_terminal=True, no_color=not state.out.colour, highlight=False)
        reading = asyncio.create_task(self._read())
        try:
            with Screen(self._on_key, self._changed.set) as screen:
                self._reads = lambda: screen.reads
                while not self._view.quit:
                    if reading.done():
                        reading.result()  # raises: only a bug ends this task
                    self._draw(screen, console)
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()
                if self._acting:  # what was confirmed is done before the command ends
                    await asyncio.gather(*self._acting, return_exceptions=True)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _draw(self, screen: Screen, console: Any) -> None:
        self._size = screen.size
        screen.draw(self._frame().painted(console))

    def _frame(self) -> Any:
        from jetjobs.cli.live.frame import frame

        drawn = frame(self._view, self._data(), *self._size)
        self._drawn, self._extent, self._visible = self._view, drawn.extent, tuple(drawn.visible)
        return drawn

    def _data(self) -> Data:
        now = time.monotonic()
        silent = self._failed or not self._app.jetstream.connection.connected
        noted = self._note if now - self._noted_at < NOTE_S else ""
        return Data(
            self._snapshot,
            self._content if self._place == self._view.page.place else None,
            self._app.jetstream.names.namespace,
            now - self._answered_at if silent and not self._view.frozen else None,
            noted,
            self._bad,
        )

    # Reading

    async def _read(self) -> None:
        due = 0.0
        while True:
            if not self._view.frozen or self._place != self._view.page.place:
                try:
                    if time.monotonic() >= due and not self._view.frozen:
                        due = time.monotonic() + self._refresh_s
                        snapshot = await self._collector.snapshot(self._visible)
                        self._snapshot = snapshot.only(self._queue, self._task)
                    place = self._view.page.place
                    self._content, self._place = await self._collector.content(self._view.page), place
                    self._answered_at, self._failed = time.monotonic(), False
                except BrokerError:
                    self._failed = True
                self._changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(SHORTEST_S, due - time.monotonic())):
                    await self._refresh_now.wait()
            self._refresh_now.clear()

    # Keys and actions

    def _on_key(self, key: str) -> None:
        if self._view != self._drawn:  # several keys arrived at once: each acts on what the one before has opened
            self._frame()
        prompt, reads = self._view.prompt, self._reads()
        if prompt is not None and key == "y" and prompt.action is not None and reads == self._asked_in:
            return  # pasted: the question was not seen
        before = self._view.page.place
        self._view, action = press(self._view, key, self._extent)
        if prompt is None and self._view.prompt is not None:
            self._asked_in = reads
        if isinstance(action, Say):
            self._say(action.text)
        elif action is not None:
            task = asyncio.create_task(self._act(action))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)
        if self._view.page.place != before:
            self._note = ""
            self._refresh_now.set()
        self._changed.set()

    def _say(self, text: str, *, bad: bool = False) -> None:
        self._note, self._bad, self._noted_at = text, bad, time.monotonic()
        self._changed.set()

    async def _act(self, action: Action) -> None:
        try:
            self._say("working …")
            await self._carry_out(action)
        except JetJobsError as error:
            self._say(f"failed: {error}", bad=True)
        self._refresh_now.set()

    async def _carry_out(self, action: Action) -> None:
        app, by = self._app, operator()
        if isinstance(action, Cancel):
            answer = await app.jobs.cancel(
                action.id, queue=action.queue, task=action.task, by=by, reason="from jetjobs top", timeout=CANCEL_S
            )
            detail = f": {answer.detail}" if answer.detail else ""
            self._say(
                f"job {action.id}: {answer.outcome}{detail}", bad=answer.outcome is not CancelOutcome.CANCELLED
            )
        elif isinstance(action, PauseQueue):
            await app.queues.pause(action.queue, reason=action.reason, by=by)
            self._say(f"queue {action.queue} is paused")
        elif isinstance(action, ResumeQueue):
            resumed = await app.queues.resume(action.queue)
            self._say(f"queue {action.queue} {'is resumed' if resumed else 'was not paused'}")
