"""Compare the answers that callers and operators got with what happened to the jobs. No I/O."""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.asker import EXPIRED, FAILED, NOT_FOUND, STOPPED
from tests.chaos.explain import Explainer
from tests.chaos.facts import Facts
from tests.chaos.history import OLDER_STORE, REFUSED, Ask, History, Sent
from tests.chaos.journal import FINISH, START, Line
from tests.chaos.timing import EARLY_S

NEAR_S = 3.0
"""A job due within two seconds is too late to be moved."""
MOVED, TOO_LATE = "moved", "too late"
FIRED_S = 0.2
"""How exactly the server fires a job."""

False_ = tuple[str, str]
"""A false answer, and the job."""


def false_answers(
    history: History, lines: list[Line], facts: Facts, unrecorded: frozenset[str] = frozenset()
) -> list[False_]:
    return _Answers(history, lines, facts, unrecorded).false()


class _Answers:
    def __init__(self, history: History, lines: list[Line], facts: Facts, unrecorded: frozenset[str]) -> None:
        self._history = history
        self._facts = facts
        self._unrecorded = unrecorded
        self._explain = Explainer(history, lines, [])
        self._sent = {sent.id: sent for sent in history.sent if sent.id}
        self._of: dict[tuple[str, str], list[Line]] = defaultdict(list)
        self._numbers: dict[int, str] = {}
        for line in lines:
            self._of[line.id, line.run].append(line)
            self._numbers.setdefault(line.n, line.id)
        self._replayed = {one.id for one in history.replays}

    def false(self) -> list[False_]:
        found = [*self._refused(), *self._priorities()]
        checks = {
            "cancel": self._cancel,
            "run_now": self._run_now,
            "reschedule": self._reschedule,
            "result": self._result,
        }
        for ask in self._history.asks:
            if self._history.may_be_gone(ask.id):
                continue
            check = checks.get(ask.action)
            text = self._not_found(ask) or (check(ask) if check is not None and not self._undone(ask) else "")
            found += [(f"{ask.action} answered {ask.answer!r}, but {text}", ask.id)] if text else []
        return found

    def _undone(self, ask: Ask) -> bool:
        """Whether a store came back after the job was sent, in which it or the change was not what it is now."""
        lines = self._of[ask.id, ask.run]
        last = max([ask.answered_at, *(line.at for line in lines)])
        sent = self._sent[ask.id].at
        return any(span.kind == OLDER_STORE and sent <= span.stopped <= last for span in self._history.spans)

    def _refused(self) -> list[False_]:
        """Jobs are recognised by their number: a refused job has no id."""
        return [
            (f"{sent.kind} was refused ({sent.error}), but it is stored", self._numbers[sent.number])
            for sent in self._history.sent
            if sent.answer == REFUSED and sent.number in self._numbers
        ]

    def _priorities(self) -> list[False_]:
        asked: set[tuple[str, str]] = set()
        found = []
        for move in self._history.moves:
            if move.done and (move.id, move.lane) not in asked:
                found.append((f"priority {move.lane} answered {move.answer!r}, but the job is there", move.id))
            asked.add((move.id, move.lane))
        return found

    def _not_found(self, ask: Ask) -> str:
        if ask.answer not in (NOT_FOUND, EXPIRED):
            return ""
        finished = [line for line in self._of[ask.id, ask.run] if line.event == FINISH]
        without_record = ask.id in self._unrecorded or any(
            self._explain.storage_was_full(line.at) for line in finished
        )
        return "" if finished and without_record else "the job had been confirmed"

    def _cancel(self, ask: Ask) -> str:
        lines = self._of[ask.id, ask.run]
        starts = [line for line in lines if line.event == START]
        if ask.answer != STOPPED:
            return ""
        late = [line for line in starts if line.at > ask.answered_at and not self._was_stopped(line)]
        if late:
            return f"it started {late[0].at - ask.answered_at:.1f} s later"
        ends = [line for line in lines if line.event == FINISH]
        # Only the last to start it held the job: another had lost its lease and cannot be stopped.
        last = [line for line in ends if starts and line.pid == starts[-1].pid]
        if not last or (last[-1].at <= ask.answered_at and self._explain.zombie(last)):
            return ""  # it had ended, and its worker could not say so before it lost the lease
        return f"it ran to its end {last[-1].at - ask.answered_at:+.1f} s from then"

    def _was_stopped(self, start: Line) -> bool:
        """Whether a delivery lay behind a broken link when the job was cancelled. Its worker reads it before the
        cancel mark that came after it, and starts the job; the mark then stops it."""
        ended = any(
            line.event == FINISH and (line.pid, line.message) == (start.pid, start.message)
            for line in self._of[start.id, start.run]
        )
        return not ended and self._explain.read_late(start)

    def _first(self, ask: Ask) -> tuple[Sent, Line | None]:
        """The job, and its first start. A message that has moved has a higher `hop`."""
        starts = [line for line in self._of[ask.id, ask.run] if line.event == START]
        return self._sent[ask.id], starts[0] if starts else None

    def _run_now(self, ask: Ask) -> str:
        sent, first = self._first(ask)
        if first is None:
            return ""
        early = first.hop > 0 and first.at < sent.due_at - EARLY_S
        if ask.answer == TOO_LATE and ask.answered_at < sent.due_at - NEAR_S and early:
            return f"it started {sent.due_at - first.at:.1f} s before it had been due"
        return "it had not moved when it started" if ask.answer == MOVED and not first.hop else ""

    def _reschedule(self, ask: Ask) -> str:
        sent, first = self._first(ask)
        if first is None:
            return ""
        late = first.hop > 0 and first.at >= ask.moment - FIRED_S
        if ask.answer == TOO_LATE and ask.answered_at < sent.due_at - NEAR_S and late:
            return "it had moved, and started at the new time"
        if ask.answer == MOVED and first.at < ask.moment - FIRED_S:
            return f"it started {ask.moment - first.at:.1f} s before the new time"
        return ""

    def _result(self, ask: Ask) -> str:
        if ask.answer in ("", EXPIRED) or ask.id in self._replayed:
            return ""
        if ask.answer.startswith(FAILED):
            return "" if ask.id in self._facts.dead else "it has no dead letter"
        if ask.answer == STOPPED:
            return "it was not cancelled"
        number = self._sent[ask.id].number
        return "" if ask.answer == str(number) else f"its result is {number}"
