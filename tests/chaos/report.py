"""The report of a run, and a trail for each job that broke an invariant."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jetjobs
from tests.chaos import logs, measure
from tests.chaos.check import FORGOTTEN, UNRECORDED, Findings
from tests.chaos.facts import Facts
from tests.chaos.history import STALL, Ask, History
from tests.chaos.journal import FINISH, START, Line
from tests.chaos.plan import LEASE_S, WORKERS, Plan

MAX_TRAILS = 10
MAX_TEXTS = 30
INVARIANTS = {
    "I1": "every confirmed job is done, dead or still stored",
    "I2": "no job is both done and dead, except by a worker that had lost its lease",
    "I3": "no job started more often than its attempts and the faults explain",
    "I4": "every scheduled time of the schedules has one job, through edits, moves, pauses and deletions",
    "I5": "no internal error in the logs; memory and files bounded; a graceful stop at the end",
    "END": "each job ended as its kind should, or as `crashed`",
    "JOURNAL": "every done record has a finish in the journal",
    "LANE": "no lane has anything pending",
    "STRANDED": "no message is left where no consumer will deliver it",
    "QUIET": "all jobs ended in time",
    "TIME": "no job started before it was due or long after, and no deadline was misjudged",
    "ANSWER": "no caller got an answer that the job's fate contradicts",
}


@dataclass
class Run:
    """Everything known at the end of a run."""

    plan: Plan
    history: History
    lines: list[Line]
    facts: Facts
    found: Findings
    server_version: str
    logs: list[Path]

    @property
    def ok(self) -> bool:
        return not self.found.violations


def markdown(run: Run) -> str:
    """The report, without times of day and paths, so that it can be published."""
    plan, history, found = run.plan, run.history, run.found
    faults = Counter(span.kind for span in history.spans if span.kind != STALL)
    starts = sum(line.event == START for line in run.lines)
    answers = Counter(sent.answer for sent in history.sent)
    rows = [
        ("jobs", f"{len(history.sent)}: " + ", ".join(f"{n} {what}" for what, n in sorted(answers.items()))),
        ("**lost**", f"**{found.lost}**"),
        ("faults", f"{faults.total()}: " + _counted(faults)),
        ("worker processes", f"{len(history.lives)} for {WORKERS} workers, {_crashes(history)} of them crashed"),
        ("executions", f"{starts} started, {sum(x.event == FINISH for x in run.lines)} finished"),
        ("started twice or more", f"{found.duplicates}, by: {_counted(found.explained) or 'nothing'}"),
        ("of these unexplained", str(len(found.unexplained))),
        ("harmless jobs dead-lettered as `crashed`", str(len(found.innocents))),
        ("done and dead", f"{len(found.zombies)}"),
        ("refused but stored", str(len(found.refused_but_stored))),
        ("done, record refused for lack of storage", str(_ended(found, UNRECORDED))),
        ("replays", _counted(Counter(one.answer or "no answer" for one in history.replays)) or "none"),
        ("changes of priority", _counted(Counter(one.answer or "no answer" for one in history.moves)) or "none"),
        ("forgotten with an older store", str(_ended(found, FORGOTTEN))),
        ("questions", _counted(Counter(f"{one.action}: {_answer(one)}" for one in history.asks)) or "none"),
        ("work resumed after a fault", str(measure.until_next_finish(history, run.lines))),
        (f"taken over after kill -9 (lease {LEASE_S:g} s)", str(measure.until_taken_over(history, run.lines))),
        ("largest worker", _largest(history)),
        ("stalls of the machine itself", str(sum(span.kind == STALL for span in history.spans))),
        ("violations", str(len(found.violations))),
    ]
    cluster = f" CLUSTER={plan.cluster}" if plan.cluster else ""
    head = [
        f"`make chaos SEED={plan.seed} SECONDS={plan.seconds:g}{cluster}`",
        "",
        f"Python {platform.python_version()}, nats-server {run.server_version}, nats-py {version('nats-py')}, "
        f"jetjobs {jetjobs.__version__}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
    ]
    return "\n".join([*head, *_recoveries(run), "", *_kinds(found), "", *_invariants(found), ""])


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))


def _crashes(history: History) -> int:
    return sum(1 for life in history.lives if life.code not in (0, 1, None))


def _answer(ask: Ask) -> str:
    """The answer in one of few words."""
    if ask.action == "result" and ask.answer.isdigit():
        return "a value"
    return ask.answer or "no answer"


def _recoveries(run: Run) -> list[str]:
    rows = [
        f"| `{one.kind}` | {one.pause.number} | {_two(one.until_started)} | {_two(one.until_confirmed)} | "
        f"{_two(one.pause)} |"
        for one in measure.recoveries(run.history, run.lines)
    ]
    return [
        "| Fault | Times | A job starts, after its end | An enqueue is confirmed, after its end | No job starts |",
        "|---|---|---|---|---|",
        *rows,
    ]


def _two(times: measure.Times) -> str:
    return f"{times.p50:.2f} / {times.longest:.2f} s"


def _ended(found: Findings, ending: str) -> int:
    return sum(n for (_, end), n in found.outcomes.items() if end == ending)


def _largest(history: History) -> str:
    rss = max((life.peak_rss for life in history.lives), default=0)
    return f"{rss >> 20} MB, {max((life.peak_fds for life in history.lives), default=0)} files"


def _kinds(found: Findings) -> list[str]:
    kinds = sorted({kind for kind, _ in found.outcomes})
    lines = ["| Kind of job | Ended as |", "|---|---|"]
    for kind in kinds:
        ends = Counter({end: n for (one, end), n in found.outcomes.items() if one == kind})
        lines.append(f"| {kind} | {_counted(ends)} |")
    return lines


def _invariants(found: Findings) -> list[str]:
    broken = Counter(violation.invariant for violation in found.violations)
    return ["| Invariant | |", "|---|---|"] + [
        f"| {name}: {text} | {'holds' if not broken[name] else f'BROKEN {broken[name]} times'} |"
        for name, text in INVARIANTS.items()
    ]


# Trails


def trails(run: Run) -> str:
    """For each violation, what is known about its job: its enqueue, runs, place, and the faults around it."""
    parts: list[str] = []
    seen: set[str] = set()
    for number, violation in enumerate(run.found.violations):
        if len(seen) >= MAX_TRAILS or number >= MAX_TEXTS:
            parts.append(f"... and {len(run.found.violations) - number} more violations")
            break
        parts.append(f"{violation.invariant}: {violation.text}")
        if violation.job_id and violation.job_id not in seen:
            seen.add(violation.job_id)
            parts.append(_trail(run, violation.job_id))
    return "\n".join(parts)


def unusual_trails(run: Run) -> str:
    """The trails of jobs that broke no invariant but ended unusually, such as harmless jobs that are dead."""
    unusual = [*run.found.unexplained, *run.found.zombies, *run.found.innocents, *run.found.refused_but_stored]
    return "\n".join(f"UNUSUAL\n{_trail(run, job_id)}" for job_id in unusual[:MAX_TRAILS])


def _trail(run: Run, job_id: str) -> str:
    zero = run.history.started
    sent = [one for one in run.history.sent if one.id == job_id]
    lines = [line for line in run.lines if line.id == job_id]
    out = [f"  job {job_id}"]
    out += [
        f"  {one.at - zero:8.3f} sent {one.kind} #{one.number} {one.task} to {one.queue}: {one.answer} at "
        f"{one.answered_at - zero:.3f} run={one.run} {one.error}"
        for one in sent
    ]
    out += [f"  {line.at - zero:8.3f} journal {str(line).split(' ', 1)[1]}" for line in lines]
    out += [
        f"  {one.at - zero:8.3f} replay of run {one.run}: {one.answer}"
        for one in run.history.replays
        if one.id == job_id
    ]
    out += [
        f"  {one.at - zero:8.3f} priority {one.lane}: {one.answer or 'no answer'}"
        for one in run.history.moves
        if one.id == job_id
    ]
    out += [
        f"  {one.at - zero:8.3f} {one.action}: {one.answer or 'no answer'} at {one.answered_at - zero:.3f} "
        f"{one.error}"
        for one in run.history.asks
        if one.id == job_id
    ]
    out += [f"  stored {one}" for one in run.facts.stored if one.id == job_id]
    if job_id in run.facts.done:
        out.append(f"  done {run.facts.done[job_id]}")
    if job_id in run.facts.dead:
        out.append(f"  dead {run.facts.dead[job_id]}")
    out += [f"  log {line}" for line in logs.about(run.logs, job_id)]
    first = min([one.at for one in sent] + [line.at for line in lines], default=zero)
    last = max([line.at for line in lines], default=first) + 10
    out += [
        f"  {span.start - zero:8.3f}-{span.end - zero:.3f} fault {span.kind} workers={sorted(span.workers)} "
        f"lane={'/'.join(span.lane) if span.kind == 'delete_consumer' else ''} {span.note}"
        f"{f' stopped {span.stopped - zero:.3f}' if span.stopped else ''}"
        for span in run.history.spans
        if first - 3 <= span.end and span.start <= last
    ]
    pids = {line.pid for line in lines}
    out += [
        f"  worker {life.worker} pid {life.pid}: {life.born - zero:.3f} to "
        f"{life.died - zero if life.died else 0:.3f} code {life.code} {life.wanted}"
        for life in run.history.lives
        if life.pid in pids
    ]
    return "\n".join(out)
