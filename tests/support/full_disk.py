"""A server on a disk that is too full for large writes. The first write that fails freezes its stream."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import Self

import nats.errors
import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.server import Truth

ROOM = 200_000
"""The most that a file of the store may have. Streams of the tests stay below it."""


class FullDisk(EmbeddedServer):
    """Its store has room for small messages only, until `restart_with_space`.

    A limit for the size of files does the same to the server as a full disk, and needs no root: the write fails,
    and the server freezes the stream, until it is restarted.
    """

    def start(self) -> Self:
        with _file_limit(ROOM):
            return super().start()

    def restart_with_space(self) -> None:
        """Free the disk, then restart the server."""
        self.stop()
        super().start()


@contextlib.contextmanager
def _file_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def freeze(truth: Truth, subject: str) -> None:
    """Freeze the stream of `subject` with a message that does not fit on the disk."""
    with pytest.raises(nats.errors.TimeoutError):
        await truth.nc.request(subject, bytes(ROOM + 1), timeout=0.5)
