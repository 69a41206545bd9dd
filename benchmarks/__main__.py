"""Run the benchmarks: `python -m benchmarks --help` lists the measurements and options."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import uvloop

from benchmarks import against
from benchmarks.backlog import backlog
from benchmarks.backoff import backoff
from benchmarks.bench import log_as_workers_do, prepared
from benchmarks.counting import metrics
from benchmarks.http import http
from benchmarks.measures import MEASURES
from benchmarks.operator import operator
from benchmarks.report import Row, Table, environment, header, write

_ROUNDS = 3
_MEASURE_S = 600.0
"""A measurement that takes longer is aborted."""
_NAMES = [*MEASURES, "backoff", "metrics", "http", "operator"]
_OUT = Path(__file__).parent / "results" / "latest.json"

T = TypeVar("T")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="compare jetjobs with plain nats-py")
    parser.add_argument("--quick", action="store_true", help="a tenth of the counts, one round")
    parser.add_argument("--only", nargs="+", choices=[*_NAMES, "backlog"], metavar="NAME", help=", ".join(_NAMES))
    parser.add_argument("--backlog", type=int, default=0, metavar="N", help="also measure with N jobs queued")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"measurements per side (default {_ROUNDS})")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help=f"compare with another checkout, {against.ROUNDS} rounds in turn",
    )
    parser.add_argument("--out", type=Path, default=_OUT, metavar="FILE", help="file for the JSON report")
    options = parser.parse_args()
    if options.only and "backlog" in options.only and not options.backlog:
        parser.error("backlog needs a length: --backlog 1000000")
    return options


class _Session:
    """One run of the suite: the selected measurements, and the failures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rounds, self.scale = (
            options.rounds or (1 if options.quick else _ROUNDS),
            0.1 if options.quick else 1.0,
        )
        self.names = [name for name in _NAMES if not options.only or name in options.only]
        self.backlog: int = options.backlog
        self.failures: dict[str, str] = {}

    async def attempt(self, name: str, measuring: Awaitable[T], limit_s: float) -> T | None:
        """The measured value, or None after recording a failure, so that the other measurements still run."""
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            async with asyncio.timeout(limit_s):
                return await measuring
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {error}"
            return None

    async def run(self) -> tuple[str, list[Table]]:
        """Run the measurements. Returns the server's version and the tables."""
        rows: list[Row] = []
        async with prepared(self.rounds, self.scale) as bench:
            server = bench.nc.connected_server_version
            for name in self.names:
                if name in MEASURES:
                    rows += await self.attempt(name, MEASURES[name](bench), _MEASURE_S) or []
            tables = [Table("beside plain nats-py", "jetjobs", "nats-py", rows)] if rows else []
            for name, measure in (("backoff", backoff), ("metrics", metrics), ("http", http)):
                table = await self.attempt(name, measure(bench), _MEASURE_S) if name in self.names else None
                tables += [table] if table else []
        if "operator" in self.names:
            tables += await self.attempt("operator", operator(self.rounds, self.scale), _MEASURE_S) or []
        if self.backlog:
            # Enqueueing a million jobs takes about a minute.
            limit_s = _MEASURE_S + self.backlog / 1_000
            table = await self.attempt("backlog", backlog(self.backlog, self.rounds), limit_s)
            tables += [table] if table else []
        return f"{server.major}.{server.minor}.{server.patch}", tables


async def _main(options: argparse.Namespace) -> int:
    # SIGTERM must run every `finally` too, or worker processes would outlive this one.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    log_as_workers_do()
    session = _Session(options)
    server, tables = await session.run()
    facts = environment(server, session.rounds, session.scale)
    print(header(facts))
    for table in tables:
        print(f"\n{table.text()}")
    for name, failure in session.failures.items():
        print(f"\nfailed: {name}: {failure}")
    write(options.out, facts, tables, session.failures)
    print(f"\nwritten to {options.out}", file=sys.stderr)
    return 1 if session.failures else 0


def _against(options: argparse.Namespace) -> int:
    names = options.only or list(against.NAMES)
    print(against.against(options.against.resolve(), options.rounds or against.ROUNDS, names).text())
    return 0


if __name__ == "__main__":
    arguments = _arguments()
    sys.exit(_against(arguments) if arguments.against else uvloop.run(_main(arguments)))
