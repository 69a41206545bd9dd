"""`jetjobs dev`: an embedded server, a worker that reloads, and a file that points other terminals to the server.

The server starts before the worker and stops after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from jetjobs import __version__
from jetjobs.app import JetJobs
from jetjobs.cli.app_discovery import find_app
from jetjobs.cli.exit_codes import FAILED, RECYCLED, REFUSED
from jetjobs.cli.process.signals import stop_signals
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import App, Yes
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.config import DEV_FILE, ENV_URL, LoadedSettings, find_dev_server
from jetjobs.dev_server import INSTALL, EmbeddedServer, announce, die_with_parent
from jetjobs.doctor.finding import many
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import is_loopback, show_url

PORT_FILE = DEV_FILE.with_name("port")

commands = typer.Typer()


@commands.command()
async def dev(
    app: App = None,
    reload: Annotated[bool, typer.Option(help="Restart the worker when a Python file changes.")] = True,
    store: Annotated[
        str, typer.Option(help="Folder for the server's data, or memory.", metavar="FOLDER")
    ] = ".jetjobs/nats",
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the server's data first.")] = False,
    slots: Annotated[int, typer.Option("-c", "--slots", help="Jobs to run at once.", min=1, metavar="N")] = 10,
    yes: Yes = False,
) -> int:
    """Run nats-server and a worker that reloads on change.

    Ctrl-C stops the worker, then the server. The server is its own: only --server replaces it, and a
    server on another machine is changed after confirmation.
    """
    loaded = state.settings(dotenv=True)
    _check_env(loaded)
    target = find_app(app or loaded.settings.app)
    loaded = state.settings(app=target, dotenv=True)
    _check_env(loaded)
    if reload and find_spec("watchfiles") is None:
        raise ConfigError("reloading needs watchfiles", hint=f"{INSTALL}, or use --no-reload")
    with contextlib.ExitStack() as stack:
        url = loaded.settings.nats.url
        if state.server is not None:
            what = f"create the queues of app {target.name} on {show_url(url)} and run its jobs"
            if not is_loopback(url) and not await confirmed(what, yes=yes):
                return REFUSED
            where, server = f"{show_url(url)} (from --server)", None
        else:
            server = _start_server(stack, store, fresh=fresh)
            kept = "data in a temporary folder" if store == "memory" else f"data in {store} (kept)"
            where = f"embedded nats-server at {server.url}, {kept}"
        _banner(target, where, slots, "on" if reload else "off")
        if state.server is None and (source := loaded.sources.get("nats.url")):
            note = f"Not used: {show_url(url)} ({source}); `--server URL` uses a server that runs already"
            state.out.note(note + ("" if source != ENV_URL else ", and other commands here still use it"))
        return await _run_worker(app or loaded.settings.app, slots, server, reload=reload)


def _check_env(loaded: LoadedSettings) -> None:
    if loaded.settings.env == "production":
        raise ConfigError("`jetjobs dev` refuses to run with env = production", hint="use `jetjobs worker`")


def _start_server(stack: contextlib.ExitStack, store: str, *, fresh: bool) -> EmbeddedServer:
    running = find_dev_server(Path.cwd())
    if running is not None:
        raise ConfigError(
            f"a dev server is already running here: {running['url']} (pid {running['pid']})",
            hint="stop it, or run `jetjobs worker` beside it",
        )
    folder = None if store == "memory" else Path(store)
    if fresh and folder is not None and folder.is_dir():
        shutil.rmtree(folder)
    server = EmbeddedServer(folder, port=_last_port())
    stack.callback(server.remove)
    server.start()
    assert server.process is not None
    announced = announce(Path.cwd(), server.url, server.process.pid)
    PORT_FILE.write_text(server.url.rsplit(":", 1)[1])
    stack.callback(announced.unlink, missing_ok=True)
    return server


def _last_port() -> int:
    """The port of the last dev server in this folder, so that running programs find it again; -1 for any port if
    that one is taken."""
    try:
        port = int(PORT_FILE.read_text())
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except (OSError, ValueError, OverflowError):
        return -1
    return port


def _banner(app: JetJobs, server: str, slots: int, reload: str) -> None:
    out = state.out
    tasks = f"{many(len(set(app.tasks.values())), 'task')}, {many(len(app.declared_schedules), 'schedule')}"
    out.note(out.paint(f"jetjobs {__version__} · app {app.name} · {tasks}", "1"), painted=True)
    out.note(f"NATS    {server}")
    out.note(f"Worker  1 process, {slots} slots, queues {', '.join(app.task_queues) or '-'}, reload {reload}")
    if app.tasks:
        first = next(iter(app.tasks.values()))
        arguments = " ".join(f"{argument}=…" for argument in first.signature.names)
        out.note(f"Try     jetjobs enqueue {first.name} {arguments}".rstrip() + " --wait")


def _command(app: str | None, slots: int) -> tuple[list[str], dict[str, str]]:
    """The worker's command line and environment. Without --server it finds the embedded server as every process in
    this folder does: by the file, and without login and TLS."""
    # Only `dev` reads .env. The worker reads it on its behalf, so the file has the same precedence there.
    environment = {**os.environ, "JETJOBS_DEV": "1"}
    options: list[tuple[str, Any]] = [("--config", state.config), ("--namespace", state.namespace)]
    if state.server is not None:
        options += [("--server", state.server), ("--creds", state.creds), ("--context", state.context)]
    else:
        environment.pop("JETJOBS_NATS__URL", None)
    command = [sys.executable, "-m", "jetjobs"]
    for flag, value in options:
        command += [flag, str(value)] if value else []
    command += ["--timeout", f"{state.timeout_s}s"] if state.timeout_s else []
    command += [] if state.out.may_colour else ["--no-color"]
    command += ["worker", "--slots", str(slots), "--log-format", "console"]
    return command + ([app] if app else []), environment


async def _run_worker(app: str | None, slots: int, server: EmbeddedServer | None, *, reload: bool) -> int:
    """Run a worker process, restart it when it was killed or a file changes, and stop it on a signal or when the
    server has ended."""
    command, environment = _command(app, slots)
    stopping, changed = asyncio.Event(), asyncio.Event()
    workers: list[asyncio.subprocess.Process] = []
    _on_signals(stopping, workers)
    watching = [asyncio.create_task(_watch(changed, stopping))] if reload else []
    watching += [asyncio.create_task(_watch_server(server, stopping))] if server is not None else []
    code = 0
    try:
        while not stopping.is_set():
            changed.clear()
            child = await asyncio.create_subprocess_exec(
                *command, start_new_session=True, env=environment, preexec_fn=die_with_parent()
            )
            workers[:] = [child]
            ended = asyncio.create_task(child.wait())
            await _first_of(ended, stopping, changed)
            if not ended.done():
                child.terminate()
            code = await ended
            if code == RECYCLED:
                continue
            if code < 0 and not stopping.is_set() and not changed.is_set():
                state.out.note(f"the worker was killed ({signal.Signals(-code).name}); restarting")
                await asyncio.sleep(1.0)  # a task that kills its worker at once must not cause a busy loop
                continue
            if not stopping.is_set() and not changed.is_set():
                if not reload:
                    return code
                state.out.note(f"the worker exited with code {code}; waiting for a file to change")
                await _first_of(None, stopping, changed)
            if changed.is_set() and not stopping.is_set():
                state.out.note("reloading")
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return FAILED if server is not None and server.ended else 0


async def _watch_server(server: EmbeddedServer, stopping: asyncio.Event) -> None:
    while not server.ended:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await stopping.wait()
                return
    state.out.error("nats-server has ended", "start `jetjobs dev` again", FAILED)
    stopping.set()


def _on_signals(stopping: asyncio.Event, workers: list[asyncio.subprocess.Process]) -> None:
    """Set `stopping` on the first signal and pass further ones on to the running worker."""
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        stopping.set()
        for worker in workers if signals > 1 else ():
            if worker.returncode is None:
                # The worker counts them too: the second cancels and releases its jobs.
                worker.send_signal(signal.SIGTERM if signals == 2 else signal.SIGKILL)

    def on_hangup() -> None:
        if not signals:  # shell and kernel may both send one
            on_signal()

    for number in stop_signals():
        handler = on_hangup if number == signal.SIGHUP else on_signal
        asyncio.get_running_loop().add_signal_handler(number, handler)


async def _first_of(task: asyncio.Task[int] | None, *events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait({*waiting, *([task] if task is not None else [])}, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


async def _watch(changed: asyncio.Event, stopping: asyncio.Event) -> None:
    from watchfiles import PythonFilter, awatch  # part of the dev extra

    async for _ in awatch(Path.cwd(), watch_filter=PythonFilter(), stop_event=stopping):
        changed.set()
