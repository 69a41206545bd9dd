"""`jetjobs http`: serve the HTTP API until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.app_discovery import AppNotFound
from jetjobs.cli.exit_codes import DONE
from jetjobs.cli.process.signals import stop_signals
from jetjobs.cli.state import run_async, state
from jetjobs.model.errors import BrokerError, ConfigError
from jetjobs.model.events import ConnectionLost, ConnectionRestored, PermissionDenied
from jetjobs.model.wire.validation import WEBHOOKS
from jetjobs.observe.logs import log_event, set_up
from jetjobs.worker.options import default_name

if TYPE_CHECKING:
    from jetjobs.http.server import Server
    from jetjobs.worker.worker import Worker

commands = typer.Typer()

WEBHOOKS_S = 5.0
"""How often to look for the queue of webhooks until it exists."""
_log = logging.getLogger("jetjobs.http")


@commands.callback(invoke_without_command=True)
def http(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]", metavar="ADDRESS")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 for any free one. [default: 8400]", metavar="PORT")
    ] = None,
    root_path: Annotated[str, typer.Option(help="Path under which a proxy serves the API.", metavar="PATH")] = "",
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Refuse requests without a token on loopback too.")
    ] = False,
    no_webhooks: Annotated[
        bool, typer.Option("--no-webhooks", help="Do not deliver webhooks; workers of queue webhooks do.")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. [default: info]", metavar="LEVEL")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="auto, console or json. [default: auto]", metavar="FORMAT"),
    ] = None,
) -> int:
    """Serve the HTTP API; manage its tokens.

    It runs until SIGTERM or Ctrl-C.

    On loopback, requests without a token may do everything. Any other address needs tokens:
    `jetjobs http token new` creates them. Without an app, arguments are checked against the schemas
    that running workers publish. On a signal, requests in progress are answered first.
    """
    if context.invoked_subcommand is not None:
        return DONE
    flags = {
        "http.host": host,
        "http.port": port,
        "http.require_token": require_token or None,
        "observe.log_level": log_level,
        "observe.log_format": log_format,
    }
    return run_async(lambda: _serve(flags, root_path, webhooks=not no_webhooks))


async def _serve(flags: dict[str, Any], root_path: str, *, webhooks: bool) -> int:
    try:
        from jetjobs.http.server import Server
    except ImportError as error:
        hint = "install it: pip install 'jetjobs[http]'"
        raise ConfigError(f"the HTTP API needs the extra http ({error})", hint=hint) from error
    _raise_file_limit()
    app = await _find_app(flags)
    settings = app.settings.observe
    colour = state.out.coloured(sys.stderr)
    set_up(settings.log_level, settings.log_format, dict, {"app": app.name}, colour=colour)
    app.observe(log_event, ConnectionLost, ConnectionRestored, PermissionDenied)
    async with app:
        server = Server(app, root_path=root_path)
        with _signals(server):
            async with _delivering(app) if webhooks else nullcontext():
                await server.run_until_stopped()
    _log.info("stopped", extra={"event": "http.stopped"})
    return DONE


def _raise_file_limit() -> None:
    """Allow as many connections as the system does: the usual limit of 1,024 files is too low for many clients."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _find_app(flags: dict[str, Any]) -> JetJobs:
    """The app of this folder, or else one without tasks for the namespace."""
    try:
        return state.load_app(None, flags)
    except AppNotFound:
        return await state.server_app(flags)


@asynccontextmanager
async def _delivering(app: JetJobs) -> AsyncIterator[None]:
    """Deliver webhooks while the block runs, from when their queue exists: the first callback creates it."""
    worker: Worker | None = None

    async def deliver() -> None:
        nonlocal worker
        while True:
            with suppress(BrokerError):
                if WEBHOOKS in await app.queues.names():
                    break
            await asyncio.sleep(WEBHOOKS_S)
        worker = app.worker(queues={WEBHOOKS: None}, schedules=False, name=default_name())
        await worker.run()

    delivering = asyncio.create_task(deliver())
    delivering.add_done_callback(_log_failed)
    try:
        yield
    finally:
        if worker is None:
            delivering.cancel()
        else:
            worker.stop()
        await asyncio.gather(delivering, return_exceptions=True)


def _log_failed(delivering: asyncio.Task[None]) -> None:
    if not delivering.cancelled() and (error := delivering.exception()) is not None:
        extra = {"event": "http.webhooks_failed", "error": str(error)}
        _log.error("webhooks are not delivered by this process", exc_info=error, extra=extra)


@contextmanager
def _signals(server: Server) -> Iterator[None]:
    """The first signal lets requests in progress finish, the second does not wait for them."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if server.should_exit:
            server.force_exit = True
        server.stop()

    handled = stop_signals()
    for number in handled:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
