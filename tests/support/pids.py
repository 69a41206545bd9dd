"""Process ids that tasks write to a file, and waiting until those processes have ended."""

from __future__ import annotations

from pathlib import Path

from tests.support.probe import eventually, wait_until


async def pids_in(marker: Path, count: int = 1) -> list[int]:
    """Wait until the file has at least `count` pids, and return them."""

    async def there() -> list[int] | None:
        found = noted(marker)
        return found if len(found) >= count else None

    return await eventually(there, 40)


async def gone(pid: int) -> None:
    """Wait until the process has ended. A zombie counts as ended."""
    await wait_until(lambda: is_gone(pid), 40)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def noted(marker: Path) -> list[int]:
    """The pids in the file so far."""
    return [int(pid) for pid in marker.read_text().split()] if marker.exists() else []
