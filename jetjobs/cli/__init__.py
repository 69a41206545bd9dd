"""The command line. This module only finds the command; each command's module loads what it needs."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of `jetjobs` and `python -m jetjobs`."""
    _open_standard_files()
    from jetjobs.cli.command_tree import run
    from jetjobs.cli.terminal.output import flushed

    sys.exit(flushed(run(sys.argv[1:])))


def _open_standard_files() -> None:
    """Those that were closed (`<&-`) would be taken by the first socket or file that is opened, and the event loop
    ends the whole process when it is to close one of them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
            if found != number:
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
