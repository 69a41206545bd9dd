"""One child process as its worker sees it: start it, give it a job, kill it with all it started."""

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
from collections.abc import Awaitable, Callable
from typing import Any

from jetjobs.model.errors import ChildDied
from jetjobs.worker.isolation.channel import PREFIX, Frame, Garbled, lengths, pack, read_head
from jetjobs.worker.isolation.log_forwarding import replay
from jetjobs.worker.isolation.stop_signal import STOP_SIGNAL

Asked = Callable[[Frame], Awaitable[Frame | None]]
"""Answers what a child asks while it runs a job. Garbled for what is no question."""
START_S = 60.0
"""How long the imports of the app may take."""
_LOOK_S = 0.25
"""While nothing comes from a child, so often it is looked at whether it lives."""
_CLOSE_S = 1.0
"""How long an idle child may take to end by itself."""

# The path comes first: jetjobs itself may be found only by it. -P keeps the current folder from its front.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from jetjobs.worker.isolation.main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class NotImported(ChildDied):
    """The import of the app raised in the child: it will again."""


class ChildProcess:
    """Runs one job at a time. After anything but an answer it is of no more use: kill it."""

    def __init__(
        self, popen: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._number = 0
        self.pid = popen.pid
        self.asked = False
        """Whether it was asked to stop a job. The signal may come late: it gets no other one."""

    @classmethod
    async def start(cls, setup: dict[str, Any]) -> tuple[ChildProcess, list[str]]:
        """A fresh interpreter with the app imported, and the tasks it does not have. ChildDied otherwise."""
        child = await cls._spawn()
        try:
            async with asyncio.timeout(START_S):
                answer = await child._exchange(setup, b"", {"ready", "failed"})
            if answer.head["kind"] == "failed":
                raise NotImported(f"a child process could not import the app: {answer.head.get('text')}")
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
            # Not in a thread: the system ends the child with the thread that made it. A session of its own, so
            # that Ctrl-C in a terminal does not reach it, and all it starts can be killed together.
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
        """Whether it runs. One that has ended is not reaped by this: until then its group is nobody else's."""
        if self._popen.returncode is not None:
            return False
        if not hasattr(os, "waitid"):
            return self._popen.poll() is None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # somebody else reaps all children of this process
            return False

    async def run(self, head: dict[str, Any], body: bytes, asked: Asked | None = None) -> Frame:
        """What became of a job; `asked` answers what comes before that. ChildDied when the child did not live to
        tell; then, and when this is cancelled, the child must be ended."""
        self._number += 1
        answer = await self._exchange({**head, "n": self._number}, body, {"returned", "raised"}, asked)
        if answer.head.get("n") != self._number:
            raise ChildDied("the child process answered for another job")
        return answer

    def ask_to_stop(self) -> None:
        """Let the job that it runs be interrupted. It may ignore that; then kill it."""
        self.asked = True
        if self.alive:
            os.kill(self.pid, STOP_SIGNAL)

    async def _exchange(
        self, head: dict[str, Any], body: bytes, kinds: set[str], asked: Asked | None = None
    ) -> Frame:
        try:
            await self._send(Frame(head, body))
            while True:
                answer = await self._receive()
                kind = answer.head.get("kind")
                if kind in kinds:
                    return answer
                if kind == "log" and isinstance(answer.head.get("record"), dict):
                    replay(answer.head["record"])
                elif asked is None:
                    raise Garbled(f"a frame of kind {kind!r}")
                elif (told := await asked(answer)) is not None:
                    await self._send(told)
        except Garbled as error:
            raise ChildDied(f"the child process wrote garbage into its channel: {error}") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ChildDied(await self._how_it_ended()) from None

    async def _send(self, frame: Frame) -> None:
        with contextlib.suppress(ConnectionError):  # it is gone; reading says how
            self._writer.write(pack(frame))
            await self._writer.drain()

    async def _receive(self) -> Frame:
        head, body = lengths(await self._exactly(PREFIX))
        return Frame(read_head(await self._exactly(head)), await self._exactly(body))

    async def _exactly(self, count: int) -> bytes:
        """So many bytes. A copy that the task forked may hold the channel open when the child is gone."""
        gone = False
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    return await self._reader.readexactly(count)
            except TimeoutError:
                if gone:
                    raise ConnectionResetError from None
                gone = not self.alive  # once more: its last words may be on their way

    async def _how_it_ended(self) -> str:
        """Its channel closes before it is gone, so wait a moment."""
        if not await self._gone_within(2.0):
            return "the child process closed its channel"
        code = await self._kill_and_reap()
        if code >= 0:
            return f"the child process exited with code {code}"
        try:
            return f"the child process was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"the child process was killed by signal {-code}"

    async def end(self, *, at_once: bool) -> None:
        """Close its channel, by which an idle child ends. Kill it, and what it started, after a second."""
        self._writer.close()
        await self._gone_within(0.0 if at_once else _CLOSE_S)
        await self._kill_and_reap()

    def kill(self) -> None:
        """SIGKILL to it and to all it started that is still in its group. Takes effect without a wait."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def _kill_and_reap(self) -> int:
        self.kill()
        await self._gone_within(float("inf"))
        return self._popen.wait()

    async def _gone_within(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while self.alive and time.monotonic() < give_up:  # noqa: ASYNC110 - nothing tells of the end of a process
            await asyncio.sleep(0.002)
        return not self.alive
