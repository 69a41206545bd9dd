"""Between a supervisor and its worker processes: each is asked for its metrics and health, over its own socket.

One line of JSON is a question, one is the answer. The supervisor serves what it has gathered on one port.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jetjobs.observe.pages import Page, merge

VARIABLE = "JETJOBS_CHILD_LINK"
"""Tells a worker process the number of its end of the socket."""
PATIENCE_S = 2.0
"""How long a scrape waits for an answer. Who says nothing is shown with its last counters."""


class Answer(NamedTuple):
    """What a worker process says of itself."""

    page: Page
    ready: bool
    silent_s: float


class Reporter:
    """The worker's end: answers from a thread, so that a blocked event loop is seen and not hidden."""

    def __init__(self, descriptor: int, answer: Callable[[], Answer]) -> None:
        os.set_inheritable(descriptor, False)  # processes that tasks start have no business with it
        self._socket = socket.socket(fileno=descriptor)
        self._answer = answer
        self._thread = threading.Thread(target=self._run, name="jetjobs-link", daemon=True)

    @classmethod
    def from_environment(cls, answer: Callable[[], Answer]) -> Reporter | None:
        """The end that our supervisor has left us; None when there is none."""
        number = os.environ.pop(VARIABLE, "")
        return cls(int(number), answer) if number else None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """With a last word, so that nothing of what was counted is missing."""
        with contextlib.suppress(OSError):
            self._send(0)
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)
        self._socket.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("rb") as questions:
            for line in questions:
                self._send(int(line))

    def _send(self, number: int) -> None:
        said = {"number": number, **self._answer()._asdict()}
        self._socket.sendall(json.dumps(said).encode() + b"\n")


class Link:
    """The supervisor's end of one worker process. The other end must be closed here once the process has it."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._news = threading.Condition()
        self._number = 0
        self._over = False
        self._heard_at = 0.0
        self.last: Answer | None = None
        self._reader = threading.Thread(target=self._read, name="jetjobs-link", daemon=True)
        self._reader.start()

    def ask(self, number: int) -> None:
        with contextlib.suppress(OSError):  # gone, or frozen with a full buffer
            self._ours.send(b"%d\n" % number, socket.MSG_DONTWAIT)

    def wait(self, number: int, until: float) -> bool:
        """Whether an answer to that question, or a later one, has come."""
        with self._news:
            left = max(0.0, until - time.monotonic())
            self._news.wait_for(lambda: self._over or self._number >= number, left)
            return self._number >= number

    @property
    def silent_s(self) -> float:
        """How long the loop on the other side has not turned, as far as we know. 0 before it began."""
        with self._news:
            return self.last.silent_s + time.monotonic() - self._heard_at if self.last is not None else 0.0

    def close(self) -> None:
        """The process has ended: hear what it said last."""
        self.theirs.close()
        self._reader.join(1.0)
        # A process that a task has forked may hold the other end: do not wait for that.
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._reader.join(1.0)
        self._ours.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), self._ours.makefile("rb") as answers:
            for line in answers:
                said: dict[str, Any] = json.loads(line)
                number = said.pop("number")
                with self._news:
                    self.last, self._heard_at = Answer(**said), time.monotonic()
                    self._number = max(self._number, number)
                    self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


class Gathering:
    """All worker processes of a supervisor as one. Asked from the threads of the HTTP port."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._links: dict[int, Link] = {}
        self._ended: Page = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, child: int) -> Link:
        """A process is about to start."""
        link = Link()
        with self._lock:
            self._links[child] = link
        return link

    def remove(self, child: int) -> None:
        """A process has ended. Its counters stay, or sums would go back; its gauges go."""
        link = self._links.get(child)
        if link is None:
            return
        link.close()
        with self._lock:
            del self._links[child]
            if link.last is not None:
                self._ended = merge([], [self._ended, link.last.page])

    def page(self) -> Page:
        answered, _ = self._ask()
        live: list[Page] = []
        with self._lock:
            ended = [self._ended]
            # Only who is still there: one that was removed meanwhile has gone into the sum of those that ended.
            for link in self._links.values():
                if link.last is not None:
                    (live if link in answered else ended).append(link.last.page)
            return merge(live, ended)

    def ready(self) -> bool:
        """Whether every process is."""
        answered, _ = self._ask()
        return len(answered) == self._count and all(link.last is not None and link.last.ready for link in answered)

    def silent_s(self) -> float:
        """Of the process that has been silent longest. One that has not begun yet is not waited for."""
        answered, others = self._ask()
        return max((link.silent_s for link in (*answered, *others)), default=0.0)

    def _ask(self) -> tuple[list[Link], list[Link]]:
        """Who has answered in time, and who has not."""
        with self._lock:
            links = list(self._links.values())
            number = next(self._numbers)
        for link in links:
            link.ask(number)
        until = time.monotonic() + PATIENCE_S
        answered = [link for link in links if link.wait(number, until)]
        return answered, [link for link in links if link not in answered]
