"""Exit codes of the command line and the errors that lead to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetjobs.model.errors import JetJobsError

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
APP_BROKEN = 4
NOT_FOUND = 5
REFUSED = 6
TIMED_OUT = 7
RECYCLED = 8
INTERRUPTED = 130
READER_GONE = 141
"""What a shell reports for a program that SIGPIPE ended."""


class AppImportError(Exception):
    """The user's module raised while it was imported; `__cause__` is the exception it raised."""

    hint: str | None = None

    def __str__(self) -> str:
        return f"the app {self.args[0]!r} cannot be imported"


def exit_code(error: JetJobsError) -> int:
    """The documented exit code for an error."""
    from jetjobs.model import errors as e

    table: list[tuple[type[e.JetJobsError], int]] = [
        (e.TopologyMissing, REFUSED),
        (e.TopologyConflict, REFUSED),
        (e.BrokerUnavailable, UNREACHABLE),
        (e.AccessDenied, UNREACHABLE),
        (e.UnsupportedServer, UNREACHABLE),
        (e.UnknownTask, NOT_FOUND),
        (e.JobNotFound, NOT_FOUND),
        (e.JobAmbiguous, USAGE),
        (e.QueueNotFound, NOT_FOUND),
        (e.QueueInUse, REFUSED),
        (e.WorkerNotFound, NOT_FOUND),
        (e.ScheduleNotFound, NOT_FOUND),
        (e.ScheduleConflict, REFUSED),
        (e.TokenNotFound, NOT_FOUND),
        (e.TokenConflict, REFUSED),
        (e.WorkerSilent, TIMED_OUT),
        (e.ResultNotReady, TIMED_OUT),
        (e.InvalidArguments, USAGE),
        (e.ConfigError, USAGE),
        (e.DefinitionError, USAGE),
    ]
    return next((code for kind, code in table if isinstance(error, kind)), FAILED)
