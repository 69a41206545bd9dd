"""The worker processes: start them, measure them, and restart them when they die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from jetjobs.dev_server import die_with_parent
from tests.chaos import clock, journal
from tests.chaos.history import History, Life
from tests.chaos.plan import LEASE_S
from tests.support.processes import clean_environment

ROOT = Path(__file__).parent.parent.parent
_AGAIN_S = 0.3
_LOOK_S = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Fleet:
    """Runs one worker per URL: each reaches the server over its own link."""

    def __init__(self, urls: list[str], folder: Path, history: History, replicas: int) -> None:
        self._urls = urls
        self._replicas = replicas
        self._folder = folder
        self._history = history
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lives: dict[int, Life] = {}
        self._start_at: dict[int, float] = dict.fromkeys(range(len(urls)), 0.0)
        self._frozen: set[int] = set()
        self._restart = True

    @property
    def logs(self) -> list[Path]:
        return sorted(self._folder.glob("worker-*.log"))

    async def watch(self) -> None:
        """Restart workers that die, as a supervisor would, until cancelled."""
        measured_at = 0.0
        while True:
            now = clock.now()
            for worker in range(len(self._urls)):
                process = self._processes.get(worker)
                if process is None:
                    if self._restart and now >= self._start_at[worker]:
                        self._start(worker)
                elif process.poll() is not None:
                    self._record_death(worker, process.returncode)
            if now - measured_at > 1.0:
                measured_at = now
                self._measure()
            await asyncio.sleep(_LOOK_S)

    async def ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every worker has logged that it is ready."""
        async with asyncio.timeout(timeout_s):
            while True:
                texts = [self._log_of(worker) for worker in range(len(self._urls))]
                if all(path.is_file() and "worker.ready" in path.read_text() for path in texts):
                    return
                await asyncio.sleep(0.1)

    def _log_of(self, worker: int) -> Path:
        life = self._lives.get(worker)
        return self._folder / f"worker-{worker}-{life.pid if life else 0}.log"

    def _start(self, worker: int) -> None:
        environment = clean_environment(
            NATS_URL=self._urls[worker],
            JETJOBS_QUEUES__LEASE=f"{LEASE_S}s",
            JETJOBS_QUEUES__REPLICAS=str(self._replicas),
            JETJOBS_QUEUES__UNKNOWN_TASK_GRACE="3s",
            JETJOBS_OBSERVE__LOG_LEVEL="info",
            PYTHONPATH=os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
            **{journal.VARIABLE: str(self._folder / "journal")},
            **clock.environment(),
        )
        command = [sys.executable, "-m", "jetjobs", "worker", "tests.chaos.tasks:app", "--log-format", "json"]
        command += ["--name", f"chaos-{worker}", "--stop-timeout", "500ms"]
        fresh = self._folder / f"worker-{worker}-new.log"
        with fresh.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._processes[worker] = process
        self._lives[worker] = Life(worker, process.pid, clock.now())
        self._history.lives.append(self._lives[worker])
        fresh.rename(self._log_of(worker))

    def _record_death(self, worker: int, code: int) -> None:
        life = self._lives[worker]
        life.died, life.code = clock.now(), code
        del self._processes[worker]
        self._frozen.discard(worker)
        self._start_at[worker] = life.died + _AGAIN_S

    def _measure(self) -> None:
        for worker, process in self._processes.items():
            life = self._lives[worker]
            with contextlib.suppress(OSError, ValueError, IndexError):
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                life.peak_rss = max(life.peak_rss, pages * _PAGE)
                life.peak_fds = max(life.peak_fds, len(os.listdir(f"/proc/{process.pid}/fd")))

    # Faults

    def send(self, worker: int, number: signal.Signals, wanted: str = "") -> bool:
        """Send a signal. False when the worker is not running."""
        process = self._processes.get(worker)
        if process is None or process.poll() is not None:
            return False
        if wanted:
            self._lives[worker].wanted = wanted
        process.send_signal(number)
        if number == signal.SIGSTOP:
            self._frozen.add(worker)
        elif number == signal.SIGCONT:
            self._frozen.discard(worker)
        return True

    def pid(self, worker: int) -> int:
        """The process id of a worker that runs and is not frozen, otherwise 0."""
        process = self._processes.get(worker)
        running = process is not None and process.poll() is None and worker not in self._frozen
        return process.pid if process is not None and running else 0

    def thaw(self) -> None:
        for worker in list(self._frozen):
            self.send(worker, signal.SIGCONT)

    # Stopping

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Stop all workers by SIGTERM, then SIGKILL, without a restart. `watch` must still be running."""
        self._restart = False
        self.thaw()
        for worker in list(self._processes):
            if self._lives[worker].wanted != "term":  # a second signal would cancel its jobs
                self.send(worker, signal.SIGTERM, "stop")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._processes:  # noqa: ASYNC110 - `watch` changes it
                    await asyncio.sleep(_LOOK_S)
        if self._processes:
            self._history.note(f"workers {sorted(self._processes)} did not stop within {timeout_s:.0f} s")
        self.kill()

    def kill(self) -> None:
        self._restart = False
        for process in self._processes.values():
            process.kill()
            process.wait()
