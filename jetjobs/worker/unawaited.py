"""Notice a coroutine that a task made and never awaited: its work was not done, so the attempt fails.

Python notices it when the coroutine is freed, usually at the end of the statement or function that made it, and
calls a function of `warnings`. That function is replaced here, so that jobs pay nothing until it happens.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Callable
from types import CoroutineType, FrameType, TracebackType
from typing import Any

from jetjobs.define.context import Context, running_job
from jetjobs.model.errors import AttemptError
from jetjobs.worker.attempt import Attempt

_HOOK = "_warn_unawaited_coroutine"
_MAX_FRAMES = 50

_python_warns: Callable[[Any], None] | None = None
_collecting: int | None = None
"""The thread that runs the garbage collector. What that frees may belong to any job."""


def watch_coroutines() -> None:
    """From now on, `Context._unawaited` is set for an attempt that drops a coroutine. Other warnings stay as they
    are. Once per process; it is not undone."""
    global _python_warns
    if _python_warns is None and (_python_warns := getattr(warnings, _HOOK, None)) is not None:
        setattr(warnings, _HOOK, _on_unawaited)
        gc.callbacks.append(_on_collection)


def _on_collection(phase: str, info: dict[str, int]) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


def _on_unawaited(coroutine: CoroutineType[Any, Any, Any]) -> None:
    context = running_job()
    if context is None or not _task_runs(context) or _collecting == threading.get_ident():
        assert _python_warns is not None
        _python_warns(coroutine)
    elif context._unawaited is None:
        error = AttemptError(f"coroutine {coroutine.__qualname__!r} was never awaited: did you forget await?")
        context._unawaited = error.with_traceback(_stack(sys._getframe(1)))


def _task_runs(context: Context) -> bool:
    """The job stays the current one while it is settled. A child process has no attempt, and settles nothing."""
    attempt: Attempt | None = context._attempt
    return attempt is None or attempt.running


def _stack(frame: FrameType | None) -> TracebackType | None:
    """The stack as a traceback, from the frame that dropped the coroutine outwards to the one of jetjobs."""
    found: TracebackType | None = None
    for _ in range(_MAX_FRAMES):
        if frame is None or str(frame.f_globals.get("__name__", "")).startswith("jetjobs."):
            break
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return found
