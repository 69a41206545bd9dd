"""Cut the messages of a flow into chunks. How they are cut is part of the wire contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CHUNK_SIZE: Final = 500
"""Messages in a chunk."""
CHUNK_BYTES: Final = 4 * 2**20
"""Bytes of bodies in a chunk of more than one message."""


def cut(sizes: Sequence[int]) -> list[range]:
    """The chunks of a list of messages, given the sizes of their bodies. The start of a range is the number of the
    chunk in its mark.

    Every process must cut a list in the same way: chunks that overlap under other numbers would be stored twice.

    >>> cut([3 * 2**20, 2 * 2**20, 1])
    [range(0, 1), range(1, 3)]
    """
    chunks: list[range] = []
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and (index - first == CHUNK_SIZE or total + size > CHUNK_BYTES):
            chunks.append(range(first, index))
            first, total = index, 0
        total += size
    return [*chunks, range(first, len(sizes))] if sizes else []
