"""One child process from the worker's side: start it, run a job in it, kill it and its descendants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jetjobs.model.errors import ChildDied
from jetjobs.model.outcome import ErrorInfo
from jetjobs.worker.isolation.channel import PREFIX, Frame, ProtocolError, lengths, pack, read_head
from jetjobs.worker.isolation.log_forwarding import log_forwarded
from jetjobs.worker.isolation.stop_signal import STOP_SIGNAL

RequestHandler = Callable[[Frame], Awaitable[Frame | None]]
"""Answers a request that a child sends while it runs a job. ProtocolError if it is not a request."""
START_S = 60.0
"""How long importing the app may take."""
_ALIVE_CHECK_S = 0.25
"""How often a silent child is checked for being alive."""
_CLOSE_S = 1.0
"""How long an idle child may take to exit."""

# sys.path is set first, because jetjobs itself may be found only on it. -P keeps the current folder off its front.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from jetjobs.worker.isolation.main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class ImportFailed(ChildDied):
    """Importing the app raised in the child. Another child would fail the same way."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        text = f"a child process could not import the app: {head.get('text')}"
        super().__init__(text)
        self.child_error = ErrorInfo("jetjobs.errors.ChildDied", text, str(head.get("traceback") or ""))


class ChildProcess:
    """Runs one job at a time. Once a call fails, the child is unusable and must be killed."""

    def __init__(
        self, popen: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._number = 0
        self.pid = popen.pid
        self.interrupted = False
        """Whether a job was interrupted. The signal may arrive late, so the child gets no further job."""

    @classmethod
    async def start(cls, setup: dict[str, Any]) -> tuple[ChildProcess, list[str]]:
        """Start an interpreter that imports the app. Returns the child and the tasks it lacks; or ChildDied."""
        child = await cls._spawn()
        try:
            async with asyncio.timeout(START_S):
                answer = await child._exchange(setup, b"", {"ready", "failed"})
            if answer.head["kind"] == "failed":
                raise ImportFailed(answer.head)
            return child, [str(name) for name in answer.head["missing"]]
        except TimeoutError:
            await child.end(at_once=True)
            raise ChildDied(f"a child process did not import the app within {START_S:g} s") from None
        except BaseException:
            await child.end(at_once=True)
            raise

    @classmethod
    async def _spawn(cls) -> ChildProcess:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
            command = [sys.executable, "-P", "-c", _BOOT, path, str(theirs.fileno()), str(os.getpid())]
            # Not in a thread: the system kills the child when the thread that started it ends. A session of its
            # own, so that Ctrl-C does not reach it and its descendants can be killed with it.
            popen = subprocess.Popen(  # noqa: ASYNC220
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
            failed.pop_all()
        try:
            return cls(popen, *await asyncio.open_unix_connection(sock=ours))
        except BaseException:
            popen.kill()
            popen.wait()
            ours.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it is running. A child that has ended is not reaped here: its group id stays reserved."""
        if self._popen.returncode is not None:
            return False
        if not hasattr(os, "waitid"):
            return self._popen.poll() is None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # other code reaps all children of this process
            return False

    async def run(self, head: dict[str, Any], body: bytes, on_request: RequestHandler | None = None) -> Frame:
        """Run a job and return its outcome; `on_request` answers requests until then.

        ChildDied if the child dies first. After that, and if this call is cancelled, the child must be ended.
        """
        self._number += 1
        answer = await self._exchange({**head, "n": self._number}, body, {"returned", "raised"}, on_request)
        if answer.head.get("n") != self._number:
            raise ChildDied("the child process answered for another job")
        return answer

    def interrupt(self) -> None:
        """Interrupt the running job. The task may ignore that; then the child must be killed."""
        self.interrupted = True
        if self.alive:
            os.kill(self.pid, STOP_SIGNAL)

    async def _exchange(
        self, head: dict[str, Any], body: bytes, kinds: set[str], on_request: RequestHandler | None = None
    ) -> Frame:
        try:
            await self._send(Frame(head, body))
            while True:
                answer = await self._receive()
                kind = answer.head.get("kind")
                if kind in kinds:
                    return answer
                if kind == "log" and isinstance(answer.head.get("record"), dict):
                    log_forwarded(answer.head["record"])
                elif on_request is None:
                    raise ProtocolError(f"unexpected frame of kind {kind!r}")
                elif (reply := await on_request(answer)) is not None:
                    await self._send(reply)
        except ProtocolError as error:
            raise ChildDied(f"the child process wrote garbage to its channel: {error}") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ChildDied(await self._cause_of_death()) from None

    async def _send(self, frame: Frame) -> None:
        with contextlib.suppress(ConnectionError):  # it died; reading reports how
            self._writer.write(pack(frame))
            await self._writer.drain()

    async def _receive(self) -> Frame:
        head, body = lengths(await self._exactly(PREFIX))
        return Frame(read_head(await self._exactly(head)), await self._exactly(body))

    async def _exactly(self, count: int) -> bytes:
        """Read that many bytes. A process that the task forked may keep the channel of a dead child open."""
        gone = False
        while True:
            try:
                async with asyncio.timeout(_ALIVE_CHECK_S):
                    return await self._reader.readexactly(count)
            except TimeoutError:
                if gone:
                    raise ConnectionResetError from None
                gone = not self.alive  # read once more: its last frame may be in transit

    async def _cause_of_death(self) -> str:
        """How the child ended. Its channel closes before the process ends, so this waits a moment."""
        if not await self._ended_within(2.0):
            return "the child process closed its channel"
        code = await self._kill_and_reap()
        if code >= 0:
            return f"the child process exited with code {code}"
        try:
            return f"the child process was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"the child process was killed by signal {-code}"

    async def end(self, *, at_once: bool) -> None:
        """Close the channel, which ends an idle child. After a second, kill it and its descendants."""
        self._writer.close()
        await self._ended_within(0.0 if at_once else _CLOSE_S)
        await self._kill_and_reap()

    def kill(self) -> None:
        """Send SIGKILL to the child and its process group, without waiting."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def _kill_and_reap(self) -> int:
        self.kill()
        await self._ended_within(float("inf"))
        return self._popen.wait()

    async def _ended_within(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while self.alive and time.monotonic() < give_up:  # noqa: ASYNC110 - the end of a process cannot be awaited
            await asyncio.sleep(0.002)
        return not self.alive
