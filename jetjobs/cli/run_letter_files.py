"""What `dead export` and `dead import` do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jetjobs.cli.letter_choice import Selection
from jetjobs.cli.output import DONE, FAILED
from jetjobs.cli.run_dead import reader
from jetjobs.cli.state import state
from jetjobs.model.errors import ConfigError

NAMED = 20


async def export_command(selection: Selection, name: str, *, force: bool) -> int:
    wanted = selection.filter()
    _check_free(name, force)
    async with reader() as app:
        with _output(name) as file:
            count = await app.dead.export_to(file, wanted)
    if name != "-" and state.out.as_json:
        state.out.json({"exported": count})
    else:
        state.out.note(f"{count} exported")
    return DONE


def _check_free(name: str, force: bool) -> None:
    if name != "-" and not force and Path(name).exists():
        raise ConfigError(f"{name} is there already; nothing was written", hint="say --force to replace it")


@contextlib.contextmanager
def _output(name: str) -> Iterator[IO[str]]:
    """The file takes its name when it is whole: an export that was cut short leaves none."""
    if name == "-":
        yield sys.stdout
        return
    unfinished = Path(f"{name}.part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        os.replace(unfinished, name)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


async def import_command(name: str) -> int:
    with _input(name) as file:
        async with reader() as app:
            await app.provision([])
            try:
                report = await app.dead.import_from(file)
            except UnicodeDecodeError as error:
                raise ConfigError(f"{name} is no text: {error}") from None
            except asyncio.CancelledError:
                state.out.note("stopped before the end; what was imported stays. Repeat the command to go on.")
                raise
    problems = [{"line": number, "why": why} for number, why in report.problems]
    if state.out.as_json:
        counts = {"imported": report.imported, "already_there": report.already_there}
        state.out.json({**counts, "problems": problems})
    else:
        state.out.data(f"{report.imported} imported, {report.already_there} were there already")
        for number, why in report.problems[:NAMED]:
            state.out.note(f"{name}, line {number}: {why[:300]}")
        if len(problems) > NAMED:
            state.out.note(f"and {len(problems) - NAMED} more lines; --json has them all")
    return FAILED if problems else DONE


@contextlib.contextmanager
def _input(name: str) -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdin
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}") from error
        yield file
