"""The page of one job, and the help, as lines of text."""

from __future__ import annotations

from jetjobs.cli.live.columns import BOLD, DEAD, DIM, LATE, PAUSED, PLAIN, Line, bar, clean, wrapped
from jetjobs.cli.live.snapshot import Content, Snapshot
from jetjobs.cli.live.tables import STATES, lost_text, moment_text
from jetjobs.cli.terminal.text import printable
from jetjobs.model.durations import show_duration
from jetjobs.model.job import JobState, JobStatus

_LABEL = 12
MAX_TEXT = 20_000
"""Characters of a traceback or of arguments that are shown."""

KEYS = (
    ("↑ ↓", "select; also PgUp, PgDn, Home, End"),
    ("Tab", "next table of the page"),
    ("Enter", "open the selected queue, job, worker or last job of a schedule"),
    ("Esc", "back; removes the filter first"),
    ("c", "cancel the selected or open job (asks first)"),
    ("P", "pause or resume the selected or open queue (asks first)"),
    ("d", "dead letters of the selected or open queue; again: of all queues"),
    ("w", "workers"),
    ("s", "schedules"),
    ("/", "show only items with a text in a name; Enter keeps it, Esc removes it"),
    ("Space", "stop and continue updates"),
    ("?", "this help"),
    ("q", "quit"),
)


def help_lines(width: int) -> list[Line]:
    """What each key does, and what the colours mean."""
    lines: list[Line] = []
    for key, text in KEYS:
        for number, piece in enumerate(wrapped(text, width - 8)):
            lines.append([(f"{'' if number else key:<8}", BOLD), (piece, PLAIN)])
    colours = [
        ("paused", PAUSED, "takes no jobs until it is resumed"),
        ("dead", DEAD, "failed for good; only a replay runs it again"),
        ("late", LATE, "due for more than a minute, not planned in time, or without a worker"),
    ]
    lines.append([])
    lines += [[(f"{name:<8}", style), (text, PLAIN)] for name, style, text in colours]
    lines += [
        [],
        [("RUNNING: jobs in slots. Jobs that a worker has requested ahead are queued.", DIM)],
        [("The lines under OUT/s and IN/s show the last 60 seconds.", DIM)],
    ]
    return lines


def job_lines(content: Content, snapshot: Snapshot, width: int) -> list[Line]:
    """Everything about one job."""
    job = content.job
    if job is None:
        return [[(clean(content.error or "reading the job …", 500), LATE if content.error else DIM)]]
    lines = [_field("state", _state(job, snapshot))]
    if job.id in snapshot.lost and job.state is JobState.RUNNING:
        lines.append(_field("worker", [(lost_text(snapshot.lost[job.id]), LATE)]))
    if job.progress is not None:
        share = [*bar(job.progress, max(4, min(50, width - _LABEL - 8))), (f" {int(job.progress * 100)} %", PLAIN)]
        lines.append(_field("progress", share))
    if job.message:
        lines += _text("message", job.message, width)
    lines += _facts(job, snapshot.at, width)
    lines += _text("arguments", content.arguments or "-", width)
    for entry in job.history:
        what = f"attempt {entry.get('attempt')}: {entry.get('type')}: {str(entry.get('text', ''))[:MAX_TEXT]}"
        lines += _text("failed", what, width, DEAD)
    for entry in job.replays:
        lines += _text("replayed", f"by {entry.get('by') or '-'}: {entry.get('why') or '-'}", width)
    if job.traceback:
        lines += [[], [("traceback", BOLD)]]
        for text in job.traceback[-MAX_TEXT:].rstrip().splitlines():
            own = PLAIN if text.startswith(" ") else DEAD
            lines += [[(piece, own)] for piece in wrapped(printable(text).expandtabs(4), width)]
    return lines


def _state(job: JobStatus, snapshot: Snapshot) -> Line:
    line: Line = [(str(job.state or "unknown"), STATES.get(job.state, BOLD) if job.state else DIM)]
    if job.started_at is not None:
        end = job.ended_at.timestamp() if job.ended_at is not None else snapshot.at
        ran = show_duration(max(0.0, end - job.started_at.timestamp()))
        line.append((f" {'for' if job.state is JobState.RUNNING else 'after'} {ran}", PLAIN))
    if job.worker:
        line.append((f" on {clean(job.worker)}", PLAIN))
    if job.cancel is not None and job.state is not JobState.CANCELLED:
        line.append(("  cancel requested", PAUSED))
    return line


def _facts(job: JobStatus, now: float, width: int) -> list[Line]:
    facts = {
        "job": job.id,
        "task": job.task,
        "queue": job.queue + (f", lane {job.lane}" if job.lane else ""),
        "attempt": str(job.attempt) + (f", {job.crashes} crashed before" if job.crashes else ""),
        "enqueued": moment_text(job.enqueued_at, now) if job.enqueued_at else "",
        "due": moment_text(job.due_at, now) if job.due_at and job.due_at.timestamp() > now else "",
        "started": moment_text(job.started_at, now) if job.started_at else "",
        "ended": moment_text(job.ended_at, now) if job.ended_at else "",
        "schedule": job.schedule or "",
        "parent": job.parent or "",
    }
    lines = [line for label, text in facts.items() if text for line in _text(label, text, width)]
    if job.cancel is not None:
        lines += _text("cancel", f"by {job.cancel['by'] or '-'}: {job.cancel['reason'] or '-'}", width, PAUSED)
    if job.reason:
        lines += _text("reason", job.reason, width, DEAD if job.state is JobState.DEAD else PLAIN)
    if job.error:
        lines += _text("error", job.error, width, DEAD)
    return lines


def _field(label: str, value: Line) -> Line:
    return [(f"{label:<{_LABEL}}", DIM), *value]


def _text(label: str, text: str, width: int, style: str = PLAIN) -> list[Line]:
    pieces = wrapped(clean(text, MAX_TEXT), width - _LABEL)
    return [_field("" if number else label, [(piece, style)]) for number, piece in enumerate(pieces)]
