"""The command line: its entry point. Each command imports what it needs when it is called."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper


def main() -> None:
    """Entry point of `jetjobs` and `python -m jetjobs`."""
    _open_standard_files()
    _escape_unencodable()
    try:
        from jetjobs.cli.command_tree import run
        from jetjobs.cli.terminal.output import flushed
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(flushed(run(sys.argv[1:])))


def _open_standard_files() -> None:
    """Open /dev/null for each standard stream that is closed (`<&-`).

    Otherwise the first socket or file opened would get its number, and the event loop aborts the process when it
    has to close a descriptor of a standard stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, usually this one
            if found != number:
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _escape_unencodable() -> None:
    """Write `\\u2192` where the encoding of the output has no such character: readable, and valid in JSON."""
    codecs.register_error("jetjobs", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="jetjobs")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end
