"""The tables of the live view: which columns they have and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from jetjobs.cli.live.columns import (
    BAR,
    CAME,
    DEAD,
    DIM,
    GOOD,
    LATE,
    PAUSED,
    PLAIN,
    WENT,
    Column,
    Line,
    bar,
    clean,
)
from jetjobs.cli.live.rate_history import spark
from jetjobs.cli.live.snapshot import Snapshot
from jetjobs.cli.live.view_state import Item
from jetjobs.model.durations import show_duration
from jetjobs.model.job import JobState, JobStatus

if TYPE_CHECKING:
    from jetjobs.admin.schedules import ScheduleInfo
    from jetjobs.model.views.dead_letter import DeadLetter
    from jetjobs.model.views.queue_info import Activity, QueueState
    from jetjobs.model.views.worker_info import RunningJob, WorkerRecord

LATE_AFTER = timedelta(minutes=1)
"""A job that has been due for this long is late."""
STATES = {
    JobState.RUNNING: GOOD,
    JobState.SUCCEEDED: GOOD,
    JobState.RETRYING: LATE,
    JobState.DEAD: DEAD,
    JobState.CANCELLED: PAUSED,
}
_ACTIVITIES: dict[Activity, str] = {"paused": PAUSED, "no worker": LATE, "running": GOOD, "idle": DIM}
_SHORT_ID = 10


def queue_table(snapshot: Snapshot) -> list[Column]:
    """Columns for queue states."""

    def running(item: Item, width: int) -> Line:
        counts = snapshot.counts(item.value)
        text = f"{counts.running:,}/{counts.slots:,}"
        share = counts.running / counts.slots if counts.slots else 0.0
        size = snapshot.slots_width
        return [*bar(share, max(3, width - size - 1)), (f" {text:>{size}}", PLAIN if counts.slots else DIM)]

    def queued(item: Item, _: int) -> Line:
        count = snapshot.counts(item.value).queued
        return number(count)

    def rate(which: int, style: str) -> object:
        def cell(item: Item, width: int) -> Line:
            queue: QueueState = item.value
            value = (queue.in_per_s, queue.out_per_s)[which]
            history = snapshot.history.get(queue.queue)
            line = ""
            if history is not None and width > 6:
                both = history.series(queue.at)
                top = max((value for one in both for value in one if value is not None), default=0.0)
                line = spark(both[which], width - 6, top)
            return [(line, style), (f" {short_rate(value):>5}", PLAIN if value else DIM)]

        return cell

    return [
        Column("QUEUE", 10, lambda item, _: [(clean(item.queue), PLAIN)], most=40),
        Column("STATE", 9, lambda item, _: [(item.value.activity, _ACTIVITIES[item.value.activity])]),
        Column("QUEUED", 7, queued, right=True),
        Column("RUNNING", 12, running, most=26, right=True),
        Column("DEAD", 5, lambda item, _: number(item.value.dead, DEAD), right=True),
        Column("OUT/s", 11, rate(1, WENT), most=38, right=True),  # type: ignore[arg-type]
        Column("IN/s", 11, rate(0, CAME), most=38, right=True),  # type: ignore[arg-type]
        Column("OLDEST", 7, lambda item, _: _oldest(item.value), right=True),
        Column("LATER", 7, lambda item, _: number(item.value.scheduled + item.value.retrying), right=True),
        Column("WORKERS", 7, lambda item, _: number(item.value.workers), right=True),
    ]


def job_table(snapshot: Snapshot, *, queue: bool = True, state: bool = False) -> list[Column]:
    """Columns for jobs; with `state`, also for those that do not run."""
    columns = [
        Column("TASK", 10, lambda item, _: [(clean(item.value.task), PLAIN)], most=40),
        Column("JOB", _SHORT_ID, lambda item, _: [(clean(item.value.id)[-_SHORT_ID:], DIM)]),
        Column("FOR", 7, lambda item, _: [(_age(item.value, snapshot.at), PLAIN)], right=True),
        Column("PROGRESS", 28, lambda item, width: progress(item.value, snapshot, width), most=70),
        Column("QUEUE", 10, lambda item, _: [(clean(item.value.queue), PLAIN)], most=18),
        Column("WORKER", 10, lambda item, _: [(clean(item.value.worker or "-"), PLAIN)], most=22),
        Column("ATTEMPT", 7, lambda item, _: [(str(item.value.attempt), PLAIN)], right=True),
    ]
    if state:
        shown = Column("STATE", 9, lambda item, _: [(str(item.value.state), STATES.get(item.value.state, PLAIN))])
        columns.insert(1, shown)
    return [column for column in columns if queue or column.head != "QUEUE"]


def held_table(snapshot: Snapshot) -> list[Column]:
    """Columns for the jobs in the record of a worker."""

    def lasting(item: Item, _: int) -> Line:
        job: RunningJob = item.value
        return [(_since(job.since, snapshot.at), PLAIN)]

    return [
        Column("TASK", 10, lambda item, _: [(clean(item.value.task), PLAIN)], most=40),
        Column("JOB", _SHORT_ID, lambda item, _: [(clean(item.value.id)[-_SHORT_ID:], DIM)]),
        Column("FOR", 7, lasting, right=True),
        Column("QUEUE", 10, lambda item, _: [(clean(item.value.queue), PLAIN)], most=40),
    ]


def worker_table(snapshot: Snapshot) -> list[Column]:
    """Columns for workers."""

    def slots(item: Item, width: int) -> Line:
        worker: WorkerRecord = item.value
        share = worker.busy / worker.total if worker.total else 0.0
        return [*bar(min(1.0, share), max(3, width - 9)), (f" {f'{worker.busy:,}/{worker.total:,}':>8}", PLAIN)]

    return [
        Column("WORKER", 12, lambda item, _: [(clean(item.value.key), PLAIN)], most=44),
        Column("PHASE", 8, lambda item, _: [(clean(item.value.phase), phase_style(item.value))]),
        Column("SLOTS", 13, slots, most=40, right=True),
        Column("LAG", 7, lambda item, _: _lag(item.value), right=True),
        Column("MEMORY", 8, lambda item, _: [(f"{item.value.memory_bytes / 1e6:,.0f} MB", PLAIN)], right=True),
        Column("UP", 7, lambda item, _: [(_since(item.value.started_at, snapshot.at), PLAIN)], right=True),
        Column("QUEUES", 10, lambda item, _: [(clean(", ".join(sorted(item.value.queues))), DIM)], most=60),
        Column("HOST", 10, lambda item, _: [(clean(f"{item.value.host}:{item.value.pid}"), DIM)], most=24),
    ]


def letter_table(snapshot: Snapshot, *, queue: bool = True) -> list[Column]:
    """Columns for dead letters."""

    def died(item: Item, _: int) -> Line:
        return [(_since(item.value.died_at, snapshot.at), PLAIN)]

    def error(item: Item, _: int) -> Line:
        letter: DeadLetter = item.value
        kind = letter.error_type.rpartition(".")[2]
        return [(clean(f"{kind}: {letter.text[:1000]}" if kind else letter.text), PLAIN)]

    columns = [
        Column("TASK", 10, lambda item, _: [(clean(item.value.task), PLAIN)], most=30),
        Column("JOB", _SHORT_ID, lambda item, _: [(clean(item.value.id)[-_SHORT_ID:], DIM)]),
        Column("AGO", 7, died, right=True),
        Column("REASON", 10, lambda item, _: [(clean(item.value.reason), DEAD)], most=14),
        Column("ERROR", 20, error, most=120),
        Column("QUEUE", 10, lambda item, _: [(clean(item.value.queue), PLAIN)], most=20),
        Column("ATTEMPTS", 8, lambda item, _: number(item.value.attempts), right=True),
    ]
    return [column for column in columns if queue or column.head != "QUEUE"]


def schedule_table(snapshot: Snapshot) -> list[Column]:
    """Columns for schedules."""
    styles = {"on": GOOD, "paused": PAUSED, "late": LATE, "ended": DIM}

    def due(item: Item, _: int) -> Line:
        info: ScheduleInfo = item.value
        if info.next is None:
            return [("-", DIM)]
        left = info.next.timestamp() - snapshot.at
        return [(show_duration(left) if left > 0 else "now", PLAIN)]

    return [
        Column("SCHEDULE", 12, lambda item, _: [(clean(item.value.schedule.name), PLAIN)], most=40),
        Column("STATE", 6, lambda item, _: [(item.value.state, styles[item.value.state])]),
        Column("NEXT IN", 8, due, right=True),
        Column("LAST AGO", 8, lambda item, _: [(_since(item.value.last, snapshot.at), PLAIN)], right=True),
        Column("RULE", 12, lambda item, _: [(clean(item.value.schedule.rule_text), PLAIN)], most=40),
        Column("MISSED", 6, lambda item, _: number(item.value.missed, LATE), right=True),
        Column("TASK", 10, lambda item, _: [(clean(item.value.schedule.task), PLAIN)], most=30),
        Column("QUEUE", 10, lambda item, _: [(clean(item.value.schedule.queue), PLAIN)], most=30),
    ]


# Cells


def number(value: int, style: str = PLAIN) -> Line:
    """A count; zero is dim."""
    return [(short(value), style if value else DIM)]


def short(value: int) -> str:
    """A count in at most seven characters.

    >>> [short(v) for v in (0, 999_999, 1_234_567, 123_456_789, 12_345_678_901)]
    ['0', '999,999', '1.23M', '123.46M', '12.3G']
    """
    if value < 1_000_000:
        return f"{value:,}"
    return f"{value / 1e6:.2f}M" if value < 999_995_000 else f"{value / 1e9:.1f}G"


def short_rate(value: float | None) -> str:
    """Events per second in at most five characters.

    >>> [short_rate(v) for v in (None, 0.0, 0.123, 9.94, 99.96, 9_999.4, 10_234.0, 123_456.0, 1_234_567.0)]
    ['-', '0', '0.1', '9.9', '100', '9,999', '10.2k', '123k', '1.2M']
    """
    if value is None:
        return "-"
    if not value:
        return "0"
    if value >= 999_500:
        return f"{value / 1e6:.1f}M"
    if value >= 9_999.5:
        return f"{value / 1e3:.1f}k" if value < 99_950 else f"{value / 1e3:.0f}k"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def phase_style(worker: WorkerRecord) -> str:
    return GOOD if worker.phase in ("ready", "running") else PAUSED


def progress(job: JobStatus, snapshot: Snapshot, width: int) -> Line:
    """How far a running job is, that its worker is gone, or why the job waits."""
    if job.id in snapshot.lost:
        return [(lost_text(snapshot.lost[job.id]), LATE)]
    if job.progress is None:
        return [(clean(job.message or job.reason or "-"), DIM if not job.message else PLAIN)]
    size = max(4, min(20, (width - 6) // (3 if job.message else 1)))
    message = f" {clean(job.message)}" if job.message else ""
    return [*bar(job.progress, size, BAR), (f" {int(job.progress * 100):>3} %", PLAIN), (message, DIM)]


def lost_text(left_s: float) -> str:
    """What happens to a job whose worker is gone.

    >>> lost_text(29.2), lost_text(0)
    ('worker lost, back in ≤ 30 s', 'worker lost, waiting')
    """
    seconds = -(-left_s // 1)
    return f"worker lost, back in ≤ {seconds:.0f} s" if seconds > 0 else "worker lost, waiting"


def _oldest(queue: QueueState) -> Line:
    if queue.oldest is None:
        return [("-", DIM)]
    return [(show_duration(queue.oldest), LATE if queue.oldest >= LATE_AFTER else PLAIN)]


def _lag(worker: WorkerRecord) -> Line:
    return [(show_duration(worker.lag), LATE if worker.lag >= timedelta(seconds=1) else PLAIN)]


def _age(job: JobStatus, now: float) -> str:
    return _since(job.started_at or job.enqueued_at, now)


def _since(moment: datetime | None, now: float) -> str:
    return "-" if moment is None else show_duration(max(0.0, now - moment.timestamp()))


def moment_text(moment: datetime | None, now: float) -> str:
    """A time with how long ago it was or in how long it is.

    >>> moment_text(datetime(2027, 1, 1, 9, tzinfo=UTC), datetime(2027, 1, 1, 9, 0, 5, tzinfo=UTC).timestamp())
    '5.0 s ago (2027-01-01T09:00:00+00:00)'
    """
    if moment is None:
        return "-"
    left = moment.timestamp() - now
    near = f"in {show_duration(left)}" if left > 0 else f"{show_duration(-left)} ago"
    return f"{near} ({moment.astimezone(UTC).isoformat(timespec='seconds')})"


def names(item: Item) -> Sequence[str]:
    """What the filter looks at."""
    value = item.value
    if item.kind == "queue":
        return (item.queue,)
    if item.kind == "worker":
        return (value.key, value.host, *value.queues)
    if item.kind == "schedule":
        return (value.schedule.name, value.schedule.task, value.schedule.queue)
    more = (value.error_type, value.reason) if item.kind == "letter" else (getattr(value, "worker", None) or "",)
    return (value.queue, value.task, value.id, *more)
