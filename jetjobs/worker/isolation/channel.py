"""Frames between a worker and its children: a JSON head and a body of bytes, each with its length before it."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

MAX_HEAD = 2**20
MAX_BODY = 2**31
_MARK = b"jjf1"
"""Begins every frame, so that what a task wrote into the channel by mistake is known at once."""
_LENGTHS = struct.Struct("!4sII")

PREFIX = _LENGTHS.size


class Garbled(Exception):
    """What arrived is no frame."""


class Frame(NamedTuple):
    """`head` says what it is; `body` is JSON that passes through unread: arguments or a result."""

    head: dict[str, Any]
    body: bytes = b""


def pack(frame: Frame) -> bytes:
    """The frame as bytes."""
    head = json.dumps(frame.head).encode()
    return _LENGTHS.pack(_MARK, len(head), len(frame.body)) + head + frame.body


def lengths(prefix: bytes) -> tuple[int, int]:
    """How long head and body of the coming frame are. Garbled when this is the beginning of none."""
    mark, head, body = _LENGTHS.unpack(prefix)
    if mark != _MARK or head > MAX_HEAD or body > MAX_BODY:
        raise Garbled(f"no frame begins with {prefix!r}")
    return head, body


def read_head(data: bytes) -> dict[str, Any]:
    """The head. Garbled when it is no JSON object."""
    try:
        head = json.loads(data)
    except (ValueError, RecursionError):
        raise Garbled("the head of a frame is no JSON") from None
    if not isinstance(head, dict):
        raise Garbled("the head of a frame is no object")
    return head


class Channel:
    """The child's end. Frames may be sent from any thread; one thread receives."""

    def __init__(self, end: socket.socket, shield: AbstractContextManager[object] | None = None) -> None:
        """`shield` is entered for as long as nothing may interrupt what goes over the channel."""
        self._socket = end
        self.shield = shield or contextlib.nullcontext()
        self._sending = threading.Lock()

    def send(self, frame: Frame) -> None:
        data = pack(frame)
        with self.shield, self._sending:
            self._socket.sendall(data)

    def receive(self) -> Frame | None:
        """The next frame; None when the worker has closed its end."""
        prefix = self._exactly(PREFIX)
        if prefix is None:
            return None
        head, body = (self._exactly(length) for length in lengths(prefix))
        return None if head is None or body is None else Frame(read_head(head), body)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(min(count - len(data), 2**20))
            if not part:
                return None
            data += part
        return bytes(data)
