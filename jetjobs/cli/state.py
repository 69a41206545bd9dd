"""Global options of this invocation, and what commands make of them: settings, the app, an event loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jetjobs.cli.terminal.output import Output

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.config import LoadedSettings

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

    def settings(self, flags: dict[str, Any] | None = None, *, dotenv: bool = False) -> LoadedSettings:
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

    def load_app(self, name: str | None, loaded: LoadedSettings) -> JetJobs:
        """The user's app, configured."""
        from jetjobs.cli.app_discovery import find_app

        app = find_app(name or loaded.settings.app)
        app.configure(loaded.settings)
        return app

    def reader(self) -> JetJobs:
        """An app without tasks, for commands that need the server only."""
        from jetjobs.app import JetJobs

        return JetJobs("jetjobs-cli", settings=self.settings().settings)


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


def heeds_hangup() -> bool:
    """Whether a closed terminal stops this process. False under nohup, which has the signal ignored."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


# Global options may stand anywhere in a line. These take a value.
_WITH_VALUE = frozenset({"--app", "-s", "--server", "--context", "--creds", "--config", "--timeout"})
_WITHOUT = frozenset({"--json", "--jsonl", "--quiet", "--no-color"})
# With these commands -q is short for --queues.
_OWN_Q = frozenset({"worker", "setup"})


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move global options to the front, where the parser wants them.

    >>> hoist(["enqueue", "greet", "name=Ada", "--json"])
    ['--json', 'enqueue', 'greet', 'name=Ada']
    >>> hoist(["queues", "list", "-q"]), hoist(["worker", "-q", "mail"])
    (['-q', 'queues', 'list'], ['worker', '-q', 'mail'])
    """
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        if item == "--":
            rest.extend([item, *items])
        elif item == "-q":
            (rest if rest and rest[0] in _OWN_Q else front).append(item)
        elif item in _WITHOUT or (item.startswith("--") and item.partition("=")[0] in _WITH_VALUE and "=" in item):
            front.append(item)
        elif item in _WITH_VALUE:
            value = next(items, None)
            # Without a value it stays where it is: in front it would take the command for one.
            (rest if value is None else front).extend([item] if value is None else [item, value])
        else:
            rest.append(item)
    return front + rest


def before_dashes(arguments: list[str]) -> list[str]:
    """What stands before `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments
