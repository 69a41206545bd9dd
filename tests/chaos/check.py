"""Check the invariants between the history, the workers' journal and the server's state. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.explain import Explainer
from tests.chaos.facts import WAITING, Facts, Stored
from tests.chaos.history import OLDER_STORE, STORED, UNCONFIRMED, History, Sent
from tests.chaos.journal import FINISH, START, Line
from tests.chaos.kinds import CANCELLED, DONE, KINDS, LATER, QUIET
from tests.chaos.tasks import DOOMED_ATTEMPTS, QUICK

MAX_RSS = 400 * 1024 * 1024
MAX_FDS = 128
MAX_ATTEMPTS = {"flaky": QUICK.max_attempts, "doomed": DOOMED_ATTEMPTS, "poison_in_child": DOOMED_ATTEMPTS}
SPARE = 500
"""One unexplained second start per this many starts is tolerated: a process may stall by itself."""
UNRECORDED = "finished, record refused for lack of storage"
GONE = "gone by replay"
UNDONE_S = 10.0
"""How long a replay may take: an older store undoes one that was stored after the copy."""
FOLLOWS = "moves of a message that ran twice"
ANNOUNCED = "change of priority, announced"
LOST = "lost"
FORGOTTEN = "forgotten with the older store"
REMOVED = "removed by a cancel without an answer"
"""A cancel removes the job, then stores its record. Its caller got an error, such as that storage is full."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, with its job if it concerns one."""

    invariant: str
    text: str
    job_id: str = ""


@dataclass(slots=True)
class Findings:
    violations: list[Violation] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of jobs by kind and ending."""
    duplicates: int = 0
    """Starts of a message that had already been started."""
    explained: Counter[str] = field(default_factory=Counter)
    """Duplicates by the fault that explains them."""
    unexplained: list[str] = field(default_factory=list)
    """Jobs that were started again without a fault that explains it."""
    innocents: list[str] = field(default_factory=list)
    """Harmless jobs that were dead-lettered as `crashed` because faults hit them too often."""
    zombies: list[str] = field(default_factory=list)
    """Jobs with a done record and a dead letter of the same run."""
    refused_but_stored: list[str] = field(default_factory=list)
    lost: int = 0

    def violate(self, invariant: str, text: str, job_id: str = "") -> None:
        self.violations.append(Violation(invariant, text, job_id))


class Checker:
    """Compares the three sources; `check` checks one invariant after another."""

    def __init__(
        self,
        history: History,
        lines: list[Line],
        facts: Facts,
        blocked: list[tuple[int, float, float]],
        unrecorded: frozenset[str] = frozenset(),
    ) -> None:
        self._history = history
        self._unrecorded = unrecorded
        self._facts = facts
        self._lines = lines
        self._explain = Explainer(history, lines, blocked)
        self._of: dict[str, list[Line]] = defaultdict(list)
        for line in lines:
            self._of[line.id].append(line)
        self._stored: dict[str, Stored] = {one.id: one for one in facts.stored}
        self._by_source = {letter["headers"].get("Jetjobs-Source", ""): i for i, letter in facts.dead.items()}
        self._announced = {one.id for one in history.moves if one.announced}
        self._replayed = {
            (one.id, one.run)
            for one in history.replays
            if one.answer != "refused" and not history.undone(one.at - UNDONE_S, one.at)
        }
        cancels = [one for one in history.asks if one.action == "cancel"]
        self._removed = {one.id for one in cancels if not one.answer}
        self._record_forgotten = {
            one.id for one in cancels if one.answer == CANCELLED and history.undone(one.at, one.answered_at)
        }
        self.found = Findings()

    def check(self, log_trouble: list[str]) -> Findings:
        self._every_job_ended()
        self._none_both_done_and_dead()
        self._executions()
        self._records_have_a_finish()
        self._nothing_left_in_lanes()
        self._workers(log_trouble)
        return self.found

    # I1

    def _every_job_ended(self) -> None:
        counted: set[str] = set()
        for sent in self._history.sent:
            if sent.id in counted and sent.id:
                continue  # a duplicate of a key: the same job
            counted.add(sent.id)
            ending = self._ending(sent)
            if ending == LOST and (self._history.may_be_gone(sent.id) or sent.id in self._record_forgotten):
                ending = FORGOTTEN
            if ending == LOST and sent.id in self._removed:
                ending = REMOVED
            if sent.answer in STORED:
                if ending == LOST:
                    self.found.lost += 1
                    self.found.violate("I1", f"{sent.kind} was confirmed and is lost", sent.id)
                self._check_kind(sent, ending)
            elif ending != LOST and sent.answer != UNCONFIRMED:
                self.found.refused_but_stored.append(sent.id)
            if sent.answer in STORED or ending != LOST:
                self.found.outcomes[sent.kind, ending] += 1
            else:
                self.found.outcomes[sent.kind, f"{sent.answer}, not stored"] += 1

    def _ending(self, sent: Sent) -> str:
        """How the last run of the job ended: done, a dead letter's reason, finished, scheduled, or lost."""
        job_id = sent.id
        letter_id = job_id
        if sent.sequence and job_id not in self._facts.dead:
            source = f"jobs.work.{sent.queue}.normal.{sent.task} {sent.sequence}"
            letter_id = self._by_source.get(source, job_id)
        letter = self._facts.dead.get(letter_id)
        lives = {line.run for line in self._of[job_id]} | ({sent.run} - {""})
        gone = {run for run in lives if (job_id, run) in self._replayed}
        record = self._facts.done.get(job_id)
        if record and record.get("run") not in gone:
            return CANCELLED if record.get("state") == CANCELLED else DONE
        if letter is not None:
            return str(letter.get("reason", "no reason"))
        if (there := self._stored.get(job_id)) is not None:
            return LATER if there.lane == "later" else f"in lane {there.lane}"
        finished = [line for line in self._of[job_id] if line.event == FINISH and line.run not in gone]
        if finished:
            return self._without_record(sent, finished[-1])
        # An anonymous job, dead-lettered under a new id and replayed: the replay knows only the new id.
        return LOST if not (sent.sequence and self._replayed_by_source(sent)) else GONE

    def _without_record(self, sent: Sent, last: Line) -> str:
        if sent.task == "quiet":
            return QUIET
        # It may have finished while the server was down and found the storage full when the server was back.
        logged = sent.id in self._unrecorded
        return UNRECORDED if logged or self._explain.storage_was_full(last.at) else LOST

    def _replayed_by_source(self, sent: Sent) -> bool:
        ids = {one.id for one in self._history.replays if one.id.endswith(f"-{sent.sequence}")}
        return any(self._exists(one) for one in ids)

    def _exists(self, job_id: str) -> bool:
        finished = any(
            line.event == FINISH and self._explain.storage_was_full(line.at) for line in self._of[job_id]
        )
        return job_id in self._facts.done or job_id in self._facts.dead or job_id in self._stored or finished

    def _check_kind(self, sent: Sent, ending: str) -> None:
        kind = KINDS[sent.kind]
        if ending in kind.ends or ending in (LOST, GONE, FORGOTTEN, REMOVED):
            return
        if ending == "crashed":
            self.found.innocents.append(sent.id)
        elif ending != UNRECORDED and not (sent.kind == "large" and self._is_torn(sent)):
            self.found.violate("END", f"{sent.kind} ended as: {ending}", sent.id)

    def _is_torn(self, sent: Sent) -> bool:
        """Whether the server has forgotten a part of the body: an older store came back during the upload."""
        return any(
            span.kind == OLDER_STORE and sent.at <= span.stopped and span.start <= sent.answered_at
            for span in self._history.spans
        )

    # I2

    def _none_both_done_and_dead(self) -> None:
        for job_id, letter in self._facts.dead.items():
            record = self._facts.done.get(job_id)
            if record and record.get("run") == letter["headers"].get("Jetjobs-Run"):
                self.found.zombies.append(job_id)
                if job_id not in self._announced and not self._explain.zombie(self._of[job_id]):
                    self.found.violate("I2", "both done and dead, and no fault explains it", job_id)
        confirmed = {sent.id for sent in self._history.sent if sent.answer in STORED and not sent.sequence}
        for job_id, letter in self._facts.dead.items():
            if letter.get("type") == "IdTaken" and (taken := job_id.rsplit("-s", 1)[0]) in confirmed:
                self.found.violate("I2", f"dead as {job_id}: its own next place was taken for another job", taken)

    # I3

    def _executions(self) -> None:
        starts: dict[tuple[str, str, int], list[Line]] = defaultdict(list)
        for line in self._lines:
            if line.event == START:
                starts[line.message].append(line)
                if line.attempt > MAX_ATTEMPTS.get(line.task, line.attempt):
                    self.found.violate("I3", f"attempt {line.attempt} of {line.task}", line.id)
        pairs = [pair for lines in starts.values() for pair in pairwise(lines)]
        doubled: dict[tuple[str, str], int] = {}
        for before, again in sorted(pairs, key=lambda pair: pair[1].at):
            self.found.duplicates += 1
            why = self._explain.again(before, again)
            if not why and doubled.get((again.id, again.run), again.hop) < again.hop:
                why = FOLLOWS
            if not why and again.id in self._announced:
                why = ANNOUNCED
            doubled.setdefault((again.id, again.run), again.hop)
            self.found.explained[why or "nothing"] += 1
            if not why:
                self.found.unexplained.append(again.id)
        if len(self.found.unexplained) > 1 + sum(map(len, starts.values())) // SPARE:
            for job_id in self.found.unexplained:
                self.found.violate("I3", "started again, and no fault explains it", job_id)

    def _records_have_a_finish(self) -> None:
        unseen = {sent.id for sent in self._history.sent if not KINDS[sent.kind].journaled}
        for job_id, record in self._facts.done.items():
            ends = [line for line in self._of[job_id] if line.event == FINISH and line.run == record.get("run")]
            if record and not ends and job_id not in unseen and record.get("state") != CANCELLED:
                self.found.violate("JOURNAL", "has a done record and never finished", job_id)

    # Lanes

    def _nothing_left_in_lanes(self) -> None:
        for name, consumer in self._facts.consumers.items():
            for what in ("num_ack_pending", "num_pending"):
                if consumer.get(what, 1):
                    self.found.violate("LANE", f"{name}: {what} is {consumer.get(what, 'unknown')}")
        for one in self._facts.stored:
            if one.lane not in WAITING:
                self.found.violate("STRANDED", f"still in {one.subject} as {one.sequence}", one.id)

    # I5

    def _workers(self, log_trouble: list[str]) -> None:
        for line in log_trouble:
            self.found.violate("I5", line)
        for life in self._history.lives:
            if life.peak_rss > MAX_RSS or life.peak_fds > MAX_FDS:
                self.found.violate(
                    "I5", f"worker {life.worker}, pid {life.pid}: {life.peak_rss >> 20} MB, {life.peak_fds} files"
                )
            if life.wanted == "stop" and life.code != 0:
                self.found.violate("I5", f"worker {life.worker} stopped with code {life.code} at the end")
