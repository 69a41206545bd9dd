"""`make screenshots`: run commands on pseudo-terminals of 80 and of 140 columns and draw what they print as SVG.

Jobs, ids and names are the same on every run; times and rates are what they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from jetjobs.cli.live.frame import frame
from jetjobs.cli.live.snapshot import Content
from jetjobs.cli.live.view_state import Page, View
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.job import JobState
from jetjobs.model.settings import build_settings
from jetjobs.model.views.job_query import JobQuery
from tests.screenshots import shop
from tests.support import live_sample
from tests.support.processes import Process, run
from tests.support.terminal import Terminal

WIDTHS = (80, 140)
IMAGES = Path("docs/images")
COLOURS = {"NO_COLOR": "", "COLORTERM": "", "TERM": "xterm-256color", "JETJOBS_QUEUES__NAMESPACE": "shop"}
# Without the font of another host: a page must not load anything from elsewhere.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
# Some viewers drop spaces at the beginning of a text otherwise.
FORMAT = FORMAT.replace("<svg ", '<svg xml:space="preserve" ', 1)
THEME = TerminalTheme(
    (24, 26, 32),
    (214, 217, 224),
    [
        (60, 64, 74), (237, 106, 103), (126, 201, 127), (231, 196, 98),
        (110, 164, 240), (197, 140, 226), (94, 196, 201), (214, 217, 224),
    ],
)  # fmt: skip
_random = random.Random(17)


class Stage(NamedTuple):
    """Where commands run: a folder with the app, and a server with jobs."""

    folder: Path
    env: dict[str, str]
    ids: dict[str, str]

    def terminal(self, arguments: list[str], columns: int) -> Terminal:
        return Terminal(arguments, self.folder, {**self.env, **COLOURS}, columns)


Screen = Callable[[Stage, int], tuple[str, str]]
"""Returns the command line and what the terminal shows."""


def command(line: str) -> Screen:
    """A command that runs to its end. `{NAME}` is the short id of that job."""

    def screen(stage: Stage, columns: int) -> tuple[str, str]:
        short = {name: job_id[-10:] for name, job_id in stage.ids.items()}
        typed = line.format(**short)
        with stage.terminal([*typed.split(), "--namespace", "shop"], columns) as terminal:
            terminal.end(60)
        return f"jetjobs {typed}", terminal.text

    return screen


def top(page: Page = live_sample.MAIL, content: Content | None = None) -> Screen:
    """A frame of `top` with made-up data: rates of a minute would take a minute."""

    def screen(stage: Stage, columns: int) -> tuple[str, str]:
        os.environ["TZ"] = "UTC"  # the clock in the title
        time.tzset()
        pages = (Page("queues"), page) if page.kind != "queues" else (page,)
        drawn = frame(View(pages), live_sample.data(content), columns, 24)
        return "jetjobs top", "\n".join(drawn.painted(colour=True))

    return screen


def dev(*jobs: str, until: str) -> Screen:
    """`jetjobs dev` while these jobs are enqueued beside it."""

    def screen(stage: Stage, columns: int) -> tuple[str, str]:
        env = {name: value for name, value in stage.env.items() if name != "NATS_URL"}
        with Terminal(["dev", "--store", "memory"], stage.folder, {**env, **COLOURS}, columns) as terminal:
            terminal.wait_for("worker ready", 60)
            for job in jobs:
                done = run(["enqueue", *job.split(), "--id", new_id()], stage.folder, 60, {**env, **COLOURS})
                assert done.returncode == 0, done.stderr
            terminal.wait_for(until, 60)
            terminal.read(0.5)  # the rest of that line
            shown = terminal.text
            terminal.press("\x03")
            terminal.end()
        return "jetjobs dev", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:4222", shown)

    return screen


SCREENS: dict[str, Screen] = {
    "top": top(),
    "top-job": top(Page("job", ("mail", "send", live_sample.LOST)), live_sample.job_content()),
    "top-workers": top(Page("workers")),
    "queues-list": command("queues list"),
    "jobs-list": command("jobs list"),
    "jobs-show": command("jobs show {failing}"),
    "jobs-show-dead": command("jobs show {declined}"),
    "dead-group": command("dead list --group"),
    "doctor": command("doctor"),
    "dev": dev(
        "greet name=Ada",
        "greet name=Grace",
        "charge order:=17 amount:=49.9 card=4111",
        until="m  tasks.CardDeclined",
    ),
    "failing-task": dev("send_email to=ada@example.net subject=Hello", until="m  tasks.MailServerBusy"),
}
"""Every image: its name, and what makes it."""


def new_id() -> str:
    """An id in the form of those that jetjobs generates, the same in every run."""
    return f"01a1e2531c847{_random.getrandbits(76):019x}"


async def fill(url: str, ids: dict[str, str]) -> None:
    """Jobs in every state."""
    shop.app.configure(build_settings({"nats": {"url": url}}))
    async with shop.app:
        await shop.app.provision()
        await shop.app.queues.pause("images", reason="new image library", by="grace@ops")
        for number in range(9):
            await shop.make_thumbnail.options(job_id=new_id()).enqueue(file=f"photo-{number}.png")
        for number in range(12):
            await shop.greet.options(job_id=new_id()).enqueue(name=f"customer {number}")
        for number in range(4):
            done = await shop.charge.options(job_id=new_id()).enqueue(
                order=1700 + number, amount=49.9, card="4111"
            )
            ids["declined"] = done.id
        for number in range(2):
            await shop.import_feed.options(job_id=new_id()).enqueue(url=f"https://feed-{number}.example.org")
        busy = shop.send_email.options(job_id=new_id(), headers={"Trace-Id": "b7ad6b7169203331"})
        ids["failing"] = (await busy.enqueue(to="ada@example.net", subject="Your order has been sent")).id
        later = shop.send_email.options(job_id=new_id(), delay="2h", key="reminder-ada")
        await later.enqueue(to="ada@example.org", subject="Your basket is waiting")
        for month in range(7):
            one = shop.build_report.options(job_id=new_id())
            ids["report"] = (await one.enqueue(month=f"2026-{month + 4:02}", pages=500)).id
        await settled(ids)


async def settled(ids: dict[str, str]) -> None:
    """Wait until every job has the state that the images show."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        dead = [one async for one in shop.app.dead.list()]
        retrying = [one async for one in shop.app.jobs.list(JobQuery(state=JobState.RETRYING))]
        if len(dead) == 6 and retrying and len(await shop.app.jobs.running()) == 4:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the jobs did not get into their states")


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """A server, two workers, and jobs."""
    with tempfile.TemporaryDirectory() as name, EmbeddedServer() as server:
        folder = Path(name) / "shop"
        folder.mkdir()
        shutil.copy(shop.__file__, folder / "tasks.py")
        env = {"NATS_URL": server.url}
        arguments = ["worker", "--namespace", "shop", "-q", "default,mail,images,reports:2"]
        shown = Stage(folder, env, {})
        with (
            Process([*arguments, "--slots", "4", "--name", "web-1"], folder, {**env, **COLOURS}) as first,
            Process([*arguments, "--slots", "4", "--name", "web-2"], folder, {**env, **COLOURS}) as second,
        ):
            for worker in (first, second):
                worker.wait_for("worker.ready", timeout=60)
            asyncio.run(fill(server.url, shown.ids))
            yield shown


def draw(name: str, columns: int, typed: str, shown: str) -> None:
    """Write what a terminal shows as an image."""
    text = re.sub(r"\r+\n", "\n", shown).rstrip()
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "green"), (typed, "bold")))
    for line in text.split("\n"):
        console.print(Text.from_ansi(line.rpartition("\r")[2]), soft_wrap=False)
    image = console.export_svg(title="", theme=THEME, code_format=FORMAT, unique_id=f"{name}-{columns}")
    image = "\n".join(line.rstrip() for line in image.split("\n"))
    (IMAGES / f"{name}-{columns}.svg").write_text(image)


def main() -> None:
    """Draw all images, or those named on the command line."""
    wanted = sys.argv[1:] or list(SCREENS)
    IMAGES.mkdir(exist_ok=True)
    os.environ.pop("JETJOBS_NATS__URL", None)
    with stage() as shown:
        for name in wanted:
            for columns in WIDTHS:
                draw(name, columns, *SCREENS[name](shown, columns))
                print(IMAGES / f"{name}-{columns}.svg")


if __name__ == "__main__":
    main()
