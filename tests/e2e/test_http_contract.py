"""The HTTP API does what its OpenAPI document says: requests made from the document by schemathesis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_http_load import address_of
from tests.support.shell import Shell

TASKS = """
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def greet(name: str, times: int = 1) -> str:
    return f"Hello, {name}!" * min(times, 3)

@app.task(queue="mail")
async def fail(address: str) -> None:
    raise ValueError("broken")
"""
CONFIG = Path(__file__).parent.parent / "support" / "schemathesis.toml"
SEED = os.environ.get("JETJOBS_CONTRACT_SEED", "17")
PHASES = os.environ.get("JETJOBS_CONTRACT_PHASES", "examples,fuzzing")
"""With `examples,coverage,fuzzing,stateful` about 2,000 requests in three minutes."""
pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]


def test_requests_made_from_the_document_find_no_difference(shell: Shell, folder: Path) -> None:
    (folder / "tasks.py").write_text(TASKS)
    shell.env["JETJOBS_HTTP__RATE"] = "0"
    shell("setup", "apply")
    token = shell("http", "token", "new", "--name", "contract", "--may", "admin").stdout.strip()
    with shell.process("worker", "--log-level", "error"):
        shell.until("workers", "list", where=lambda found: found["items"])
        with shell.process("http", "--port", "0", "--require-token") as api:
            done = subprocess.run(
                [
                    Path(sys.executable).parent / "schemathesis",
                    *("--config-file", CONFIG, "run", f"{address_of(api)}/openapi.json"),
                    *("--checks", "all", "--no-color", "--max-examples", "3", "--phases", PHASES, "--seed", SEED),
                    *("--header", f"Authorization: Bearer {token}"),
                ],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=850,
            )
    assert done.returncode == 0, done.stdout[-20_000:]
    cases = re.search(r"([\d,]+) generated", done.stdout)
    assert cases is not None
    assert int(cases[1].replace(",", "")) > 60, done.stdout
    print(done.stdout[-400:])
