"""`jetjobs dev`: an embedded server, a worker that reloads, and a file by which other terminals find them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jetjobs.cli.state import run_async, state

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.config import Loaded
    from jetjobs.devserver import EmbeddedServer


def add_to(tree: typer.Typer) -> None:
    tree.command("dev")(dev)


def dev(
    app: Annotated[str | None, typer.Argument(help="MODULE:NAME of the app; found by itself when there is one.")] = None,
    reload: Annotated[bool, typer.Option(help="Restart the worker when a Python file changes.")] = True,
    store: Annotated[str, typer.Option(help="Folder of the server's data, or memory.")] = ".jetjobs/nats",
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin with an empty store.")] = False,
    slots: Annotated[int, typer.Option("-c", "--slots", help="Jobs to run at once.", min=1)] = 10,
) -> None:
    """Run everything on this machine: nats-server, a worker, reload on change. Ctrl-C stops all in order."""
    raise typer.Exit(run_async(lambda: _dev(app, reload, store, fresh, slots)))


async def _dev(name: str | None, reload: bool, store: str, fresh: bool, slots: int) -> int:
    from jetjobs.model.errors import ConfigError

    loaded = state.settings(dotenv=True)
    if loaded.settings.env == "production":
        raise ConfigError("`jetjobs dev` does not run with env = production", hint="use `jetjobs worker`")
    app = state.load_app(name, loaded)
    if reload:
        _need_watchfiles()
    with contextlib.ExitStack() as stack:
        server = None
        url = loaded.settings.nats.url
        if loaded.sources.get("nats.url", "default") in ("default", ".jetjobs/dev.json"):
            server = _start_server(stack, loaded, store, fresh)
            url = server.url
        _banner(app, name or loaded.settings.app, server, url, store, reload, slots)
        return await _keep_worker(name, url, reload, slots)


def _need_watchfiles() -> None:
    from jetjobs.devserver import INSTALL
    from jetjobs.model.errors import ConfigError

    try:
        import watchfiles  # noqa: F401
    except ImportError:
        raise ConfigError("reloading needs watchfiles", hint=f"{INSTALL}, or --no-reload") from None


def _start_server(stack: contextlib.ExitStack, loaded: Loaded, store: str, fresh: bool) -> EmbeddedServer:
    from jetjobs.config import find_dev_server
    from jetjobs.devserver import EmbeddedServer, announce
    from jetjobs.model.errors import ConfigError

    running = find_dev_server(Path.cwd())
    if running is not None:
        raise ConfigError(
            f"a dev server runs here already: {running['url']} (pid {running['pid']})",
            hint="stop it, or run `jetjobs worker` beside it",
        )
    folder = None if store == "memory" else Path(store)
    if fresh and folder is not None and folder.is_dir():
        shutil.rmtree(folder)
    server = EmbeddedServer(folder)
    stack.callback(server.remove)
    server.start()
    assert server.process is not None
    announced = announce(Path.cwd(), server.url, server.process.pid)
    stack.callback(announced.unlink, missing_ok=True)
    return server


def _banner(
    app: JetJobs, name: str | None, server: EmbeddedServer | None, url: str, store: str, reload: bool, slots: int
) -> None:
    from jetjobs import __version__
    from jetjobs.jetstream.connection import show_url

    tasks = f"{len(app.tasks)} task{'' if len(app.tasks) == 1 else 's'}"
    kept = "in memory of a temporary folder" if store == "memory" else f"data in {store} (kept)"
    where = f"embedded nats-server at {url}, {kept}" if server is not None else show_url(url)
    out = state.out
    out.note(out.paint(f"jetjobs {__version__} · app {app.name} · {tasks}", "1"))
    out.note(f"NATS    {where}")
    out.note(f"Worker  1 process, {slots} slots, queues {', '.join(app.queues) or '-'}, reload {'on' if reload else 'off'}")
    if app.tasks:
        first = next(iter(app.tasks.values()))
        arguments = " ".join(f"{argument}=…" for argument in first.signature.names)
        out.note(f"Try     jetjobs enqueue {first.name} {arguments}".rstrip() + " --wait")


async def _keep_worker(name: str | None, url: str, reload: bool, slots: int) -> int:
    """Run a worker process; start it anew when a file changes; end it on a signal."""
    command = [sys.executable, "-m", "jetjobs", "--server", url, "worker", "--slots", str(slots)]
    command += ["--log-format", "console"]
    if name is not None:
        command.append(name)
    stopping, changed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    watching = asyncio.create_task(_watch(changed, stopping)) if reload else None
    code = 0
    try:
        while not stopping.is_set():
            changed.clear()
            child = await asyncio.create_subprocess_exec(*command, start_new_session=True)
            ended = asyncio.create_task(child.wait())
            await _first_of(ended, stopping, changed)
            if not ended.done():
                child.terminate()
            code = await ended
            if not stopping.is_set() and not changed.is_set():
                if not reload:
                    return code
                state.out.note("the worker has ended; waiting for a change")
                await _first_of(None, stopping, changed)
            if changed.is_set() and not stopping.is_set():
                state.out.note("reloading")
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    return 0


async def _first_of(task: asyncio.Task[int] | None, *events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait({*waiting, *([task] if task is not None else [])}, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


async def _watch(changed: asyncio.Event, stopping: asyncio.Event) -> None:
    from watchfiles import PythonFilter, awatch

    async for _ in awatch(Path.cwd(), watch_filter=PythonFilter(), stop_event=stopping):
        changed.set()
