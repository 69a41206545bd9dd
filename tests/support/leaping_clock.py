"""Make the wall clock of one running process leap: a worker, a producer or a nats-server, on x86-64 Linux.

    with worker(server, journal) as process:
        leap(process.popen.pid, 3600)    # its wall clock is now an hour ahead
        leap(process.popen.pid, -3600)   # now an hour behind the machine's; offsets do not add up
        leap(process.popen.pid, 0)       # right again
    leap(server.process.pid, -50)        # Go does not use libc, so a preloaded library would not reach it

Programs read the time in the vDSO, a small library that the kernel maps into each process. The first leap
replaces its `clock_gettime` in that one process by a system call that adds the offset to CLOCK_REALTIME; later
leaps change the offset. CLOCK_MONOTONIC, timers and other processes are not affected, as when an operator or NTP
sets the clock. A child process that starts later has the right time. The caller must be allowed to trace the
process: it is a child of ours, or we are root.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from pathlib import Path

_STUB = bytes.fromhex(
    "b8e4000000"  # mov eax, 228 (clock_gettime)
    "0f05"  # syscall
    "85ff"  # test edi, edi: CLOCK_REALTIME is 0
    "7507"  # jne +7
    "488106"  # add qword [rsi], offset
)
_RETURN = b"\xc3"
_SIZE = len(_STUB) + 4 + len(_RETURN)
_REACH = 64
"""No thread may be inside the replaced function; it is longer than the stub."""


def leap(pid: int, offset_s: int) -> None:
    """Set the wall clock of a process to the machine's time plus `offset_s`, at once."""
    start, end = _mapping(pid)
    entry = start + _symbol(_own_vdso())
    os.kill(pid, signal.SIGSTOP)
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(entry)
            if memory.read(len(_STUB)) != _STUB:
                _leave(pid, entry, min(entry + _REACH, end))
            memory.seek(entry)
            memory.write(_STUB + struct.pack("<i", offset_s) + _RETURN)
    finally:
        os.kill(pid, signal.SIGCONT)


def _leave(pid: int, start: int, end: int) -> None:
    """Wait until all threads are stopped outside these addresses."""
    give_up = time.monotonic() + 5.0
    while any(start < at < end or at < 0 for at in _positions(pid)):
        if time.monotonic() > give_up:
            raise AssertionError(f"process {pid} does not leave clock_gettime")
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)
        os.kill(pid, signal.SIGSTOP)


def _positions(pid: int) -> list[int]:
    """Where each thread is in user space; -1 for one that still runs."""
    give_up = time.monotonic() + 1.0
    while True:
        texts = [Path(f"/proc/{pid}/task/{task}/syscall").read_text() for task in os.listdir(f"/proc/{pid}/task")]
        if "running\n" not in texts or time.monotonic() > give_up:
            return [-1 if text == "running\n" else int(text.split()[-1], 16) for text in texts]


def _mapping(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            start, end = line.split()[0].split("-")
            return int(start, 16), int(end, 16)
    raise AssertionError(f"process {pid} has no vDSO")


def _own_vdso() -> bytes:
    """The image, which is the same in all processes."""
    start, end = _mapping(os.getpid())
    return ctypes.string_at(start, end - start)


def _symbol(image: bytes) -> int:
    """The offset of `__vdso_clock_gettime` in the image: an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + size * number) for number in range(count)]
    symbols = next(one for one in sections if one[1] == 11)  # SHT_DYNSYM
    names = sections[symbols[6]]
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", image, at)
        begin = names[4] + name
        if image[begin : image.index(b"\0", begin)] == b"__vdso_clock_gettime":
            assert length == 0 or length >= _SIZE, "too short for the stub"
            return int(value)
    raise AssertionError("the vDSO has no clock_gettime")
