"""`jetjobs setup`: show what the app needs on the server as a difference, apply it, or delete everything."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jetjobs.cli.completion import queue_names
from jetjobs.cli.exit_codes import DONE, NOT_FOUND, REFUSED
from jetjobs.cli.state import connected, state
from jetjobs.cli.terminal.options import App, Yes
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.doctor.finding import many
from jetjobs.jetstream.queues.inspection import list_namespaces, list_queues
from jetjobs.jetstream.queues.removal import destroy, jobs_in, message_count, streams_of
from jetjobs.jetstream.topology import TopologyChange, lowered_leases
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.workers.registry import list_workers
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import show_url
from jetjobs.model.wire.subjects import Names
from jetjobs.model.wire.validation import check_token

commands = typer.Typer()
Queues = Annotated[
    str | None,
    typer.Option(
        "-q",
        "--queue",
        help="Further queues besides those of the tasks: mail,reports.",
        metavar="QUEUE",
        autocompletion=queue_names,
    ),
]
Replicas = Annotated[
    int | None, typer.Option(help="Replicas of each stream: 1, 3 or 5.", min=1, max=5, metavar="N")
]


@commands.command()
async def plan(app: App = None, queues: Queues = None, replicas: Replicas = None) -> None:
    """Show what `setup apply` would create or change."""
    _show(await _compare(app, queues, replicas), applied=False)


@commands.command()
async def apply(
    app: App = None,
    queues: Queues = None,
    replicas: Replicas = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also lower a lease that running workers do not confirm.")
    ] = False,
) -> None:
    """Create or update what the app needs. Safe to repeat and to run concurrently.

    Before a lease is lowered, the running workers must confirm that they heartbeat more often.
    """
    _show(await _compare(app, queues, replicas, apply=True, force=force), applied=True)


@commands.command(name="destroy")
async def destroy_namespace(yes: Yes = False) -> int:
    """Permanently delete everything of a namespace.

    That is its queues, jobs, results, dead letters, schedules, tokens and audit. Only --namespace
    chooses it. The name must be typed to confirm, or --yes given.
    """
    if state.namespace is None:
        raise ConfigError("no namespace is given", hint="jetjobs setup destroy --namespace NAME")
    names, loaded = Names(state.namespace), state.discover(tolerant=True)
    state.note_dev_server(loaded)
    # Not through an app: it would refuse streams of another version.
    async with connected(loaded.settings) as connection:
        if not await streams_of(connection, names):
            others = ", ".join(await list_namespaces(connection)) or "none"
            text = f"namespace {names.namespace!r} does not exist on the server"
            state.out.error(text, f"namespaces on the server: {others}", NOT_FOUND)
            return NOT_FOUND
        what = f"permanently delete namespace {names.namespace} on {show_url(loaded.settings.nats.url)}: "
        if not await confirmed(what + await _content(connection, names), yes=yes, word=names.namespace):
            return REFUSED
        deleted = await destroy(connection, names)
    if state.out.as_json:
        state.out.json({"namespace": names.namespace, "deleted": deleted})
    elif state.out.quiet:
        state.out.data(names.namespace)
    else:
        state.out.data(f"namespace {names.namespace} deleted: {many(len(deleted), 'stream')}")
    return DONE


async def _content(connection: Connection, names: Names) -> str:
    queues = await list_queues(connection, names)
    jobs = sum([await jobs_in(connection, names, queue) for queue in queues])
    dead = await message_count(connection, names.dead_stream)
    text = f"{many(len(queues), 'queue')} with {many(jobs)} and {many(dead, 'dead letter')}"
    workers = len(await list_workers(connection, names))
    return text + (f"; {many(workers, 'worker')} still running" if workers else "")


async def _compare(
    name: str | None, queues: str | None, replicas: int | None, *, apply: bool = False, force: bool = False
) -> list[TopologyChange]:
    app = state.load_app(name, {"queues.replicas": replicas})
    extra = [check_token("queue", queue) for queue in (queues or "").split(",") if queue]
    wanted = sorted({*app.task_queues, *extra})
    async with app:
        return await (app.provision(wanted, force=force) if apply else app.plan(wanted))


def _show(changes: list[TopologyChange], *, applied: bool) -> None:
    out = state.out
    if out.as_json:
        out.json({"applied": applied, "items": [change.as_dict() for change in changes]})
        return
    for change in changes:
        if change.action == "create":
            out.data(out.paint(f"+ {change.wanted.label}", "32"), painted=True)
        elif change.action == "update":
            out.data(out.paint(f"~ {change.wanted.label}", "33"), painted=True)
            for key, (there, wanted) in sorted(change.diff.items()):
                out.data(f"    {key}: {_value(there)} -> {_value(wanted)}")
        else:
            out.data(f"= {change.wanted.label}")
    create = sum(c.action == "create" for c in changes)
    update = sum(c.action == "update" for c in changes)
    words = ("created", "updated") if applied else ("to create", "to update")
    if not applied and (lowered := lowered_leases(changes)):
        out.note(f"the lease of {', '.join(sorted(lowered))} is lowered: running workers must confirm that first")
    out.note(f"{create} {words[0]}, {update} {words[1]}, {len(changes) - create - update} unchanged")


def _value(value: Any) -> str:
    return "not set" if value is None else str(value)
