"""Validate the names of queues, tasks, lanes and schedules, and other subject tokens."""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from jetjobs.model.errors import DefinitionError

WEBHOOKS: Final = "webhooks"
"""The queue of webhooks. Only jetjobs stores jobs there, and only workers that name it take them."""
WEBHOOK_TASK: Final = "jetjobs_webhook"
"""The built-in task that delivers them."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_KEY: Final = re.compile(r"[^\s\x00-\x1f\x7f.*>\ud800-\udfff]+(?:\.[^\s\x00-\x1f\x7f.*>\ud800-\udfff]+)*")
"""Any subject without wildcards."""


def check_token(what: str, token: str) -> str:
    """The token itself, or DefinitionError. `what` names it in the error."""
    if not is_token(token):
        near = suggest_token(token)
        raise DefinitionError(
            f"invalid {what} name {token!r:.200}",
            hint="a name is 1 to 64 letters, digits, '-' or '_'" + (f"; use {near!r}" if near else ""),
        )
    return token


def check_queue(queue: str) -> str:
    """A queue for the jobs of an app. DefinitionError for an invalid name, and for the queue of webhooks."""
    if queue == WEBHOOKS:
        raise DefinitionError(f"queue {queue!r} is reserved for webhooks", hint="choose another name")
    return check_token("queue", queue)


def check_task(name: str) -> str:
    """A task of an app. DefinitionError for an invalid name, and for that of the built-in task."""
    if name == WEBHOOK_TASK:
        raise DefinitionError(f"task {name!r} is reserved: it delivers webhooks", hint="choose another name")
    return check_token("task", name)


def suggest_token(text: object) -> str:
    """A valid name that resembles `text`; empty if nothing of it can be kept.

    >>> suggest_token("my.shop"), suggest_token(" Ada's shop! "), suggest_token("...")
    ('my-shop', 'Ada-s-shop', '')
    """
    return re.sub(r"[^A-Za-z0-9_]+", "-", text, flags=re.ASCII).strip("-")[:64] if isinstance(text, str) else ""


def is_token(text: object) -> TypeGuard[str]:
    """Whether `text` is a valid name of a queue or task."""
    return isinstance(text, str) and _TOKEN.fullmatch(text) is not None


def check_schedule_name(name: str) -> str:
    """The name itself, or DefinitionError."""
    if not is_schedule_name(check_token("schedule", name)):
        raise DefinitionError(f"schedule name {name!r} begins with '_'", hint="such names are reserved")
    return name


def check_schedule_key(name: str) -> str:
    """A valid key of the schedules bucket, though perhaps not a valid schedule name: other writers may have
    stored it."""
    if not isinstance(name, str) or not _KEY.fullmatch(name):
        raise DefinitionError(
            f"invalid schedule name {name!r}", hint="`jetjobs schedules list` and `jetjobs doctor` list them all"
        )
    return name


def is_schedule_name(name: str) -> bool:
    """Whether a schedule may have this name."""
    return _TOKEN.fullmatch(name) is not None and not name.startswith("_")


def token_of(text: str) -> str:
    """Any text as one subject token; characters that a token cannot hold become '-'.

    >>> token_of("web-1.example.org")
    'web-1-example-org'
    """
    return re.sub(r"[^A-Za-z0-9_-]", "-", text, flags=re.ASCII)[:100] or "-"


def has_wire_form(text: str) -> bool:
    """False for text with an unpaired surrogate: Python can hold one, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
