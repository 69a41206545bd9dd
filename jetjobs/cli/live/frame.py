"""One frame of the live view: a function of the view, the data and the size of the screen."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from jetjobs.cli.live.columns import (
    BAR,
    BOLD,
    CAME,
    CHOSEN,
    DEAD,
    DIM,
    LATE,
    PAUSED,
    PLAIN,
    WENT,
    Line,
    bar,
    clean,
    fitted,
    width_of,
)
from jetjobs.cli.live.pages import Body
from jetjobs.cli.live.snapshot import Data, Snapshot
from jetjobs.cli.live.tables import short, short_rate
from jetjobs.cli.live.view_state import (
    Cancel,
    Extent,
    Page,
    PauseQueue,
    Prompt,
    View,
)
from jetjobs.cli.terminal.palette import code_of

_TITLE = "bold reverse"
_WITHOUT_COLOUR = (BOLD, DIM, CHOSEN, "reverse")
_KEYS: dict[str, str] = {
    "queues": "/ filter  Enter open  P pause  c cancel  d dead  w workers  s schedules",
    "running": "/ filter  Enter open  c cancel  w workers  s schedules",
    "queue": "/ filter  Enter open  P pause  c cancel  d dead  w workers",
    "job": "↑↓ scroll  c cancel  d dead",
    "dead": "/ filter  Enter open  d all queues",
    "workers": "/ filter  Enter open",
    "worker": "/ filter  Enter open  c cancel",
    "schedules": "/ filter  Enter open the last job",
    "help": "↑↓ scroll",
}


@dataclass(frozen=True)
class Frame:
    """The lines of a screen."""

    lines: Sequence[Line]
    extent: Extent
    visible: Sequence[str] = ()
    """The queues that are on the screen."""

    def painted(self, colour: bool) -> list[str]:
        """The lines with escape sequences."""
        return ["".join(_paint(text, _codes(style, colour)) for text, style in line) for line in self.lines]


def _paint(text: str, codes: str) -> str:
    return f"\x1b[{codes}m{text}\x1b[0m" if codes else text


@functools.cache
def _codes(style: str, colour: bool) -> str:
    words = style.split()
    if not colour:
        # A background would not show.
        words = ["reverse" if word == CHOSEN else word for word in words if word in _WITHOUT_COLOUR]
    return ";".join(code_of(word) for word in words)


def frame(view: View, data: Data, columns: int, rows: int) -> Frame:
    """Exactly `rows` lines of at most `columns` columns."""
    body = Body(view, data, columns, max(0, rows - 3))
    lines = [_title(view, data, columns), _totals(data.snapshot, columns), *body.lines]
    lines = [fitted(line, columns) for line in lines[: max(0, rows - 1)]]
    lines += [[] for _ in range(rows - 1 - len(lines))]
    foot = _foot(view, data, columns)
    return Frame([*lines, foot][:rows] if rows > 1 else [foot], body.extent, body.visible)


def _title(view: View, data: Data, columns: int) -> Line:
    where = " › ".join(_page_name(page) for page in view.pages)
    left = f" {clean(data.namespace or 'jetjobs', 40)} › {where}"
    at = data.snapshot.at
    waiting = "reading …" if data.connected else "connecting …"
    clock = time.strftime("%H:%M:%S", time.localtime(at)) if at else waiting
    status, style = f" {clock} ", _TITLE
    if data.silent_s is not None:
        status, style = f" NO ANSWER for {data.silent_s:.0f} s, retrying ", f"{_TITLE} {DEAD}"
    elif view.frozen:
        status, style = f" FROZEN at {clock}, Space continues ", f"{_TITLE} {PAUSED}"
    status = status[:columns]
    return [*((text, _TITLE) for text, _ in fitted([(left, _TITLE)], columns - len(status))), (status, style)]


def _page_name(page: Page) -> str:
    if page.kind == "job":
        return f"job {clean(page.subject[2])[-10:]}"
    return " ".join([page.kind, *(clean(name, 40) for name in page.subject)])


def _totals(snapshot: Snapshot, columns: int) -> Line:
    total, workers = snapshot.total, len(snapshot.workers)
    came = sum(queue.in_per_s or 0.0 for queue in snapshot.queues)
    went = sum(queue.out_per_s or 0.0 for queue in snapshot.queues)
    dead = sum(queue.dead for queue in snapshot.queues)
    share = min(1.0, total.running / total.slots) if total.slots else 0.0
    spans: Line = [
        (f" {short(total.queued)}", BOLD), (" queued  ", PLAIN),
        *bar(share, max(4, min(30, columns - 74)), BAR), (f" {total.running:,}/{total.slots:,}", BOLD),
        (" running", PLAIN),
        (f"  {workers} worker{'s' * (workers != 1)}", PLAIN if workers else LATE),
        (f"  {short(dead)} dead" if dead else "", DEAD),
        (f"  in {short_rate(came)}/s", CAME), (f"  out {short_rate(went)}/s", WENT),
    ]  # fmt: skip
    return fitted(spans, columns)


def _foot(view: View, data: Data, columns: int) -> Line:
    prompt = view.prompt
    if prompt is not None:
        question = _question(prompt)
        typed = clean(prompt.text) + "_"
        # The end of what is typed stays visible.
        room = max(8, columns - width_of(question))
        return fitted([(question, BOLD), (typed[-room:], PAUSED)], columns)
    if data.note:
        return fitted([(clean(data.note), DEAD if data.bad else BOLD)], columns)
    back = "Esc back  " if len(view.pages) > 1 or view.filter else ""
    line: Line = []
    room = columns
    for hint in f"{back}q quit  ? help  {_KEYS[view.page.kind]}".split("  "):
        room -= len(hint) + 2
        if room >= -2:
            key, _, what = hint.partition(" ")
            line += [(key, BOLD), (f" {what}  ", DIM)]
    return fitted(line, columns)


def _question(prompt: Prompt) -> str:
    if prompt.action is None:
        return "filter: "
    if isinstance(prompt.action, Cancel):
        return f"cancel job {clean(prompt.action.id)[-10:]} of {clean(prompt.action.task, 40)}? [y/N] "
    if isinstance(prompt.action, PauseQueue):
        return f"pause {clean(prompt.action.queue, 40)}; Enter pauses, Esc does not; reason: "
    return f"resume {clean(prompt.action.queue, 40)}? [y/N] "
