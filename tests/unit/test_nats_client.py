"""The wire form of headers and frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol import command

from jetjobs.jetstream.transport.nats_client import frame, header_lines, read_headers, read_status, write_headers

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n:"), min_size=1, max_size=20)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=6)
SUBJECTS = st.from_regex(r"[a-zA-Z0-9_$-]+(\.[a-zA-Z0-9_$-]+){0,5}", fullmatch=True)


@given(HEADERS)
def test_headers_are_read_as_they_were_written(headers: dict[str, str]) -> None:
    assert read_headers(write_headers(headers)) == {name: value.strip() for name, value in headers.items()}


@given(HEADERS)
def test_a_block_is_what_nats_py_would_write(headers: dict[str, str]) -> None:
    lines = b"".join(name.encode() + b": " + value.encode() + b"\r\n" for name, value in headers.items())
    assert write_headers(headers) == b"NATS/1.0\r\n" + lines + b"\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        {"A": "x\r\nB: y"},
        {"A": "x\ny"},
        {"A": "x\ry"},
        {"A": "x\r"},
        {"A": "\n"},
        {"A\r\nB": "x"},
        {"A\n": "x"},
        {"A": "x", "B": "y\r\n\r\n"},
    ],
)
def test_a_line_break_in_a_header_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="line break"):
        header_lines(headers)
    with pytest.raises(ValueError, match="line break"):
        frame("a", b"", "", headers)


@pytest.mark.parametrize("bad", ["x 0\r\n\r\nPUB pwned.here 5", "a b", "a\tb", "a\n", "\ra", " a", "a ", ""])
def test_a_subject_that_would_inject_a_line_is_refused(bad: str) -> None:
    for headers in (None, {"A": "x"}, b"NATS/1.0\r\n\r\n"):
        with pytest.raises(ValueError, match="invalid subject"):
            frame(bad, b"", "", headers)
        if bad:
            with pytest.raises(ValueError, match="invalid subject"):
                frame("good", b"", bad, headers)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=4))
def test_no_header_can_inject_another(headers: dict[str, str]) -> None:
    try:
        lines = header_lines(headers)
    except ValueError:
        assert any(set(name + value) & {"\r", "\n"} for name, value in headers.items())
        return
    assert lines.split("\r\n") == [*(f"{name}: {value}" for name, value in headers.items()), ""]


def test_the_first_value_of_a_repeated_header_counts() -> None:
    assert read_headers(b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n") == {"A": "1"}


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"", {}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {}),
        (b"NATS/1.0\r\nA:1\r\n\r\n", {"A": "1"}),
        (b"NATS/1.0\r\nA:   1  \r\n\r\n", {"A": "1"}),
        (b"NATS/1.0\r\nA: b: c\r\n\r\n", {"A": "b: c"}),
        (b"NATS/1.0\r\nno colon\r\nA: 1\r\n\r\n", {"A": "1"}),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", {"A": "\ufffd"}),
        (b"NATS/1.0\r\nA:\r\n\r\n", {"A": ""}),
        (b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\n\r\n", {"Nats-Pending-Messages": "1"}),
    ],
)
def test_blocks_of_every_shape_are_read(block: bytes, headers: dict[str, str]) -> None:
    assert read_headers(block) == headers


@given(st.binary())
def test_any_block_is_read_without_an_error(block: bytes) -> None:
    assert all(isinstance(name, str) for name in read_headers(block))


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0\r\n\r\n", ("", "")),
        (b"NATS/1.0\r\nA: 1\r\n\r\n", ("", "")),
        (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", ("100", "Idle Heartbeat")),
        (b"NATS/1.0 503\r\n\r\n", ("503", "")),
        (b"NATS/1.0 503 \r\n\r\n", ("503", "")),
        (b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 3\r\n\r\n", ("409", "Consumer Deleted")),
        (b"NATS/1.0 400 \xff\r\n\r\n", ("400", "\ufffd")),
    ],
)
def test_the_status_is_read_from_the_first_line(block: bytes, status: tuple[str, str]) -> None:
    assert read_status(block) == status


@given(SUBJECTS, st.binary(), st.just("") | SUBJECTS)
def test_a_frame_without_headers_is_what_nats_py_would_write(subject: str, payload: bytes, reply: str) -> None:
    expected = command.pub_cmd(subject, reply, payload)
    assert frame(subject, payload, reply) == expected
    assert frame(subject, payload, reply, {}) == expected
    assert frame(subject, payload, reply, None) == expected


@given(SUBJECTS, st.binary(), st.just("") | SUBJECTS, st.dictionaries(NAMES, VALUES, min_size=1, max_size=6))
def test_a_frame_with_headers_is_what_nats_py_would_write(
    subject: str, payload: bytes, reply: str, headers: dict[str, str]
) -> None:
    expected = command.hpub_cmd(subject, reply, write_headers(headers), payload)
    assert frame(subject, payload, reply, headers) == expected
    assert frame(subject, payload, reply, write_headers(headers)) == expected, "a ready block is used as it is"
