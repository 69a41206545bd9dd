"""The command line. This module only finds the command; each command's module loads what it needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `jetjobs` and `python -m jetjobs`."""
    from jetjobs.cli.output import flushed
    from jetjobs.cli.tree import run

    sys.exit(flushed(run(sys.argv[1:])))
