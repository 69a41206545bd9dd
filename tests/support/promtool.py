"""Check a page of metrics with `promtool check metrics`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def check_metrics(page: str) -> None:
    """AssertionError with the problems that promtool reports."""
    beside = Path(sys.prefix) / "tools" / "promtool"
    found = str(beside) if beside.exists() else shutil.which("promtool")
    assert found, "promtool is missing: `make test` fetches it on Debian; elsewhere install prometheus"
    checked = subprocess.run([found, "check", "metrics"], input=page, capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert not checked.stdout.strip(), checked.stdout
    assert not checked.stderr.strip(), checked.stderr
