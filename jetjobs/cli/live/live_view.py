"""A live view while it is open: connect, read, draw, and carry out what keys ask for."""

from __future__ import annotations

import asyncio
import contextlib
import time

from jetjobs.app import JetJobs
from jetjobs.cli.live.collector import Collector
from jetjobs.cli.live.frame import Frame, frame
from jetjobs.cli.live.snapshot import Content, Data, Snapshot
from jetjobs.cli.live.view_state import (
    ENTER,
    Action,
    Cancel,
    Extent,
    PauseQueue,
    ResumeQueue,
    Say,
    View,
    press,
)
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.screen import Screen
from jetjobs.config import LoadedSettings
from jetjobs.model.errors import BrokerError, JetJobsError
from jetjobs.model.views.job_changes import CancelOutcome

SHORTEST_S = 0.2
"""The shortest time between two reads."""
NOTE_S = 6.0
"""How long the outcome of an action is shown."""
CONFIRMING = ("y", "Y", ENTER)
CANCEL_S = 3.0
"""How long a cancel waits for a running job to end."""


class LiveView:
    """The live view. Connecting, reading, drawing and acting run concurrently, so that keys work while the server
    does not answer."""

    def __init__(
        self, screen: Screen, view: View, refresh_s: float, *, queue: str | None = None, task: str | None = None
    ) -> None:
        self._screen, self._view = screen, view
        self._refresh_s = refresh_s
        self._queue, self._task = queue, task
        self._app: JetJobs | None = None
        self._snapshot = Snapshot(0.0)
        self._content: Content | None = None
        self._place = view.page.place
        self._size = screen.size
        self._drawn: View | None = None
        self._extent = Extent()
        self._visible: tuple[str, ...] = ()
        self._answered_at = time.monotonic()
        self._failed = False
        self._note, self._bad, self._noted_at = "", False, 0.0
        self._changed, self._refresh_now = asyncio.Event(), asyncio.Event()
        self._acting: set[asyncio.Task[None]] = set()
        self._asked_in = -1
        """The read of the keyboard that opened a question."""

    async def run(self, loaded: LoadedSettings) -> None:
        """Connect, then show the view until it is left. Raises what prevents the connection."""
        reading = asyncio.create_task(self._connect_and_read(loaded))
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            with self._screen.listening(self._on_key, self._changed.set):
                while not self._view.quit:
                    if reading.done():
                        reading.result()  # raises
                    self._size = self._screen.size
                    self._screen.draw(self._frame().painted(state.out.colour))
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()
                if self._acting:  # what was confirmed is done before the command ends
                    await asyncio.gather(*self._acting, return_exceptions=True)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _frame(self) -> Frame:
        drawn = frame(self._view, self._data(), *self._size)
        self._drawn, self._extent, self._visible = self._view, drawn.extent, tuple(drawn.visible)
        return drawn

    def _data(self) -> Data:
        if self._app is None:
            return Data(self._snapshot, namespace=state.namespace or "", connected=False)
        now = time.monotonic()
        silent = self._failed or not self._app.jetstream.connection.connected
        noted = self._note if now - self._noted_at < NOTE_S else ""
        return Data(
            self._snapshot,
            self._content if self._place == self._view.page.place else None,
            self._app.jetstream.names.namespace,
            silent_s=now - self._answered_at if silent and not self._view.frozen else None,
            note=noted,
            bad=self._bad,
        )

    # Reading

    async def _connect_and_read(self, loaded: LoadedSettings) -> None:
        async with await state.app_for(loaded) as app:
            self._app, self._answered_at = app, time.monotonic()
            self._changed.set()
            await self._read(Collector(app, only_running=self._view.pages[0].kind == "running"))

    async def _read(self, collector: Collector) -> None:
        due = 0.0
        while True:
            if not self._view.frozen or self._place != self._view.page.place:
                try:
                    if time.monotonic() >= due and not self._view.frozen:
                        due = time.monotonic() + self._refresh_s
                        snapshot = await collector.snapshot(self._visible)
                        self._snapshot = snapshot.only(self._queue, self._task)
                        self._answered_at, self._failed = time.monotonic(), False
                    place = self._view.page.place
                    self._content, self._place = await collector.content(self._view.page), place
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
        prompt, reads = self._view.prompt, self._screen.reads
        if prompt is not None and prompt.action is not None and key in CONFIRMING and reads == self._asked_in:
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
            assert self._app is not None  # without data there is nothing to select
            await self._carry_out(self._app, action)
        except JetJobsError as error:
            self._say(f"failed: {error}", bad=True)
        self._refresh_now.set()

    async def _carry_out(self, app: JetJobs, action: Action) -> None:
        by = operator()
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
            resumed = await app.queues.resume(action.queue, by=by, reason="from jetjobs top")
            self._say(f"queue {action.queue} {'is resumed' if resumed else 'was not paused'}")
