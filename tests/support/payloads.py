"""Large arguments, and a check that none is left in the object store."""

from __future__ import annotations

from tests.support.server import Truth


def text_of(size: int) -> str:
    """Text without repeated parts, so that a lost or swapped chunk is detected."""
    return "".join(f"{number:08d}" for number in range(size // 8 + 1))[:size]


async def nothing_stored(truth: Truth) -> bool:
    return not await truth.objects() and not await truth.chunks()
