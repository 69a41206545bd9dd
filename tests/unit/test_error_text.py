"""Errors as text: what a failed attempt shows, and the limits of it."""

# No `from __future__ import annotations`: a task below is declared inside a test, with local types.

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.define.secret import Secret
from jetjobs.define.signature import Signature
from jetjobs.model.errors import AttemptError, JobTimeout
from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.views.error_text import MAX_TEXT, MAX_TRACEBACK, cut, describe, format_traceback

HERE = Path(__file__).resolve().relative_to(Path.cwd()).as_posix()


def caught(raising: Callable[[], Any]) -> BaseException:
    """What the function raises, with the traceback that begins in it."""
    try:
        raising()
    except BaseException as error:
        return error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    raise AssertionError("nothing was raised")


def raised(error: BaseException) -> BaseException:
    def fail() -> None:
        raise error

    return caught(fail)


def function(name: str, file: str, module: str, line: int = 1) -> Callable[..., Any]:
    """A function of another module: it calls its first argument with the others."""
    source = "\n" * (line - 1) + f"def {name}(inner, *more): return inner(*more)"
    scope: dict[str, Any] = {"__name__": module}
    exec(compile(source, file, "exec"), scope)
    return scope[name]  # type: ignore[no-any-return]


def boom() -> None:
    raise ValueError("boom")


executor = function("execute", "/x/jetjobs/worker/executor.py", "jetjobs.worker.executor")
python = function("run", asyncio.__file__, "asyncio.runners")
library = function("send", "/v/lib/python3/site-packages/httpx/_client.py", "httpx._client", 913)
other_library = function("read", "/v/lib/python3/site-packages/httpcore/_sync.py", "httpcore._sync")
third = function("where", "/v/lib/python3/dist-packages/certifi/core.py", "certifi.core")
installed_app = function("charge", "/v/lib/python3/site-packages/shop/tasks.py", "shop.tasks", 14)


def lines(raising: Callable[[], Any]) -> list[str]:
    return format_traceback(caught(raising)).split("\n")


# What is shown


def test_an_error_is_described_by_type_text_and_traceback() -> None:
    line = boom.__code__.co_firstlineno + 1
    assert describe(caught(boom)) == ErrorInfo(
        "ValueError",
        "boom",
        "Traceback (most recent call last):\n"
        f"  {HERE}:{line} in boom\n"
        '    raise ValueError("boom")\n'
        "ValueError: boom",
    )


def test_frames_of_jetjobs_and_of_what_connects_them_are_left_out() -> None:
    shown = lines(lambda: executor(python, executor, python, boom))
    assert [line for line in shown if line.endswith((" execute", " run"))] == ["  asyncio/__init__.py:1 in run"]
    shown = lines(lambda: executor(python, executor, boom))
    assert not [line for line in shown if "execute" in line or "asyncio" in line]
    assert shown[-1] == "ValueError: boom"


def test_frames_below_the_last_of_the_task_that_are_of_jetjobs_are_left_out() -> None:
    def task() -> None:
        executor(python, fails)

    fails = function("store", "/x/jetjobs/jetstream/publisher.py", "jetjobs.jetstream.publisher")
    shown = lines(lambda: executor(task))
    assert shown[-1].startswith("TypeError: ")
    assert shown[-2].strip() == "executor(python, fails)"


def test_an_internal_error_of_jetjobs_shows_its_frames() -> None:
    assert lines(partial(executor, int, "x"))[1] == "  /x/jetjobs/worker/executor.py:1 in execute"


def test_an_error_of_our_own_that_no_code_of_the_task_raised_has_no_traceback() -> None:
    assert describe(JobTimeout("too long")).traceback == ""
    assert describe(ValueError("never raised")).traceback == ""


def test_of_several_library_frames_in_a_row_the_last_is_shown() -> None:
    shown = lines(partial(executor, installed_app, library, third, library, other_library, boom))
    assert shown[1:5] == [
        "  shop/tasks.py:14 in charge",
        "  ... 3 frames in httpx, certifi",
        "  httpcore/_sync.py:1 in read",
        f"  {HERE}:{boom.__code__.co_firstlineno + 1} in boom",
    ]


def test_an_app_that_is_installed_like_a_library_shows_its_frames() -> None:
    shown = lines(partial(executor, *4 * [installed_app], library, boom))
    assert shown[1] == "  shop/tasks.py:14 in charge (4 times)"
    assert shown[2] == "  httpx/_client.py:913 in send"


def test_a_cause_is_shown_before_its_error() -> None:
    def pay() -> None:
        try:
            boom()
        except ValueError as error:
            raise LookupError("no order") from error

    shown = lines(pay)
    cause, effect = shown.index("ValueError: boom"), shown.index("LookupError: no order")
    assert shown[cause + 1 : cause + 4] == [
        "",
        "The above exception was the direct cause of the following exception:",
        "",
    ]
    assert effect == len(shown) - 1
    assert 'raise LookupError("no order") from error' in shown[effect - 1]


@pytest.mark.parametrize("hidden", [True, False])
def test_an_error_in_a_handler_shows_both_unless_the_first_is_suppressed(hidden: bool) -> None:
    def pay() -> None:
        try:
            boom()
        except ValueError:
            if hidden:
                raise LookupError("no order") from None
            raise LookupError("no order")  # noqa: B904

    shown = lines(pay)
    assert ("ValueError: boom" in shown) is not hidden
    assert shown[-1] == "LookupError: no order"


def test_a_group_shows_each_of_its_errors_with_its_frames() -> None:
    async def fetch(page: int) -> None:
        raise LookupError(f"no page {page}")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch(1))
            group.create_task(fetch(2))

    shown = lines(lambda: asyncio.run(both()))
    at = shown.index("ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)")
    where = f"      {HERE}:{fetch.__code__.co_firstlineno + 1} in {fetch.__qualname__}"
    source = '        raise LookupError(f"no page {page}")'
    assert shown[at + 1 :] == [
        "  1 of 2:",
        where,
        source,
        "    LookupError: no page 1",
        "  2 of 2:",
        where,
        source,
        "    LookupError: no page 2",
    ]


def test_notes_follow_the_error() -> None:
    error = raised(ValueError("boom"))
    error.add_note("the first order of the day")
    assert format_traceback(error).endswith("ValueError: boom\nthe first order of the day")
    quiet = AttemptError("no frames")
    quiet.add_note("but a note")
    assert format_traceback(quiet) == "jetjobs.errors.AttemptError: no frames\nbut a note"


def test_a_syntax_error_shows_its_place() -> None:
    shown = lines(lambda: compile("def (:", "shop.py", "exec"))
    assert shown[-4:-2] == ['  File "shop.py", line 1', "    def (:"]
    assert shown[-1].startswith("SyntaxError: ")


def test_types_of_the_main_program_have_no_module() -> None:
    odd = type("Odd", (Exception,), {"__module__": "__mp_main__"})
    assert describe(odd()).type == "Odd"
    assert describe(Broken()).type == f"{__name__}.Broken"


def test_an_error_of_a_child_is_described_as_the_child_did() -> None:
    error = AttemptError("x")
    error.child_error = ErrorInfo("Odd", "text", "trace")
    assert describe(error) == ErrorInfo("Odd", "text", "trace")


def test_a_wrong_secret_is_in_no_traceback() -> None:
    def log_in(password: Annotated[int, Secret()]) -> None: ...

    signature = Signature("log_in", log_in)
    typed = "swordfish"
    for wrong in (lambda: signature.bind((), {"password": typed}), lambda: signature.encode({"password": typed})):
        info = describe(caught(wrong))
        text = "\n".join((info.type, info.text, info.traceback))
        assert "log_in" in text
        assert typed not in text


# Limits


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Hostile(Exception):
    __notes__ = property(lambda self: 1 / 0)
    __cause__ = property(lambda self: 1 / 0)


@pytest.mark.parametrize("error", [Broken("x"), NotText("x")])
def test_an_error_that_cannot_be_printed_is_still_described(error: Exception) -> None:
    info = describe(raised(error))
    assert info.text == "<unprintable>"
    assert info.traceback.endswith(": <unprintable>")


def test_an_error_with_hostile_attributes_is_still_described() -> None:
    assert describe(raised(Hostile("x"))) == ErrorInfo(f"{__name__}.Hostile", "x", "")


def test_a_large_message_is_cut() -> None:
    info = describe(raised(ValueError("x" * 1_000_000)))
    assert info.text == "x" * MAX_TEXT
    assert info.traceback.endswith("ValueError: " + "x" * MAX_TEXT)
    assert len(info.traceback) <= MAX_TRACEBACK


def test_a_deep_recursion_is_one_frame_and_quickly_described() -> None:
    def down(depth: int) -> int:
        return down(depth + 1)

    error = caught(lambda: down(0))
    assert isinstance(error, RecursionError)
    started = time.perf_counter()
    shown = format_traceback(error).split("\n")
    assert time.perf_counter() - started < 0.25
    assert len(shown) < 10
    assert any(line.endswith(" times)") and "down" in line for line in shown)


def test_of_a_recursion_through_several_functions_both_ends_are_shown() -> None:
    def ping(depth: int) -> None:
        pong(depth + 1)

    def pong(depth: int) -> None:
        if depth > 400:
            raise ValueError("deep")
        ping(depth + 1)

    shown = lines(lambda: ping(0))
    assert 20 < len(shown) < 50
    assert any(line.startswith("  ... 3") and line.endswith(" frames") for line in shown)
    assert shown[-2].strip() == 'raise ValueError("deep")'


def test_a_very_long_chain_of_causes_is_cut_to_the_nearest() -> None:
    error: BaseException = ValueError("innermost")
    for number in range(3_000):
        outer = ValueError(f"number {number}")
        outer.__cause__ = error
        error = outer
    info = describe(raised(error))
    assert info.text == "number 2999"
    assert "ValueError: number 2998" in info.traceback
    assert info.traceback.startswith("... earlier exceptions")
    assert len(info.traceback) <= MAX_TRACEBACK


def test_a_cycle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert format_traceback(raised(first)).count("ValueError: ") == 2


def test_wide_and_deep_groups_are_cut() -> None:
    wide = ExceptionGroup("wide", [ValueError(str(number)) for number in range(500)])
    assert format_traceback(raised(wide)).endswith("ValueError: 4\n  ... 495 more")
    deep: Exception = ValueError("innermost")
    for _ in range(200):
        deep = ExceptionGroup("deep", [deep])
    assert len(format_traceback(raised(deep))) <= MAX_TRACEBACK
    huge = ExceptionGroup("huge", [raised(ValueError("x" * 5_000)) for _ in range(9)])  # type: ignore[type-var]
    text = format_traceback(raised(huge))
    assert len(text) <= MAX_TRACEBACK
    assert text.startswith("...\n")


def test_long_paths_and_lines_are_cut() -> None:
    far = function("f" * 300, f"/{'p' * 3_000}/tasks.py", "tasks")
    shown = lines(lambda: far(boom))
    assert all(len(line) < 600 for line in shown)
    assert any("pppp/tasks.py:1 in fff" in line for line in shown)


def test_nothing_is_read_from_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert f"{__file__}:" in format_traceback(caught(boom))


@given(st.text())
def test_any_text_is_kept_up_to_its_cap(text: str) -> None:
    assert describe(ValueError(text)).text == text[:MAX_TEXT]


@given(st.text(alphabet="ab\n"), st.integers(0, 60))
def test_a_cut_keeps_the_end(text: str, length: int) -> None:
    short = cut(text, length)
    assert len(short) <= max(length, 0)
    assert short == text or short == "" or text.endswith(short.removeprefix("...\n"))


def test_describing_an_error_reads_no_more_frames_than_it_shows() -> None:
    """A limit of recursion that was raised must not stop the worker's event loop for long."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:

        def ping(depth: int) -> None:
            if depth > 9_000:
                raise ValueError("deep")
            pong(depth + 1)

        def pong(depth: int) -> None:
            ping(depth + 1)

        error = caught(lambda: ping(0))
    finally:
        sys.setrecursionlimit(before)
    started = time.perf_counter()
    assert len(format_traceback(error)) <= MAX_TRACEBACK
    assert time.perf_counter() - started < 1.0
