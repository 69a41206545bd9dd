"""Colours of states, levels and kinds of events. A state is always a word too: colour alone says nothing."""

from __future__ import annotations

from collections.abc import Callable

Style = Callable[[str], str]
"""The rich style of a cell by its text; empty for none."""

BOLD, FAINT, GREEN, BLUE, CYAN = "bold", "dim", "green", "blue", "cyan"
PAUSED, LATE, DEAD = "yellow", "dark_orange", "red"

_CODES = {
    BOLD: "1", FAINT: "2", GREEN: "32", BLUE: "34", CYAN: "36", PAUSED: "33", LATE: "38;5;208", DEAD: "31",
    "bright_blue": "94", "reverse": "7", "chosen": "48;5;238",
}  # fmt: skip
_STATES = {
    "running": GREEN, "queued": CYAN, "scheduled": BLUE, "retrying": LATE, "succeeded": GREEN, "dead": DEAD,
    "cancelled": FAINT, "paused": PAUSED, "late": LATE, "ready": GREEN, "quiet": PAUSED, "recycling": PAUSED,
    "stopping": PAUSED, "starting": BLUE, "stopped": FAINT, "missed": LATE, "active": GREEN, "waiting": CYAN,
    "idle": FAINT, "no worker": LATE,
}  # fmt: skip


def code_of(style: str) -> str:
    """The code of a style for `\\x1b[CODEm`, for lines that are printed without rich. A code is its own.

    >>> code_of("yellow"), code_of("1;31")
    ('33', '1;31')
    """
    return _CODES.get(style, style)


def state_style(text: str) -> str:
    """The style of a state; more may follow its word.

    >>> state_style("paused 1h05m"), state_style("no worker"), state_style("unheard of")
    ('yellow', 'dark_orange', '')
    """
    return _STATES.get(text) or _STATES.get(text.partition(" ")[0], "")


def faint(_: str) -> str:
    """For what is seldom read."""
    return FAINT


def dead_style(text: str) -> str:
    """For a number of dead letters.

    >>> dead_style("0"), dead_style("12")
    ('', 'red')
    """
    return "" if text in ("0", "-", "") else DEAD


def late_style(text: str) -> str:
    """For a number or duration that is better absent."""
    return "" if text in ("0", "-", "") else LATE


def long_wait(text: str) -> str:
    """For how long the oldest job has waited: late from a minute on.

    >>> long_wait("12.0 s"), long_wait("2m10s"), long_wait("-")
    ('', 'dark_orange', '')
    """
    return "" if text.endswith("s") and " " in text else late_style(text)
