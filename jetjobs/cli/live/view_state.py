"""What is open and selected in the live view, and what each key does. No terminal and no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jetjobs.model.wire.ids import is_id

Kind = Literal["queues", "running", "queue", "job", "dead", "workers", "worker", "schedules", "help"]

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, RUBOUT, TAB = "enter", "escape", "backspace", "tab"
MAX_TYPED = 200


class Page(NamedTuple):
    """One page: its kind, and its subject: a queue, a worker, or queue, task and id of a job."""

    kind: Kind
    subject: tuple[str, ...] = ()
    selected: str = ""
    """The key of the selected item. It stays selected when others appear or disappear."""
    at: int = 0
    """Where the selected item was; or the first line that is shown, on a page of text."""

    @property
    def place(self) -> tuple[str, tuple[str, ...]]:
        """What identifies the page."""
        return self.kind, self.subject

    @property
    def queue(self) -> str:
        """The queue that the page is about; empty if it is about several."""
        return self.subject[0] if self.kind in ("queue", "dead", "job") and self.subject else ""


class Item(NamedTuple):
    """A row that can be selected, and what keys do with it."""

    kind: Literal["queue", "job", "letter", "worker", "schedule"]
    key: str
    value: Any
    queue: str = ""
    job: tuple[str, str, str] | None = None
    """Queue, task and id of the job that Enter opens."""
    paused: bool = False


class Cancel(NamedTuple):
    """Cancel a job."""

    queue: str
    task: str
    id: str


class PauseQueue(NamedTuple):
    """Pause a queue."""

    queue: str
    reason: str = ""


class ResumeQueue(NamedTuple):
    """Resume a queue."""

    queue: str


class Say(NamedTuple):
    """Why the key does nothing here."""

    text: str


Action = Cancel | PauseQueue | ResumeQueue | Say


class Prompt(NamedTuple):
    """A question in the last line. With `action`, it asks before that action."""

    text: str = ""
    action: Cancel | PauseQueue | ResumeQueue | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The open pages, the last one visible."""

    pages: tuple[Page, ...] = (Page("queues"),)
    filter: str = ""
    prompt: Prompt | None = None
    frozen: bool = False
    """Whether updates are held back."""
    quit: bool = False

    @property
    def page(self) -> Page:
        return self.pages[-1]

    @property
    def search(self) -> str:
        """The filter, also while it is typed."""
        return self.prompt.text if self.prompt is not None and self.prompt.action is None else self.filter


class Extent(NamedTuple):
    """What a frame has drawn: its items, how many rows of them fit, and the lines of a page of text."""

    items: Sequence[Item] = ()
    room: int = 1
    length: int = 0
    paused: bool = False
    """Whether the open queue is paused."""


def press(view: View, key: str, extent: Extent) -> tuple[View, Action | None]:
    """The view after a key, and the action to carry out."""
    if view.prompt is not None:
        return _answer(view, view.prompt, key)
    if key == "q":
        return replace(view, quit=True), None
    if key == ESCAPE:
        return _back(view), None
    if key in (UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END, TAB):
        return _move(view, key, extent), None
    if key == " ":
        return replace(view, frozen=not view.frozen), None
    if key == "/":
        return replace(view, prompt=Prompt(view.filter)), None
    if key == "?":
        return _toggle(view, Page("help")), None
    if key in ("w", "s"):
        return _toggle(view, Page("workers" if key == "w" else "schedules")), None
    if key == "d":
        return _dead(view, extent), None
    if key == ENTER:
        return _open(view, extent)
    if key in ("c", "P"):
        return _ask(view, key, extent)
    return view, None


def selected_index(page: Page, items: Sequence[Item]) -> int:
    """The index of the selected item; of the one in its place if it is gone."""
    for index, item in enumerate(items):
        if item.key == page.selected:
            return index
    return max(0, min(page.at, len(items) - 1))


def _selected(view: View, extent: Extent) -> Item | None:
    return extent.items[selected_index(view.page, extent.items)] if extent.items else None


def _with_page(view: View, page: Page) -> View:
    return replace(view, pages=(*view.pages[:-1], page))


def _push(view: View, page: Page) -> View:
    return replace(view, pages=(*view.pages, page), filter="")


def _back(view: View) -> View:
    if view.filter:
        return replace(view, filter="")
    return replace(view, pages=view.pages[:-1]) if len(view.pages) > 1 else view


def _toggle(view: View, page: Page) -> View:
    """Open the page, or leave it if it is open."""
    if view.page.place == page.place:
        return replace(view, pages=view.pages[:-1], filter="") if len(view.pages) > 1 else view
    # A page is open once: going back never passes it again.
    return _push(replace(view, pages=tuple(p for p in view.pages if p.place != page.place)), page)


def _dead(view: View, extent: Extent) -> View:
    """Dead letters of the queue that is open or selected; of all queues on the second press."""
    item = _selected(view, extent)
    queue = view.page.queue or (item.queue if item is not None and item.kind == "queue" else "")
    if view.page.kind == "dead":
        return _with_page(view, Page("dead")) if queue else _back(replace(view, filter=""))
    return _toggle(view, Page("dead", (queue,) if queue else ()))


def _move(view: View, key: str, extent: Extent) -> View:
    page, items = view.page, extent.items
    many = len(items) if items else max(0, extent.length - extent.room + 1)
    if not many:
        return view
    index = selected_index(page, items) if items else min(page.at, many - 1)
    if key == TAB:
        index = _next_group(items, index)
    else:
        page_of = max(1, extent.room - 1)
        steps = {UP: -1, DOWN: 1, PAGE_UP: -page_of, PAGE_DOWN: page_of, HOME: -many, END: many}
        index = max(0, min(many - 1, index + steps[key]))
    return _with_page(view, page._replace(selected=items[index].key if items else "", at=index))


def _next_group(items: Sequence[Item], index: int) -> int:
    """The first item of another kind: below, or else from the top."""
    if not items:
        return index
    kind = items[index].kind
    others = [i for i, item in enumerate(items) if item.kind != kind]
    return next((i for i in others if i > index), others[0] if others else index)


def _open(view: View, extent: Extent) -> tuple[View, Action | None]:
    item = _selected(view, extent)
    if item is None:
        return view, None
    view = _with_page(view, view.page._replace(selected=item.key, at=selected_index(view.page, extent.items)))
    if item.kind == "queue":
        return _push(view, Page("queue", (item.queue,))), None
    if item.kind == "worker":
        return _push(view, Page("worker", (item.key,))), None
    if item.job is None:
        return view, Say("this schedule has no job yet")
    if not is_id(item.job[2]):
        return view, Say("this job was published without jetjobs and has no id yet")
    return _push(view, Page("job", item.job)), None


def _ask(view: View, key: str, extent: Extent) -> tuple[View, Action | None]:
    """Ask before a change."""
    item = _selected(view, extent)
    if key == "P":
        if item is not None and item.kind == "queue":
            queue, paused = item.queue, item.paused
        elif view.page.kind == "queue":
            queue, paused = view.page.queue, extent.paused
        else:
            return view, Say("select a queue to pause or resume it")
        action = ResumeQueue(queue) if paused else PauseQueue(queue)
        return replace(view, prompt=Prompt(action=action)), None
    job = view.page.subject if view.page.kind == "job" else item.job if item is not None else None
    if job is None or (item is not None and item.kind == "schedule"):
        return view, Say("select a job to cancel it")
    if item is not None and item.kind == "letter":
        return view, Say("this job is dead already: `jetjobs dead delete` deletes it")
    if not is_id(job[2]):
        return view, Say("this job was published without jetjobs and has no id yet")
    return replace(view, prompt=Prompt(action=Cancel(*job))), None


def _answer(view: View, prompt: Prompt, key: str) -> tuple[View, Action | None]:
    """A key while the last line asks something."""
    closed, action = replace(view, prompt=None), prompt.action
    if key == ESCAPE:
        return (closed, Say("nothing was changed")) if action is not None else (replace(closed, filter=""), None)
    if isinstance(action, Cancel | ResumeQueue):
        return (closed, action) if key in ("y", "Y") else (closed, Say("nothing was changed"))
    if key == ENTER:
        if isinstance(action, PauseQueue):
            return closed, action._replace(reason=prompt.text.strip())
        page = closed.page._replace(selected="", at=0)
        return _with_page(replace(closed, filter=prompt.text), page), None
    if key == RUBOUT:
        return replace(view, prompt=prompt._replace(text=prompt.text[:-1])), None
    if len(key) == 1 and key.isprintable() and len(prompt.text) < MAX_TYPED:
        return replace(view, prompt=prompt._replace(text=prompt.text + key)), None
    return view, None
