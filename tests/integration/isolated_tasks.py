"""Tasks that run in child processes. A module of its own: the children import it."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from jetjobs import INJECTED, Context, Flow, JetJobs, Reject, Retry, RetryPolicy, Snooze, current_job
from jetjobs.errors import Verdict

app = JetJobs("isolated")

ONCE = RetryPolicy(max_attempts=1)
QUICK = RetryPolicy(max_attempts=3, base=timedelta(milliseconds=10))


class Order(BaseModel):
    number: int
    placed: datetime
    raw: bytes = b""


class Fatal(Exception):
    """Never worth another attempt, by the list of the task."""


class Known(Exception):
    """The app has a classifier for it."""


@app.classify(Known)
def known(error: Known) -> Verdict:
    return Verdict("later" in str(error), 3600.0 if "later" in str(error) else None)


@app.task
async def leaf() -> str:
    return str(current_job().parent_id)


@app.task(isolation="process")
def branch() -> list[str]:
    handle = leaf.enqueue_sync()
    return [current_job().id, handle.result_sync(10)]


@app.task
async def double(n: int) -> int:
    return 2 * n


@app.task(isolation="process")
def spread(n: int) -> Flow[list[int]]:
    flow = Flow("spread")
    return flow.returns(flow.map(double, range(n)))


@app.task(isolation="process")
def next_day(order: Order, by: timedelta) -> Order:
    return Order(number=order.number + 1, placed=order.placed + by, raw=order.raw)


@app.task(isolation="process", aliases=["whoami"])
async def who() -> dict[str, Any]:
    await asyncio.sleep(0)
    job = current_job()
    near = abs((job.deadline - datetime.now(UTC)).total_seconds() - job.remaining.total_seconds()) < 1
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "id": job.id,
        "attempt": job.attempt,
        "delivery": job.delivery,
        "worker": job.worker,
        "task": job.task,
        "headers": job.headers,
        "near": near,
        "remaining_s": job.remaining.total_seconds(),
        "fence": job.fence,
    }


@app.task(isolation="process", retry=QUICK)
def fail(text: str) -> None:
    raise ValueError(text)


async def never() -> None: ...


@app.task(isolation="process", retry=ONCE)
async def forgets(returned: bool) -> Any:
    if returned:
        return never()
    never()  # type: ignore[unused-coroutine]
    return None


@app.task(isolation="process", retry=RetryPolicy(max_attempts=3, base=timedelta(0), dead_on=(Fatal,)))
def fatal() -> None:
    raise Fatal("no")


@app.task(isolation="process", retry=RetryPolicy(max_attempts=2, base=timedelta(0), retry_on=(OSError,)))
def only_os_errors(kind: str) -> None:
    raise FileNotFoundError("gone") if kind == "file" else ValueError("bad")


@app.task(isolation="process", retry=QUICK)
async def known_error(text: str) -> None:
    raise Known(text)


@app.task(isolation="process", retry=QUICK)
def signal(name: str) -> None:
    raise {
        "retry": Retry(timedelta(hours=1), "shelf locked"),
        "snooze": Snooze(timedelta(hours=2)),
        "until": Snooze(until=datetime.now(UTC) + timedelta(hours=3)),
        "reject": Reject("not known"),
    }[name]


@app.task(isolation="process", retry=ONCE)
def die(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)
    elif how == "sys.exit":
        sys.exit(3)
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how == "close":
        os.closerange(3, 1000)
        time.sleep(60)


@app.task(isolation="process", retry=QUICK)
def crash_once() -> int:
    if current_job().attempt == 1:
        ctypes.string_at(0)
    return current_job().delivery


@app.task(isolation="process", retry=ONCE)
async def exit_on_the_loop() -> None:
    sys.exit(3)


@app.task(isolation="process", retry=ONCE, timeout=timedelta(seconds=3))
def spin(path: str) -> None:
    note(path)
    while True:
        pass


@app.task(isolation="process", retry=ONCE, timeout=timedelta(seconds=60))
def hold(path: str) -> None:
    note(path)
    time.sleep(60)


@app.task(isolation="process", retry=QUICK, timeout=timedelta(minutes=5))
def stubborn(path: str) -> None:
    """Deaf to whatever can be raised in it."""
    note(path)
    while True:
        try:
            time.sleep(1)
        except BaseException:
            note(f"{path}.heard")


@app.task(isolation="process", retry=ONCE, timeout=timedelta(seconds=60))
def hold_with_subprocess(path: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note(path, os.getpid(), other.pid)
    other.wait()


@app.task(isolation="process", retry=ONCE, memory_limit=64 * 2**20)
def take(size: int) -> int:
    return len(bytearray(size))


@app.task(isolation="process")
def take_freely(size: int) -> int:
    return len(bytearray(size))


@app.task(isolation="process")
def talk(text: str) -> str:
    print("printed", text)
    sys.stdout.write("no line end " + text)
    sys.stderr.write("error " + text + "\n")
    os.write(1, b"\x00\x01 raw bytes\n")
    return text


@app.task(isolation="process", retry=ONCE)
def log_lines(text: str) -> None:
    logging.getLogger("mine").warning("said %s", text, extra={"colour": "red", "odd": object()})
    current_job().logger.info("by the job")
    logging.getLogger("mine").debug("not wanted")
    try:
        raise ValueError("caught")
    except ValueError:
        logging.getLogger("mine").exception("it failed")


@app.task(isolation="process", retry=ONCE)
def garbage(length: int, seconds: float) -> None:
    """Write into every socket there is."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"x" * length)
        except OSError:
            continue
    time.sleep(seconds)


@app.task(isolation="process", retry=ONCE)
def fork(path: str, how: str) -> int:
    parent = os.getpid()
    if os.fork() == 0:
        note(path)
        logging.getLogger("mine").warning("from the copy")
        if how == "raise":
            raise RuntimeError("the copy")
        return -1
    if how == "die":
        os._exit(5)
    os.wait()
    return parent


@app.task(isolation="process", retry=ONCE)
def fork_and_linger() -> None:
    """The copy keeps the channel open after the child is gone."""
    if os.fork() == 0:
        time.sleep(60)
    os._exit(5)


@app.task(isolation="process")
def leave_a_thread_that_logs() -> int:
    def speak() -> None:
        for n in range(100):
            logging.getLogger("mine").warning("line %d", n)

    threading.Thread(target=speak, daemon=True).start()
    return os.getpid()


@app.task(isolation="process", retry=ONCE)
def not_json() -> Any:
    return object()


@app.task(isolation="process", retry=ONCE)
def large(size: int) -> str:
    return "x" * size


@app.task(isolation="process", store_result=False)
def silent() -> Any:
    return object()


@app.task
async def plain(n: int) -> int:
    return n


def note(path: str, *pids: int) -> None:
    """Write the given pids, or the pid of this process, to the file at `path` atomically."""
    part = f"{path}.{os.getpid()}"
    with open(part, "w") as file:
        file.write(" ".join(map(str, pids or (os.getpid(),))))
    os.replace(part, path)


@app.task(isolation="process", retry=ONCE)
async def tidy(marker: str, tidied: str) -> None:
    try:
        note(marker)
        await asyncio.sleep(60)
    finally:
        note(tidied)


@app.task(isolation="process", retry=ONCE)
def tidy_plain(marker: str, tidied: str) -> None:
    try:
        note(marker)
        time.sleep(60)
    finally:
        note(tidied)


@app.task(isolation="process", retry=ONCE)
def save_all_the_time(path: str, stored: str) -> list[int]:
    """Is interrupted between a question and its answer, most of the time; what it asks then must still fit."""
    job, n = current_job(), 0
    note(path)
    try:
        while True:
            job.checkpoint_sync(n)
            n += 1
    except asyncio.CancelledError:
        pass
    first = job.resume_sync(int)
    job.checkpoint_sync(-5)
    assert first is not None
    note(stored, first, n)
    return [job.resume_sync(int) or 0, job.resume_sync(int) or 0]


@app.task(isolation="process", retry=ONCE)
def log_all_the_time(path: str) -> str:
    """Lines that do not fit into the channel's buffer at once."""
    note(path)
    try:
        while True:
            logging.getLogger("shop").warning("x" * 300_000)
    except asyncio.CancelledError:
        return "heard"


@app.task(isolation="process", retry=ONCE)
def never_begins(path: str, numbers: list[int]) -> None:
    """Takes its time to be read; by then it is cancelled."""
    note(path)
    time.sleep(60)


@app.task(isolation="process")
def who_by_type(n: int, ctx: Context = INJECTED) -> list[Any]:
    return [ctx.id, ctx.worker, n]
