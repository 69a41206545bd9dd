"""Frames: whole over a socket, and anything else is known for what it is."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.worker.isolation.channel import (
    MAX_HEAD,
    PREFIX,
    Channel,
    Frame,
    ProtocolError,
    lengths,
    pack,
    read_head,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.binary(max_size=2000))
def test_a_frame_comes_back_as_it_was(head: dict[str, object], body: bytes) -> None:
    packed = pack(Frame(head, body))
    head_length, body_length = lengths(packed[:PREFIX])
    assert read_head(packed[PREFIX : PREFIX + head_length]) == head
    assert packed[PREFIX + head_length :] == body
    assert len(body) == body_length


@given(st.binary(min_size=PREFIX, max_size=PREFIX))
def test_what_does_not_begin_with_the_mark_is_garbled(prefix: bytes) -> None:
    if prefix.startswith(b"jjf1"):
        return
    with pytest.raises(ProtocolError):
        lengths(prefix)


def test_a_head_beyond_all_measure_is_garbled() -> None:
    with pytest.raises(ProtocolError):
        lengths(b"jjf1" + (MAX_HEAD + 1).to_bytes(4, "big") + bytes(4))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_a_head_that_is_not_a_json_object_is_garbled(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_head(data)


def test_a_channel_carries_large_bodies_and_reports_its_end() -> None:
    ours, theirs = socket.socketpair()
    body = bytes(range(256)) * 40_000
    with ours, theirs:
        sender = threading.Thread(target=Channel(theirs).send, args=[Frame({"n": 1}, body)])
        sender.start()
        channel = Channel(ours)
        assert channel.receive() == Frame({"n": 1}, body)
        sender.join()
        theirs.sendall(b"jjf1")
        theirs.close()
        assert channel.receive() is None  # a frame that was begun and never ended


def test_a_channel_whose_worker_was_killed_with_unread_data_has_ended() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"a report that the worker never read")
        theirs.close()
        assert Channel(ours).receive() is None


def test_frames_of_several_threads_do_not_mix() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = Channel(theirs)

        def send(name: str) -> None:
            for n in range(50):
                sending.send(Frame({"from": name, "n": n}, name.encode() * 5_000))

        threads = [threading.Thread(target=send, args=[name]) for name in "abc"]
        for thread in threads:
            thread.start()
        channel = Channel(ours)
        seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        for _ in range(150):
            frame = channel.receive()
            assert frame is not None
            assert frame.body == frame.head["from"].encode() * 5_000
            seen[frame.head["from"]].append(frame.head["n"])
        for thread in threads:
            thread.join()
    assert all(numbers == list(range(50)) for numbers in seen.values())
