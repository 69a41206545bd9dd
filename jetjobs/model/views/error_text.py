"""An error as text: its type, its message and its traceback. Bounded in size, whatever was raised."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Iterator
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple

from jetjobs.model.errors import AttemptError, JetJobsError
from jetjobs.model.outcome import ErrorInfo, Signal

MAX_TEXT = 1_000
"""Characters of a message."""
MAX_TRACEBACK = 4_000
"""Characters of a traceback. It is logged, and it is moved with a job that is retried."""
MAX_FRAMES = 20
MAX_CHAIN = 4
"""Exceptions of a chain of causes."""
MAX_GROUP = 5
"""Exceptions that are shown of a group."""
MAX_DEPTH = 3
"""Groups within groups."""
MAX_NOTES = 5
MAX_SOURCE = 160
"""Characters of a source line and of a path."""
_MAX_RUN = 2
"""Frames of libraries in a row. Of more, only the last is shown."""

_OWN = frozenset({"jetjobs", "importlib", "contextlib"})
"""Packages whose frames are left out: they are not what failed."""
_UNNAMED = frozenset({"builtins", "__main__", "__mp_main__"})
"""Modules that are not part of the name of a type."""
_PYTHON = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_HEAD = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def describe(error: BaseException) -> ErrorInfo:
    """The error as text of limited length."""
    if isinstance(error, AttemptError | Signal) and isinstance(error.child_error, ErrorInfo):
        return error.child_error
    return ErrorInfo(type_name(error), message_of(error), format_traceback(error))


def type_name(error: BaseException | type[BaseException]) -> str:
    """The type with its module, unless that is a builtin or the main program."""
    kind = error if isinstance(error, type) else type(error)
    return kind.__qualname__ if kind.__module__ in _UNNAMED else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """The message of the error, cut to its limit."""
    try:
        return str(error)[:MAX_TEXT]
    except Exception:  # a broken __str__ must not take the worker down
        return "<unprintable>"


def format_traceback(error: BaseException) -> str:
    """The frames that led to the error, each as `path:line` with its source, then the error; causes come before.

    Frames of jetjobs are left out, and of several library frames in a row all but the last. Empty if nothing
    remains that `describe` does not say anyway.
    """
    try:
        home = _home(error)
        for frames in (MAX_FRAMES, MAX_FRAMES // 2, MAX_FRAMES // 4):
            lines = _chain(error, _Layout(home, frames))
            text = "\n".join(lines)
            if len(text) <= MAX_TRACEBACK:
                break
    except Exception:  # attributes of a hostile exception; the failure itself must still be settled
        return ""
    return cut(text, MAX_TRACEBACK) if len(lines) > 1 else ""


def cut(text: str, length: int) -> str:
    """The end of a traceback, which has the error. Whole lines if possible.

    >>> cut("Traceback (most recent call last):\\n  shop.py:3 in pay\\nValueError: no", 20)
    '...\\nValueError: no'
    """
    if len(text) <= length:
        return text
    if length <= 4:
        return ""
    kept = text[4 - length :]
    return "...\n" + (kept.partition("\n")[2] or kept)


# Exceptions


class _Layout(NamedTuple):
    home: str
    """The package of the app."""
    frames: int
    """How many frames of an exception are shown at most."""
    depth: int = 0
    """Groups around the exception."""


def _chain(error: BaseException, layout: _Layout) -> list[str]:
    """The lines of the error, after those of its nearest causes."""
    parts, seen = [_one(error, layout)], {id(error)}
    while True:
        cause, relation = error.__cause__, _CAUSE
        if cause is None and not error.__suppress_context__:
            cause, relation = error.__context__, _CONTEXT
        if cause is None or id(cause) in seen:
            break
        parts.append(["", relation, ""])
        if len(parts) >= 2 * MAX_CHAIN:
            parts.append(["... earlier exceptions"])
            break
        seen.add(id(cause))
        parts.append(_one(cause, layout))
        error = cause
    return [line for part in reversed(parts) for line in part]


def _one(error: BaseException, layout: _Layout) -> list[str]:
    shown = [line for item in _shown_frames(error, layout) for line in item.lines()]
    lines = [_HEAD, *shown] if shown and not layout.depth else shown
    lines += _final_lines(error)
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        lines += [note[:MAX_TEXT] for note in notes[:MAX_NOTES] if isinstance(note, str)]
    if isinstance(error, BaseExceptionGroup):
        lines += _members(error, layout)
    return lines


def _final_lines(error: BaseException) -> list[str]:
    if isinstance(error, SyntaxError):  # shows the place in the source
        return "".join(traceback.format_exception_only(error)).rstrip()[-MAX_TEXT:].split("\n")
    text = message_of(error)
    return [f"{type_name(error)}: {text}" if text else type_name(error)]


def _members(group: BaseExceptionGroup[Any], layout: _Layout) -> list[str]:
    members = group.exceptions
    if layout.depth >= MAX_DEPTH:
        return ["  ..."]
    inside = _Layout(layout.home, max(2, layout.frames // 2), layout.depth + 1)
    lines = []
    for number, member in enumerate(members[:MAX_GROUP], 1):
        lines.append(f"  {number} of {len(members)}:")
        lines += [f"    {line}" for line in _chain(member, inside)]
    if len(members) > MAX_GROUP:
        lines.append(f"  ... {len(members) - MAX_GROUP} more")
    return lines


# Frames


class _Frame(NamedTuple):
    file: str
    line: int
    name: str
    package: str
    module: dict[str, Any]
    times: int = 1

    @property
    def of_python(self) -> bool:
        return self.file.startswith((_PYTHON, "<frozen ")) and not self.installed

    @property
    def installed(self) -> bool:
        return any(folder in self.file for folder in _INSTALLED)

    def lines(self) -> Iterator[str]:
        times = f" ({self.times:,} times)" if self.times > 1 else ""
        yield f"  {_path(self)[-MAX_SOURCE:]}:{self.line} in {self.name}{times}"
        try:
            source = linecache.getline(self.file, self.line, self.module).strip()
        except Exception:  # the loader of a module may raise anything
            source = ""
        if source:
            yield f"    {source[:MAX_SOURCE]}"


class _Gap(NamedTuple):
    frames: int
    packages: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        where = f" in {', '.join(self.packages[:3])}" if self.packages else ""
        yield f"  ... {self.frames:,} frames{where}"


def _shown_frames(error: BaseException, layout: _Layout) -> list[_Frame | _Gap]:
    frames = list(_frames_of(error.__traceback__))
    # An error of which all frames are of jetjobs shows them, to be reported. Our own types say enough, and a
    # syntax error names its place itself.
    frames = _without_own(frames) or ([] if isinstance(error, JetJobsError | SyntaxError) else frames)
    shown: list[_Frame | _Gap] = []
    for of_app, together in groupby(frames, lambda frame: _is_of_app(frame, layout.home)):
        run = list(together)
        if of_app or len(run) <= _MAX_RUN:
            shown += run
        else:
            packages = tuple(dict.fromkeys(frame.package for frame in run[:-1]))
            shown += [_Gap(len(run) - 1, packages), run[-1]]
    if len(shown) <= layout.frames:
        return shown
    first, last = layout.frames // 4, layout.frames // 4 - layout.frames
    left_out = sum(item.frames if isinstance(item, _Gap) else 1 for item in shown[first:last])
    return [*shown[:first], _Gap(left_out), *shown[last:]]


def _home(error: BaseException) -> str:
    """The package of the first frame outside of jetjobs: usually that of the task's function."""
    frames = _without_own(list(_frames_of(error.__traceback__)))
    return next((frame.package for frame in frames if not frame.of_python), "")


def _frames_of(entry: TracebackType | None) -> Iterator[_Frame]:
    """The frames, outermost first. A line that calls itself is one frame."""
    last: _Frame | None = None
    code = None
    while entry is not None:
        frame = entry.tb_frame
        if last is not None and frame.f_code is code and entry.tb_lineno == last.line:
            last = last._replace(times=last.times + 1)
        else:
            if last is not None:
                yield last
            code = frame.f_code
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            last = _Frame(code.co_filename, entry.tb_lineno or 0, code.co_qualname, package, frame.f_globals)
        entry = entry.tb_next
    if last is not None:
        yield last


def _without_own(frames: list[_Frame]) -> list[_Frame]:
    """Without frames of jetjobs, and without those of the standard library that only connect them."""
    kept: list[_Frame] = []
    held: list[_Frame] = []
    after_own = False
    for frame in frames:
        if frame.package in _OWN:
            held, after_own = [], True
        elif after_own and frame.of_python:
            held.append(frame)
        else:
            kept += [*held, frame]
            held, after_own = [], False
    return kept


def _is_of_app(frame: _Frame, home: str) -> bool:
    """Whether the frame is of the app, which may be installed like a library."""
    return frame.package == home or not (frame.of_python or frame.installed)


def _path(frame: _Frame) -> str:
    """The file: below its folder of packages, else below the current folder, else absolute."""
    for folder in _INSTALLED:
        if folder in frame.file:
            return frame.file.rpartition(folder)[2]
    if frame.of_python:
        return frame.file.removeprefix(_PYTHON)
    try:
        return frame.file.removeprefix(os.getcwd() + os.sep)
    except OSError:  # the current folder was deleted
        return frame.file
