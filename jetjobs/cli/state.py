"""State of this invocation: its global options and what follows from them: settings, the app, an event loop."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jetjobs.cli.terminal.output import Output

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.config import LoadedSettings

T = TypeVar("T")

STALE_DEV_FILE = "remove .jetjobs/dev.json if no `jetjobs dev` is running here"
"""The hint when no server answers at the address in that file."""


@dataclass
class State:
    """Filled from the global options before a command runs."""

    app: str | None = None
    server: str | None = None
    context: str | None = None
    creds: str | None = None
    config: Path | None = None
    timeout_s: float | None = None
    from_dev_file: bool = False
    """Whether the server address comes from `.jetjobs/dev.json`."""
    out: Output = field(default_factory=Output)

    def settings(self, flags: dict[str, Any] | None = None, *, dotenv: bool = False) -> LoadedSettings:
        """The settings, with the command's flags and the global options taking precedence."""
        from datetime import timedelta

        from jetjobs.config import load_settings

        ours = {
            "app": self.app,
            "nats.url": self.server,
            "nats.creds": self.creds,
            "nats.connect_timeout": None if self.timeout_s is None else timedelta(seconds=self.timeout_s),
        }
        loaded = load_settings({**ours, **(flags or {})}, config=self.config, context=self.context, dotenv=dotenv)
        if loaded.sources.get("nats.url", "").endswith("dev.json"):
            self.from_dev_file = True
            self.out.note(f"using the dev server at {loaded.settings.nats.url} (.jetjobs/dev.json)")
        return loaded

    def load_app(self, name: str | None, loaded: LoadedSettings) -> JetJobs:
        """The user's app, configured."""
        from jetjobs.cli.app_discovery import find_app

        app = find_app(name or loaded.settings.app)
        app.configure(loaded.settings)
        return app

    def reader(self) -> JetJobs:
        """An app without tasks, for commands that need only the server."""
        from jetjobs.app import JetJobs

        return JetJobs("jetjobs-cli", settings=self.settings().settings)


state = State()


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine, on uvloop if it is installed."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def operator() -> str:
    """Who runs this command, as recorded with what it changes."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # in a container the uid may have no name
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
