"""`jetjobs init`: write a small project that runs: tasks, a test, a container and the commands to start with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from jetjobs.cli.exit_codes import DONE, REFUSED
from jetjobs.cli.state import state
from jetjobs.model.errors import ConfigError, DefinitionError
from jetjobs.model.wire.namespaces import check_namespace
from jetjobs.model.wire.validation import suggest_token

commands = typer.Typer()

TASKS = '''"""The tasks of {app}. README.md has the commands to run them."""

from jetjobs import JetJobs

app = JetJobs("{app}")


@app.task
async def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello, {{name}}!"


@app.task(queue="reports", timeout="30s", max_attempts=3)
def count_words(text: str) -> int:
    """Count words. A plain function runs in a thread, so it may block."""
    return len(text.split())
'''

TESTS = '''"""Tests of the tasks. The fixture jetjobs_app starts a nats-server for each test that uses it."""

import asyncio

from jetjobs import JetJobs
from jetjobs.testing import assert_enqueued, drain, run_inline
from tasks import count_words, greet


def test_a_greeting() -> None:
    assert asyncio.run(run_inline(greet, "Ada")) == "Hello, Ada!"


def test_jobs_run(jetjobs_app: JetJobs) -> None:
    greeting = greet.enqueue_sync(name="Ada")
    words = count_words.enqueue_sync(text="to be or not to be")
    assert_enqueued(jetjobs_app, greet, name="Ada")
    asyncio.run(drain(jetjobs_app))
    assert greeting.result_sync(10) == "Hello, Ada!"
    assert words.result_sync(10) == 6
'''

README = """# {app}

Background jobs with jetjobs on NATS JetStream. The commands below need `pip install -r requirements-dev.txt`.

## Test

```sh
pytest
```

## Run

In one terminal, start a nats-server and a worker that restarts when a file changes:

```sh
jetjobs dev
```

In another one, in this folder, enqueue jobs and look at them:

```sh
jetjobs enqueue greet name=Ada --wait
jetjobs enqueue count_words text="to be or not to be" --delay 1h
jetjobs jobs list
jetjobs queues list
jetjobs tasks show greet
jetjobs doctor
```

`jetjobs top` shows everything live. Ctrl-C stops the worker, then the server; jobs that wait are
kept in `.jetjobs`.

## Run in containers

```sh
docker compose up --build --detach
docker compose exec worker jetjobs enqueue greet name=Ada --wait
docker compose down
```
"""

DOCKERFILE = """FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1

WORKDIR /app
COPY requirements.txt ./
RUN pip install -r requirements.txt
COPY *.py ./

RUN useradd --system --uid 10001 --no-create-home worker
USER 10001

# Without a shell, so that the worker receives SIGTERM and lets running jobs finish.
CMD ["jetjobs", "worker", "tasks:app", "--http", "0.0.0.0:9400"]
"""

COMPOSE = """services:
  nats:
    image: nats:2.15-alpine
    command: ["--jetstream", "--store_dir", "/data", "--http_port", "8222"]
    volumes:
      - nats-data:/data
    healthcheck:
      test: ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8222/healthz?js-enabled-only=true"]
      interval: 5s
      retries: 5
    restart: unless-stopped

  worker:
    build: .
    environment:
      JETJOBS_NATS__URL: nats://nats:4222
    depends_on:
      nats:
        condition: service_healthy
    # Longer than the stop timeout of the worker, 30 s, plus 5 s in which cancelled tasks can clean up.
    stop_grace_period: 45s
    restart: unless-stopped

volumes:
  nats-data:
"""

IGNORED = """.jetjobs/
.venv/
.env
__pycache__/
.pytest_cache/
"""

FILES = {
    "tasks.py": TASKS,
    "test_tasks.py": TESTS,
    "README.md": README,
    "Dockerfile": DOCKERFILE,
    "compose.yaml": COMPOSE,
    "requirements.txt": "jetjobs\n",
    "requirements-dev.txt": "jetjobs[dev]\npytest\n",
    ".gitignore": IGNORED,
}
_WITH_NAME = ("tasks.py", "README.md")


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; created if it does not exist.")] = Path(),
) -> int:
    """Write a small project that runs.

    It has tasks, a test, a Dockerfile, a compose file and a README with commands. Nothing is overwritten.
    """
    out, name = state.out, app_name(folder)
    if (there := _contents(folder)) is not None:
        overwritten = ", ".join(file for file in FILES if file in there)
        hint = (
            f"it would overwrite {overwritten}" if overwritten else f"it contains {', '.join(sorted(there)[:5])}"
        )
        what = f"folder {str(folder)!r} is not empty; nothing was written"
        out.error(what, f"{hint}; name a new folder: jetjobs init NAME", REFUSED)
        return REFUSED
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in FILES.items():
            with (folder / file).open("x") as opened:
                opened.write(text.format(app=name) if file in _WITH_NAME else text)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}") from None
    if out.as_json:
        out.json({"folder": str(folder), "app": name, "files": list(FILES)})
        return DONE
    for file in FILES:
        out.data(str(folder / file))
    if not out.quiet:
        change = f"cd {shlex.quote(str(folder))} && " if folder != Path() else ""
        out.note(f"created app {name}; next: {change}jetjobs dev")
    return DONE


def app_name(folder: Path) -> str:
    """The name of the folder as the name of an app.

    >>> app_name(Path("/srv/My Shop!")), app_name(Path("/srv/shop-work")), app_name(Path("/"))
    ('My-Shop', 'shop_work', 'app')
    """
    name = suggest_token(folder.resolve().name) or "app"
    try:
        return check_namespace(name)
    except DefinitionError:
        return name.replace("-", "_")


def _contents(folder: Path) -> set[str] | None:
    """What keeps the folder from being used; None if nothing does. Hidden files do not, unless it writes them."""
    try:
        there = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read folder {str(folder)!r}: {error.strerror}") from None
    return there if any(not name.startswith(".") or name in FILES for name in there) else None
