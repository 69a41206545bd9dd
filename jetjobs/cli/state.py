"""Global options of this invocation, and what commands make of them: settings, the app, an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jetjobs.cli.output import Output

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.config import Loaded

T = TypeVar("T")

STALE_DEV_FILE = "remove .jetjobs/dev.json if no `jetjobs dev` runs here"
"""What to do when no server answers where that file says."""


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
    """Whether the server was found by `.jetjobs/dev.json`."""
    out: Output = field(default_factory=Output)

    def settings(self, flags: dict[str, Any] | None = None, *, dotenv: bool = False) -> Loaded:
        """Settings with flags on top, of this command and global."""
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

    def load_app(self, name: str | None, loaded: Loaded) -> JetJobs:
        """The user's app, configured."""
        from jetjobs.cli.discover import find_app

        app = find_app(name or loaded.settings.app)
        app.configure(loaded.settings)
        return app


state = State()


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on uvloop where it is installed."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
