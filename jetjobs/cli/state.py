"""State of this invocation: its global options and what follows from them: settings, the app, an event loop."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jetjobs.cli.terminal.output import Output

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.config import LoadedSettings
    from jetjobs.jetstream.transport.connection import Connection
    from jetjobs.model.settings import Settings
    from jetjobs.model.views.audit import Via

T = TypeVar("T")


@dataclass
class State:
    """Filled from the global options before a command runs."""

    app: str | None = None
    server: str | None = None
    context: str | None = None
    creds: str | None = None
    config: Path | None = None
    timeout_s: float | None = None
    namespace: str | None = None
    out: Output = field(default_factory=Output)

    def settings(
        self, flags: dict[str, Any] | None = None, *, app: JetJobs | None = None, dotenv: bool = False
    ) -> LoadedSettings:
        """The settings, with the command's flags and the global options taking precedence. Those given to `app`
        are one of the sources."""
        from datetime import timedelta

        from jetjobs.config import load_settings

        ours = {
            "app": self.app,
            "nats.url": self.server,
            "nats.creds": self.creds,
            "nats.connect_timeout": None if self.timeout_s is None else timedelta(seconds=self.timeout_s),
            "queues.namespace": self.namespace,
        }
        given = None if app is None else app.given_settings
        flags = {**ours, **(flags or {})}
        return load_settings(flags, given=given, config=self.config, context=self.context, dotenv=dotenv)

    def load_app(self, name: str | None = None, flags: dict[str, Any] | None = None) -> JetJobs:
        """The user's app, configured."""
        from jetjobs.cli.app_discovery import find_app

        app = find_app(name or self.settings(flags).settings.app)
        loaded = self.settings(flags, app=app)
        self.note_dev_server(loaded)
        app.configure(loaded.settings)
        return app

    def discover(self, flags: dict[str, Any] | None = None, *, tolerant: bool = False) -> LoadedSettings:
        """The settings for a command that needs no app, with the namespace if it is known without the server.

        The app contributes its settings and its name. It is not imported if server and namespace are named. One
        that cannot be imported is passed over if the namespace is known, or if `tolerant`.
        """
        from jetjobs.cli.app_discovery import AppNotFound, find_app
        from jetjobs.cli.exit_codes import AppImportError
        from jetjobs.model.errors import JetJobsError

        loaded = self.settings(flags)
        known = loaded.settings.queues.namespace is not None
        if known and loaded.names_server and self.app is None:
            return loaded
        try:
            app = find_app(loaded.settings.app)
        except AppNotFound:
            return loaded
        except (AppImportError, JetJobsError) as error:
            if self.app is not None or not (known or tolerant):
                error.hint = error.hint or "`--namespace NAME` and `--server URL` work without the app"
                raise
            self.out.note(f"the settings of the app are not used: {error}")
            return loaded
        loaded = self.settings(flags, app=app)
        return loaded if loaded.settings.queues.namespace else loaded.in_namespace(app.name, "app")

    async def server_app(self, flags: dict[str, Any] | None = None) -> JetJobs:
        """An app without tasks for the namespace, for commands that need no app. ConfigError if it is unknown."""
        return await self.app_for(self.discover(flags))

    async def app_for(self, loaded: LoadedSettings) -> JetJobs:
        """As `server_app`, with the settings that `discover` returned."""
        from jetjobs.app import JetJobs
        from jetjobs.model.errors import AccessDenied, ConfigError

        self.note_dev_server(loaded)
        if loaded.settings.queues.namespace is None:
            try:
                found = only_one(await namespaces_on(loaded.settings))
            except AccessDenied as error:
                text, hint = f"the namespace is unknown: {error}", "name it with --namespace NAME"
                raise ConfigError(text, hint=hint) from error
            loaded = loaded.in_namespace(found, "server")
            self.out.note(f"using namespace {found}, the only one on the server")
        app = JetJobs("jetjobs-cli")
        app.configure(loaded.settings)
        return app

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[JetJobs]:
        """As `server_app`, opened."""
        async with await self.server_app() as app:
            yield app

    def note_dev_server(self, loaded: LoadedSettings) -> None:
        """Say so if the dev server is used, unless `jetjobs dev` itself runs this worker."""
        if (note := loaded.dev_server_note) and not os.environ.get("JETJOBS_DEV"):
            self.out.note(note)


state = State()


def run_async(main: Callable[[], Coroutine[Any, Any, T]], via: Via = "cli") -> T:
    """Run a coroutine, on uvloop if it is installed. What it changes is recorded as having come from `via`."""
    import asyncio

    from jetjobs.model.views.audit import acting_via

    _note_warnings()

    async def work() -> T:
        with acting_via(via):
            return await main()

    try:
        import uvloop
    except ImportError:
        return asyncio.run(work())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


def _note_warnings() -> None:
    """Print warnings of jetjobs as notes, with their cause, unless the command sets up logging."""
    import logging

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            cause = vars(record).get("error")
            state.out.note(self.format(record) + (f": {cause}" if cause else ""))

    logging.lastResort = Notes(logging.WARNING)


@contextlib.asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Connection]:
    """A connection to the server that belongs to no namespace."""
    from jetjobs.jetstream.transport.connection import Connection

    connection = Connection(settings.nats, "jetjobs-cli", lambda event: None)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


async def namespaces_on(settings: Settings) -> list[str]:
    """The namespaces on the server. BrokerError if they cannot be read."""
    from jetjobs.jetstream.queues.inspection import list_namespaces

    async with connected(settings) as connection:
        return await list_namespaces(connection)


def only_one(namespaces: list[str]) -> str:
    """The only one. ConfigError if there are several, or none."""
    from jetjobs.model.errors import ConfigError

    if not namespaces:
        raise ConfigError(
            "the namespace is unknown: no app was found here, and the server has no queues",
            hint="name it with --namespace NAME or --app MODULE:NAME",
        )
    if len(namespaces) > 1:
        raise ConfigError(
            f"the server has several namespaces: {', '.join(namespaces)}", hint="choose one with --namespace NAME"
        )
    return namespaces[0]


def operator() -> str:
    """Who runs this command, as recorded with what it changes."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # in a container the uid may have no name
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
