"""`python -m tests.chaos --seed N --seconds N`: run, report, and exit with 1 if an invariant is broken."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos import report
from tests.chaos.plan import NODES
from tests.chaos.run import plan_for, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Fault injection for jetjobs.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--cluster", type=int, choices=(0, NODES), default=0, help="3 for a cluster of three servers"
    )
    parser.add_argument("--only", default="", help="restrict the faults to these kinds, separated by commas")
    parser.add_argument("--report", type=Path, help="also write the report to this file, as Markdown")
    parser.add_argument("--keep", type=Path, help="keep journal, logs and store in this folder")
    parser.add_argument("--odd", action="store_true", help="also print the trails of jobs that ended unusually")
    parser.add_argument("--plan", action="store_true", help="print the plan and exit")
    options = parser.parse_args()
    only = tuple(filter(None, options.only.split(",")))
    plan = plan_for(options.seed, options.seconds, options.cluster, only)
    if options.plan:
        print(plan)
        return 0
    folder = options.keep or Path(tempfile.mkdtemp(prefix="jetjobs-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "journal").exists():
        parser.error(f"{folder} has the journal of another run")
    done = asyncio.run(run(plan, folder, lambda text: print(text, file=sys.stderr)))
    text = report.markdown(done)
    print(text)
    print("\n".join(done.history.notes))
    if options.report:
        options.report.write_text(text)
    if options.odd:
        print(report.unusual_trails(done))
    if not done.ok:
        print(report.trails(done))
        print(f"journal and logs: {folder}", file=sys.stderr)
        return 1
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
