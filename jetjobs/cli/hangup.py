"""SIGHUP: the terminal is closed. It stops a process in order, once, unless it was started to live on."""

from __future__ import annotations

import signal


def heeds_hangup() -> bool:
    """False under nohup, which has the signal ignored."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
