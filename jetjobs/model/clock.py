"""The clock of this process, as an argument that tests can replace."""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Reads the time in seconds. The module `time` is one."""

    def monotonic(self) -> float:
        """The time since an arbitrary moment. It never goes back."""
        ...

    def time(self) -> float:
        """The time since the epoch."""
        ...


SYSTEM_CLOCK: Final[Clock] = time
