"""The command line and worker processes on a server that requires client certificates and credentials files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Process, run
from tests.support.tls import Authority, ConfiguredServer, Operator

TASKS = """
import os
from jetjobs import JetJobs

app = JetJobs("shop")

@app.task(isolation="process")
def child_of() -> int:
    return os.getppid()
"""


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[ConfiguredServer]:
    """A server, and the context `prod` of the nats command line for it."""
    authority, operator = Authority(tmp_path), Operator()
    pair = authority.issue("worker@example.com", file="client")
    with ConfiguredServer(tmp_path, operator.config + authority.block(verify=True)) as server:
        context = tmp_path / "config" / "nats" / "context" / "prod.json"
        context.parent.mkdir(parents=True)
        fields = {
            "ca": authority.ca,
            "cert": pair.cert,
            "key": pair.key,
            "creds": operator.creds(tmp_path / "w.creds"),
        }
        context.write_text(json.dumps({"url": server.tls_url, **fields}))
        yield server


def test_workers_and_commands_use_the_keys_of_a_nats_context(secure: ConfiguredServer, folder: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(folder / "config"), "NATS_CONTEXT": "prod"}
    with Process(["worker", "tasks:app", "--processes", "2", "--log-format", "json"], folder, env) as worker:
        worker.wait_for("worker.ready", 2)
        found = run(["enqueue", "child_of", "--wait", "--json", "--app", "tasks:app"], folder, env=env)
        assert found.returncode == 0, found.stderr
        give_up = time.monotonic() + 10
        while sum(client["name"].endswith("heartbeats") for client in secure.clients()) < 2:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        assert {client.get("tls_version") for client in secure.clients()} == {"1.3"}
        assert worker.end() == 0
        assert "eof_received" not in "\n".join(worker.lines)


def test_a_failure_is_one_line_with_a_hint(secure: ConfiguredServer, folder: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(folder / "config")}
    other = Authority(folder, "other").ca
    context = ["--context", "prod"]
    wrong = run(["queues", "list", *context], folder, env={**env, "JETJOBS_NATS__TLS_CA": other})
    assert wrong.returncode == 3
    assert f"the certificate of {secure.tls_url} is not signed by a CA in {other}" in wrong.stderr
    missing = run(["queues", "list", *context, "--creds", "none.creds"], folder, env=env)
    assert missing.returncode == 2
    assert "nats.creds: none.creds cannot be read: No such file or directory" in missing.stderr
    (folder / "nkeys.py").write_text("raise ImportError")  # stands for a package that is not installed
    bare = run(["queues", "list", *context], folder, env=env, fresh=True)
    assert bare.returncode == 2
    assert "nats.creds needs the package nkeys" in bare.stderr
    assert 'pip install "jetjobs[nkeys]"' in bare.stderr
    for answer in (wrong, missing, bare):
        assert "Traceback" not in answer.stderr
        assert len(answer.stderr.strip().splitlines()) <= 2, answer.stderr
