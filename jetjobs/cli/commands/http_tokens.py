"""`jetjobs http token`: create, list and revoke tokens of the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import queue_names
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.empty import next_step, or_empty
from jetjobs.cli.terminal.options import Reason, optional, read_duration
from jetjobs.cli.terminal.palette import late_style
from jetjobs.cli.terminal.table import Look
from jetjobs.model.views.token import TokenInfo

commands = typer.Typer()
token = typer.Typer(help="Create, list or revoke tokens of the HTTP API.", no_args_is_help=True)
commands.add_typer(token, name="token")

_NO_TOKENS = "no tokens; create one with `jetjobs http token new --name NAME --may read`"


@token.command("new")
async def new_token(
    name: Annotated[str, typer.Option(help="Name of the token: who gets it.", metavar="NAME")],
    may: Annotated[
        str,
        typer.Option(help="What it may do: enqueue:TASK, enqueue:*, read, operate, admin.", metavar="SCOPE,..."),
    ],
    queues: Annotated[
        str | None,
        typer.Option(
            help="Only in these queues: mail,reports. [default: all]",
            metavar="QUEUE,...",
            autocompletion=queue_names,
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Refuse it after this time: 90d. [default: never]", metavar="DURATION")
    ] = None,
    reason: Reason = "",
) -> None:
    """Create a token and print it. It is printed only now: its secret is not stored."""
    lasting, by = optional(read_duration, "--expires", expires), operator()
    async with state.reader() as app:
        text = await app.tokens.new(
            name, _listed(may), None if queues is None else _listed(queues), lasting, by=by, reason=reason
        )
        info = await app.tokens.get(name)
    if state.out.as_json:
        state.out.json({"token": text, **info.as_dict()})
        return
    state.out.data(text)
    where = f" in {', '.join(info.queues)}" if info.queues else ""
    until = f", until {_time(info)}" if info.expires_at else ""
    state.out.note(f"token {name} may {', '.join(info.scopes)}{where}{until}. Keep it: it is not shown again.")


@token.command("list")
async def list_tokens() -> None:
    """List tokens with what they may do. Their secrets are not stored."""
    async with state.reader() as app:
        found = await or_empty(app, app.tokens.list(), [])
        empty = "" if found else await next_step(app, _NO_TOKENS)
        now = await app.jetstream.server_clock.now() if found else None
    if state.out.as_json:
        state.out.json({"items": [info.as_dict() for info in found], "cursor": None})
        return
    rows = [
        [
            info.name,
            ",".join(info.scopes),
            "all" if info.queues is None else ",".join(info.queues),
            f"{info.created_at:%Y-%m-%d}",
            info.by or "-",
            "expired" if now and info.expires_at and info.expires_at <= now else _time(info),
        ]
        for info in found
    ]
    look = Look(styles={5: lambda text: late_style(text) if text == "expired" else ""})
    state.out.table(["NAME", "MAY", "QUEUES", "CREATED", "BY", "EXPIRES"], rows, shrink=(1, 2, 4), look=look)
    if empty:
        state.out.note(empty)


@token.command("revoke")
async def revoke_token(
    name: Annotated[str, typer.Argument(help="Name of the token.")], reason: Reason = ""
) -> None:
    """Revoke a token. It is refused within about two seconds."""
    async with state.reader() as app:
        await app.tokens.revoke(name, by=operator(), reason=reason)
    if state.out.as_json:
        state.out.json({"name": name, "revoked": True})
    else:
        state.out.data(name if state.out.quiet else f"{name}  revoked")


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _time(info: TokenInfo) -> str:
    return "never" if info.expires_at is None else f"{info.expires_at:%Y-%m-%d %H:%M:%SZ}"
