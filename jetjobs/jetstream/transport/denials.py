"""Permission violations: what the server refused to a connection. ADR 46.

The server reports a violation with an error line that names the subject. It keeps the connection and drops the
message or the subscription. It does not report that a permission was granted later.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import nats.errors

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.nats_client import FastClient
from jetjobs.model.errors import AccessDenied
from jetjobs.model.events import Observer, PermissionDenied

CHECK_S = 5.0
RETRY_S = 5.0
MAX_RETRY_S = 30.0
"""Refused subscriptions are requested again after RETRY_S, then after twice that, up to this."""
MAX_REPORTED = 1_000
"""Subjects that are remembered as reported. Text of others may be part of a subject."""
_LINE = re.compile(r'permissions violation for (publish|subscription) to "(.+?)"', re.IGNORECASE)


class Violation(NamedTuple):
    """An error line of the server that reports a missing permission."""

    verb: str
    """publish or subscription, as the server writes it."""
    subject: str

    def error(self) -> AccessDenied:
        what = "publish" if self.verb == "publish" else "subscribe"
        return AccessDenied(
            f'permissions violation for {self.verb} to "{self.subject}"',
            hint=f'the server must allow this user to {what} to "{self.wanted}"',
        )

    @property
    def wanted(self) -> str:
        """The subject to give permission for: without ids, which differ from message to message."""
        if self.verb != "publish":
            return self.subject
        if self.subject.startswith(api.ACK_PREFIX):
            return api.acks_of(self.subject)
        common = api.without_ids(self.subject)
        return self.subject if common == self.subject else f"{common}.>"


def read_violation(text: str) -> Violation | None:
    """The violation that an error text of the server reports, if it reports one."""
    found = _LINE.search(text)
    return Violation(found[1].lower(), found[2]) if found else None


class Denials:
    """The violations of one connection. Each subject is reported once until the connection is lost."""

    def __init__(
        self, nc: FastClient, inbox_prefix: str, observe: Observer, on_restored: Callable[[], None]
    ) -> None:
        """`on_restored` is called when the server accepts a subscription that it had refused: messages were missed
        in between."""
        self._nc = nc
        self._inbox = f"{inbox_prefix}."
        self._observe = observe
        self._on_restored = on_restored
        self._callbacks: list[Callable[[PermissionDenied], None]] = []
        self._reported: set[str] = set()
        self._subscriptions: dict[int, str] = {}
        """The refused subscriptions by their id."""
        self._refused_again: set[int] = set()
        self._retrying: asyncio.Task[None] | None = None

    def add(self, violation: Violation) -> None:
        """The server has refused a message or a subscription."""
        if violation.verb == "publish":
            self.report("publish", violation.subject)
            return
        for sid, subscription in list(self._nc._subs.items()):
            if subscription.subject == violation.subject:
                self._subscriptions[sid] = self._shown(violation.subject)
                self._refused_again.add(sid)
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.get_running_loop().create_task(self._retry())
        self.report("subscribe", violation.subject)

    def report(self, verb: str, subject: str) -> None:
        """Report a violation of this connection, or one of another connection of the same user."""
        shown = self._shown(subject)
        group = f"{verb} {api.without_ids(shown)}"
        repeated = group in self._reported
        if len(self._reported) >= MAX_REPORTED:
            self._reported.clear()
        self._reported.add(group)
        event = PermissionDenied("publish" if verb == "publish" else "subscribe", shown, repeated)
        self._observe(event)
        for callback in list(self._callbacks):
            callback(event)

    async def received(self) -> None:
        """Wait until every violation of what was sent so far has been received, or the connection is lost."""
        with contextlib.suppress(nats.errors.Error):
            await self._nc.flush(CHECK_S)  # the server answers in order

    def on_denied(self, callback: Callable[[PermissionDenied], None]) -> Callable[[], None]:
        """Call `callback` with each violation. Call the returned function to stop that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def subscription(self, *subjects: str) -> str:
        """The first of these subjects, or the reply inboxes, whose subscription is refused; empty if none is."""
        refused = set(self._subscriptions.copy().values())  # a copy, because any thread may ask
        return next((one for one in (self._inbox + ">", *subjects) if one in refused), "")

    def inbox_error(self) -> AccessDenied | None:
        """Why no reply can arrive; None if replies can."""
        refused = self.subscription()
        if not refused:
            return None
        text = str(Violation("subscription", refused).error())
        return AccessDenied(text, hint="set nats.inbox_prefix to a prefix that this user may subscribe to")

    def forget(self) -> None:
        """The connection is lost. The next one may have other permissions, and it subscribes again."""
        self._reported.clear()
        self._subscriptions.clear()

    def close(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()

    async def _retry(self) -> None:
        """Request refused subscriptions again until none is left."""
        pause_s = RETRY_S
        while self._subscriptions:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)
            tried = {sid: self._nc._subs[sid].subject for sid in self._subscriptions if sid in self._nc._subs}
            self._drop(self._subscriptions.keys() - tried.keys())
            self._refused_again.clear()
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                for sid, subject in tried.items():
                    self._nc.write(f"SUB {subject}  {sid}\r\n".encode())
                await self._nc.flush()
                accepted = (tried.keys() & self._subscriptions.keys()) - self._refused_again
                self._drop(accepted)
                if accepted:
                    self._on_restored()

    def _drop(self, sids: Iterable[int]) -> None:
        """Forget refused subscriptions, so that a later refusal of the same subject is reported again."""
        for sid in sids:
            shown = self._subscriptions.pop(sid)
            if shown not in self._subscriptions.values():
                self._reported.discard(f"subscribe {api.without_ids(shown)}")

    def _shown(self, subject: str) -> str:
        """The subject with `>` in place of what differs from message to message."""
        if subject.endswith(".>"):
            return subject
        if subject.startswith(api.ACK_PREFIX):
            return api.acks_of(subject)
        if subject.startswith(self._inbox):
            return self._inbox + ">"
        return subject
