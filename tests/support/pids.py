"""Processes by their pid: what a task noted of itself, and whether it is gone."""

from __future__ import annotations

from pathlib import Path

from tests.support.probe import eventually


async def pids_in(marker: Path, count: int = 1) -> list[int]:
    """The pids that tasks have noted in a file, once there are enough."""

    async def there() -> list[int] | None:
        found = noted(marker)
        return found if len(found) >= count else None

    return await eventually(there, 40)


async def gone(pid: int) -> None:
    """Until no process has that pid, or only a corpse that nobody has reaped."""

    async def check() -> bool:
        return is_gone(pid)

    await eventually(check, 40)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def noted(marker: Path) -> list[int]:
    """Those that are there by now."""
    return [int(pid) for pid in marker.read_text().split()] if marker.exists() else []
