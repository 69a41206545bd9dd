"""Data for frames of `jetjobs top`: the same in every run, for tests and for images."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.cli.live.rate_history import RateHistory
from jetjobs.cli.live.snapshot import Content, Data, Snapshot
from jetjobs.cli.live.view_state import Page
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.schedule.schedule import make_schedule
from jetjobs.model.views.dead_letter import DeadLetter
from jetjobs.model.views.queue_info import LaneState, Pause, QueueState
from jetjobs.model.views.worker_info import QueueSlots, RunningJob, WorkerRecord

NOW = datetime(2027, 1, 4, 14, 2, 7, tzinfo=UTC)
MAIL = Page("queues", selected="q mail")
LOST = "01a1e2531c847834a12f8c60fdba4d6e"
TRACEBACK = (
    "Traceback (most recent call last):\n"
    "  shop/tasks.py:41 in send\n"
    "    await smtp.send(message)\n"
    "  shop/smtp.py:88 in send\n"
    "    raise SMTPServerBusy(reply)\n"
    "shop.smtp.SMTPServerBusy: 421 try again later\n"
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def queue(
    name: str,
    *,
    queued: int = 0,
    running: int = 0,
    dead: int = 0,
    later: int = 0,
    rate: float = 0.0,
    oldest: float | None = None,
    paused: str | None = None,
    workers: int = 2,
) -> QueueState:
    lanes = (LaneState("normal", NOW, queued, running, 0, 0, 0, None),)
    pause = None if paused is None else Pause(None, paused, "ada@web-1", ago(600))
    waits = None if oldest is None else timedelta(seconds=oldest)
    counted = 0 if paused is not None else rate
    return QueueState(
        name, NOW, pause, lanes, later, 0, dead, waits, 1, workers, running, 10, rate * 1.05, counted
    )  # fmt: skip


def worker(
    name: str, busy: int, total: int, queues: dict[str, tuple[int, int]], phase: str = "ready"
) -> WorkerRecord:
    slots = {queue: QueueSlots(*counts) for queue, counts in queues.items()}
    jobs = tuple(
        RunningJob(f"01a1e2531c847834a12f8c60fdba4f{i:02}", "send", "mail", ago(i * 3)) for i in range(busy)
    )
    return WorkerRecord(
        f"{name}-4f2a1c", name, name.rpartition("-")[0], 7143, "0.9.0", "3.12.1", phase, slots, {"send": ""}, busy,
        total, jobs, timedelta(seconds=0.004), 84_000_000, ago(7200), NOW, timedelta(seconds=30),
    )  # fmt: skip


def job(
    name: str, task: str, seconds: float, progress: float | None = None, message: str = "", **more: object
) -> JobStatus:
    given: dict[str, object] = {"queue": "mail", "worker": "web-1", "attempt": 1, **more}
    return JobStatus(
        id=name, state=JobState.RUNNING, task=task, started_at=ago(seconds), enqueued_at=ago(seconds + 2),
        progress=progress, message=message or None, **given,  # type: ignore[arg-type]
    )  # fmt: skip


def history(rate: float, phase: float) -> RateHistory:
    found = RateHistory()
    for second in range(60, 0, -1):
        wave = 1 + 0.6 * math.sin(second / 7 + phase) + 0.3 * math.sin(second / 2.3)
        found.add(ago(second), ago(second - 1), rate * wave, rate * (1 + 0.4 * math.sin(second / 9 + phase)))
    return found


def snapshot() -> Snapshot:
    queues = [
        queue("billing", queued=12, running=4, rate=3.2, oldest=4),
        queue("default", rate=0.0),
        queue("imports", queued=1_204_330, running=10, rate=10_412, oldest=95, later=40),
        queue("mail", queued=38, running=7, dead=12, rate=118, oldest=0.4, later=1200),
        queue("reports", queued=410, dead=3, rate=2.0, oldest=610, paused="disk full on db-2"),
        queue("thumbnails", queued=96, rate=0.0, oldest=42, workers=0),
    ]
    running = [
        job(LOST, "send", 48, 0.35, "Ada", worker="web-3"),
        job("01a1e2531c847834a12f8c60fdba4d6f", "reindex", 93, 0.62, "shard 5 of 8", queue="imports"),
        job("01a1e2531c847834a12f8c60fdba4d70", "invoice", 7.2, None, queue="billing", worker="web-2"),
    ]
    workers = [
        worker("web-1", 14, 20, {"mail": (5, 10), "imports": (9, 10)}),
        worker("web-2", 7, 20, {"mail": (1, 10), "imports": (1, 10), "billing": (4, 10), "default": (0, 10)}),
        worker("web-4", 0, 8, {"reports": (0, 8)}, "quiet"),
    ]
    rates = {q.queue: history(q.in_per_s or 0.0, len(q.queue)) for q in queues}
    return Snapshot(NOW.timestamp(), queues, running, workers, rates, {LOST: 21.0})


def job_content(state: JobState = JobState.RETRYING) -> Content:
    status = JobStatus(
        LOST, state, "mail", "send", 3, due_at=ago(-12), enqueued_at=ago(75), lane="retry", priority="normal",
        history=(
            {"attempt": 1, "type": "SMTPServerBusy", "text": "421 try again later"},
            {"attempt": 2, "type": "TimeoutError", "text": "no answer within 10 s"},
        ),
        traceback=TRACEBACK,
    )  # fmt: skip
    return Content(job=status, arguments='{"user_id": 4711, "template": "welcome", "token": "***"}')


def letter(number: int, task: str, error: str, text: str, seconds: float) -> DeadLetter:
    return DeadLetter(
        f"01a1e2531c847834a12f8c60fdba4e{number:02}", "mail", task, "normal", "exhausted", error, text, TRACEBACK,
        "web-1", ago(seconds), ago(seconds + 90), 5, b"", (), (), "r", number, "", {},
    )  # fmt: skip


def letters_content() -> Content:
    return Content(
        letters=[
            letter(3, "send", "shop.smtp.SMTPServerBusy", "421 try again later", 12),
            letter(2, "send", "TimeoutError", "no answer within 10 s", 340),
            letter(1, "welcome", "KeyError", "'template'", 5000),
        ]
    )


def schedules_content() -> Content:
    nightly = make_schedule({"name": "nightly-report", "task": "report", "cron": "0 3 * * *", "queue": "reports"})
    poll = make_schedule({"name": "poll-inbox", "task": "poll", "every": timedelta(minutes=5)})
    return Content(
        schedules=[
            ScheduleInfo(nightly, 1, ago(39_000), ago(-46_673)),
            ScheduleInfo(poll, 3, ago(640), ago(40), timedelta(seconds=40), 2),
        ]
    )


def data(content: Content | None = None, **more: object) -> Data:
    return Data(snapshot(), content, "shop", **more)  # type: ignore[arg-type]
