"""The channel between a worker and a child process: frames with a JSON head and a binary body."""

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
_MAGIC = b"jjf1"
"""Starts every frame, so that bytes that a task wrote to the channel by mistake are detected at once."""
_LENGTHS = struct.Struct("!4sII")

PREFIX = _LENGTHS.size


class ProtocolError(Exception):
    """The other process sent something that is not a valid frame or message."""


class Frame(NamedTuple):
    """`head` describes the message; `body` is JSON that is passed on unread: arguments or a result."""

    head: dict[str, Any]
    body: bytes = b""


def pack(frame: Frame) -> bytes:
    """Encode a frame."""
    head = json.dumps(frame.head).encode()
    return _LENGTHS.pack(_MAGIC, len(head), len(frame.body)) + head + frame.body


def lengths(prefix: bytes) -> tuple[int, int]:
    """The lengths of head and body of the next frame. ProtocolError if `prefix` does not start a frame."""
    magic, head, body = _LENGTHS.unpack(prefix)
    if magic != _MAGIC or head > MAX_HEAD or body > MAX_BODY:
        raise ProtocolError(f"invalid start of a frame: {prefix!r}")
    return head, body


def read_head(data: bytes) -> dict[str, Any]:
    """Decode the head. ProtocolError if it is not a JSON object."""
    try:
        head = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("the head of a frame is not valid JSON") from None
    if not isinstance(head, dict):
        raise ProtocolError("the head of a frame is not a JSON object")
    return head


class Channel:
    """The child's end. Any thread may send frames; one thread receives."""

    def __init__(self, end: socket.socket, shield: AbstractContextManager[object] | None = None) -> None:
        """`shield` is entered while a transfer over the channel must not be interrupted."""
        self._socket = end
        self.shield = shield or contextlib.nullcontext()
        self._send_lock = threading.Lock()

    def send(self, frame: Frame) -> None:
        data = pack(frame)
        with self.shield, self._send_lock:
            self._socket.sendall(data)

    def receive(self) -> Frame | None:
        """The next frame; None if the worker has closed its end."""
        prefix = self._exactly(PREFIX)
        if prefix is None:
            return None
        head, body = (self._exactly(length) for length in lengths(prefix))
        return None if head is None or body is None else Frame(read_head(head), body)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._socket.recv(min(count - len(data), 2**20))
            except ConnectionResetError:
                return None  # the worker was killed before it had read everything
            if not part:
                return None
            data += part
        return bytes(data)
