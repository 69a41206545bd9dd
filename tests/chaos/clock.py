"""The time of a run in all its processes: no leap of a process's wall clock changes it.

Each process extrapolates the wall clock that the harness read at its start by the monotonic clock, which all
processes of a machine share.
"""

from __future__ import annotations

import os
import time

_VARIABLE = "CHAOS_OFFSET"
_offset = float(os.environ.get(_VARIABLE) or time.time() - time.monotonic())


def now() -> float:
    """Seconds since the epoch, on the server's clock."""
    return _offset + time.monotonic()


def environment() -> dict[str, str]:
    """What a process of the run needs to have the same time."""
    return {_VARIABLE: repr(_offset)}
