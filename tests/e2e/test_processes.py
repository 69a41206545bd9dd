"""Workers as processes: signals, crashes, supervision, and restarts under load."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, Task
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.e2e.journal import lines, until, until_journal, worker
from tests.support.pages import Port
from tests.support.processes import Process, run
from tests.support.server import Truth


async def test_sigterm_lets_the_running_job_finish_and_exits_0(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal) as process:
        await until(process, "worker.ready")
        await journal_tasks.wait.enqueue(1, 1.0)
        await until_journal(journal, "begin", 1)
        assert await asyncio.to_thread(process.end, signal.SIGTERM) == 0
    assert len(lines(journal, "end")) == 1
    await truth.until_empty()


async def test_after_the_stop_timeout_jobs_are_released_at_once_and_the_exit_code_is_1(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--stop-timeout", "300ms") as process:
        await until(process, "worker.ready")
        await journal_tasks.wait.enqueue(1, 30.0)
        await until_journal(journal, "begin", 1)
        assert await asyncio.to_thread(process.end, signal.SIGINT) == 1
    assert len(await truth.jobs(lane="returned")) == 1
    await truth.until_idle()
    assert lines(journal, "end") == []


async def test_a_second_signal_stops_at_once(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--stop-timeout", "60s") as process:
        await until(process, "worker.ready")
        await journal_tasks.wait.enqueue(1, 30.0)
        await until_journal(journal, "begin", 1)
        process.send(signal.SIGTERM)
        await until(process, "worker.quiet")
        assert await asyncio.to_thread(process.end, signal.SIGTERM, 10) == 1
    await truth.until_idle()


async def test_a_child_that_cannot_start_ends_the_supervisor_with_its_exit_code(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text("import nothing_of_that_name\n")
    with Process(["worker", "--processes", "2"], tmp_path, env={"NATS_URL": server.url}) as process:
        assert await asyncio.to_thread(process.popen.wait, 20) == 4


async def test_health_and_metrics_are_served_and_readiness_ends_with_the_server(
    server: EmbeddedServer, app: JetJobs, journal: Path, unused_tcp_port: int
) -> None:
    port = Port(unused_tcp_port)
    with worker(server, journal, "--http", port.address) as process:
        await until(process, "worker.ready")
        assert (await port.get("/livez"))[0] == 200
        assert await port.get("/readyz") == (200, "ready\n")
        await (await journal_tasks.effect.enqueue(1)).result(timedelta(seconds=10))
        labels = {"outcome": "succeeded", "queue": "default", "task": "effect"}
        await port.until_page("jetjobs_attempts_total", 1.0, **labels)
        server.stop()
        await until(process, "nats.lost")
        assert (await port.get("/readyz"))[0] == 503
        assert (await port.get("/livez"))[0] == 200
        server.start()
        await until(process, "nats.restored")
        assert await asyncio.to_thread(process.end) == 0


async def test_ten_thousand_jobs_due_in_the_same_second_all_run_once(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=5)
    call = journal_tasks.effect.options(run_at=due)
    report = await app.enqueue_many([call.bind(n) for n in range(10_000)])
    assert len(report.stored) == 10_000
    with worker(server, journal, "--slots", "100", "--log-level", "warning"):
        await until_journal(journal, "effect", 10_000, timeout=50)
        await truth.until_empty()
    assert Counter(int(line[1]) for line in lines(journal, "effect")) == Counter(range(10_000))


@pytest.mark.timeout(120)
async def test_no_job_is_lost_when_worker_and_server_are_killed_during_a_drain(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    total = 20_000
    with worker(server, journal, "--burst", lease="3s") as process:  # stores the lease in the lanes
        await asyncio.to_thread(process.popen.wait, 20)
    report = await app.enqueue_many([journal_tasks.effect.bind(n) for n in range(total)])
    assert len(report.stored) == total
    options = ("--slots", "50", "--log-level", "warning")
    with worker(server, journal, *options, lease="3s") as first:
        await until_journal(journal, "effect", 3_000)
        first.send(signal.SIGKILL)
    with worker(server, journal, *options, lease="3s"):
        await until_journal(journal, "effect", 8_000)
        server.kill()
        server.start()
        await until_journal(journal, "effect", 12_000)
        server.stop()
        server.start()
        await truth.until_empty(timeout=80)
    ran = Counter(int(line[1]) for line in lines(journal, "effect"))
    assert set(ran) == set(range(total))  # every job has run
    done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
    assert {subject.rsplit(".", 1)[1] for subject in done} == {handle.id for handle in report.stored}
    assert set(done.values()) == {1}  # each id has exactly one record
    assert await truth.subjects("jobs-dead") == {}
    # Only jobs that were running at one of the three kills may have run twice.
    assert sum(ran.values()) - total <= 3 * 50 + 50


async def test_log_lines_of_a_task_carry_the_job_in_json_logs(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import logging\nfrom jetjobs import JetJobs\napp = JetJobs('a')\n\n"
        "@app.task\nasync def talk(secret: str) -> None:\n    logging.getLogger('mine').warning('hello')\n"
    )
    env = {"NATS_URL": server.url}
    with Process(["worker"], tmp_path, env) as process:
        await until(process, "worker.ready")
        stored = await asyncio.to_thread(
            run, ["enqueue", "talk", "secret=hush", "--json", "--wait"], tmp_path, env=env
        )
        job_id = json.loads(stored.stdout)["id"]
        line = json.loads(await until(process, '"hello"'))
        assert (line["logger"], line["job_id"], line["task"], line["attempt"]) == ("mine", job_id, "talk", 1)
        finished = json.loads(await until(process, "job.succeeded"))
        assert finished["job_id"] == job_id
        assert await asyncio.to_thread(process.end) == 0
    assert not any("hush" in line for line in process.lines)


@pytest.mark.parametrize("task", [journal_tasks.stubborn, journal_tasks.hang])
async def test_a_task_that_does_not_end_does_not_keep_the_process_alive(
    server: EmbeddedServer, app: JetJobs, journal: Path, task: Task[[int], None]
) -> None:
    with worker(server, journal, "--stop-timeout", "200ms") as process:
        await until(process, "worker.ready")
        await task.enqueue(1)
        await until_journal(journal, "begin", 1)
        assert await asyncio.to_thread(process.end, signal.SIGTERM, 15) == 1  # the task would run for a minute
        assert any("worker.left_behind" in line for line in process.lines)
