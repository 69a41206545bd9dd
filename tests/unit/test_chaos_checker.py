"""The checker of the chaos run finds every broken invariant."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.check import Checker, Findings
from tests.chaos.facts import Facts, Stored
from tests.chaos.history import CONFIRMED, DUPLICATE, REFUSED, UNCONFIRMED, History, Life, Move, Replay, Sent, Span
from tests.chaos.journal import CANCELLED, FAIL, FINISH, START, Line
from tests.chaos.measure import quantiles

IDLE = {"num_pending": 0, "num_ack_pending": 0}


def sent(kind: str = "plain", task: str = "effect", answer: str = CONFIRMED, job_id: str = "a") -> Sent:
    return Sent(kind, 1, "default", task, 1.0, answer, 1.1, job_id, "r1" if answer == CONFIRMED else "")


def line(at: float, event: str, pid: int = 1, *, task: str = "effect", hop: int = 0, delivery: int = 1) -> Line:
    return Line(at, pid, event, task, "a", "r1", hop, 1, delivery, "default/normal")


def dead(reason: str, run: str = "r1") -> dict[str, Any]:
    return {"reason": reason, "headers": {"Jetjobs-Run": run}}


def check(
    jobs: list[Sent],
    lines: list[Line],
    facts: Facts | None = None,
    *,
    spans: list[Span] | None = None,
    lives: list[Life] | None = None,
    replays: list[Replay] | None = None,
    log: list[str] | None = None,
    blocked: list[tuple[int, float, float]] | None = None,
) -> Findings:
    history = History(started=0.0, sent=jobs, spans=spans or [], lives=lives or [], replays=replays or [])
    return Checker(history, lines, facts or Facts(), blocked or []).check(log or [])


def broken(found: Findings) -> list[str]:
    return [violation.invariant for violation in found.violations]


RAN = [line(1.0, START), line(1.1, FINISH)]


def test_a_confirmed_job_without_a_trace_is_lost() -> None:
    found = check([sent()], [])
    assert broken(found) == ["I1"]
    assert found.lost == 1


def test_a_job_that_finished_without_its_record_is_lost() -> None:
    assert check([sent()], RAN).lost == 1


def test_a_job_whose_worker_logged_a_refused_record_is_not_lost() -> None:
    history = History(started=0.0, sent=[sent()])
    assert Checker(history, RAN, Facts(), [], frozenset({"a"})).check([]).lost == 0
    assert Checker(history, [], Facts(), [], frozenset({"a"})).check([]).lost == 1  # logged, but it never finished


def test_a_job_that_finished_without_a_record_while_storage_was_full_is_not_lost() -> None:
    assert broken(check([sent()], RAN, spans=[Span("fill_storage", 0.5, 2.0)])) == []


@pytest.mark.parametrize(
    ("job", "lines", "facts"),
    [
        (sent(), RAN, Facts(done={"a": {"run": "r1"}})),
        (sent("quiet", "quiet"), RAN, Facts()),
        (sent("doomed", "doomed"), [], Facts(dead={"a": dead("exhausted")})),
        (sent("far"), [], Facts(stored=[Stored("jobs.work.default.later.effect.-.a", 1, {})])),
        (sent(answer=UNCONFIRMED), [], Facts()),
        (sent(answer=REFUSED), [], Facts()),
        (sent("keyed", answer=DUPLICATE), RAN, Facts(done={"a": {"run": "r1"}})),
    ],
    ids=["done", "quiet", "dead", "later", "unconfirmed", "refused", "duplicate"],
)
def test_a_job_that_ended_as_expected_breaks_no_invariant(job: Sent, lines: list[Line], facts: Facts) -> None:
    assert broken(check([job], lines, facts)) == []


def test_a_replayed_letter_without_a_trace_of_its_new_run_is_lost() -> None:
    replays = [Replay("a", "r1", 3.0, "replayed")]
    ran = [line(1.0, START, task="doomed"), line(1.1, FAIL, task="doomed")]
    assert check([sent("doomed", "doomed")], ran, replays=replays).lost == 1
    again = Facts(dead={"a": dead("exhausted", "r2")})
    assert broken(check([sent("doomed", "doomed")], ran, again, replays=replays)) == []


def test_a_job_with_an_unexpected_ending_is_found() -> None:
    assert broken(check([sent()], [], Facts(dead={"a": dead("malformed")}))) == ["END"]


def test_a_harmless_job_dead_lettered_as_crashed_is_counted() -> None:
    found = check([sent()], [], Facts(dead={"a": dead("crashed")}))
    assert (broken(found), found.innocents) == ([], ["a"])


def test_a_job_both_done_and_dead_needs_a_fault_that_explains_it() -> None:
    both = Facts(done={"a": {"run": "r1"}}, dead={"a": dead("crashed")})
    lives = [Life(0, 1, 0.0)]
    assert broken(check([sent()], RAN, both, lives=lives)) == ["I2"]
    cut_off = [Span("blackhole", 0.9, 4.0, frozenset({0}))]
    assert broken(check([sent()], RAN, both, lives=lives, spans=cut_off)) == []


TWICE = [line(1.0, START), line(4.0, START, 2, delivery=2), line(4.1, FINISH, 2, delivery=2)]
RECORD = Facts(done={"a": {"run": "r1"}})


@pytest.mark.parametrize(
    ("spans", "died", "explained"),
    [
        ([], 0.0, False),
        ([], 2.0, True),
        ([Span("freeze_worker", 1.5, 5.0, frozenset({0}))], 0.0, True),
        ([Span("freeze_worker", 1.5, 5.0, frozenset({1}))], 0.0, False),
        ([Span("kill_server", 1.5, 2.0)], 0.0, True),
        ([Span("delete_consumer", 1.5, 2.0, lane=("default", "normal"))], 0.0, True),
        ([Span("delete_consumer", 1.5, 2.0, lane=("default", "low"))], 0.0, False),
        ([Span("fill_storage", 1.5, 2.0)], 0.0, False),
    ],
)
def test_a_second_start_needs_a_fault_of_the_worker_that_held_the_job(
    spans: list[Span], died: float, explained: bool
) -> None:
    lives = [Life(0, 1, 0.0, died), Life(1, 2, 0.0)]
    found = check([sent()], TWICE, RECORD, spans=spans, lives=lives)
    assert found.duplicates == 1
    assert found.unexplained == ([] if explained else ["a"])


@pytest.mark.parametrize(("answer", "explained"), [("may run twice", True), ("", True), ("moved", False)])
def test_a_second_start_is_explained_by_a_change_of_priority_that_announced_it(
    answer: str, explained: bool
) -> None:
    history = History(started=0.0, sent=[sent()], moves=[Move("a", "high", 0.5, answer)])
    found = Checker(history, TWICE, RECORD, []).check([])
    assert found.unexplained == ([] if explained else ["a"])


def test_a_second_start_is_explained_by_a_blocked_loop() -> None:
    assert check([sent()], TWICE, RECORD, blocked=[(1, 0.0, 1.0)]).unexplained == []
    assert check([sent()], TWICE, RECORD, blocked=[(2, 0.0, 1.0)]).unexplained == ["a"]


def test_more_than_a_few_unexplained_starts_break_an_invariant() -> None:
    often = [line(float(at), START, delivery=at) for at in range(1, 5)] + [line(9.0, FINISH)]
    assert broken(check([sent()], often, RECORD)) == ["I3", "I3", "I3"]


def test_a_second_start_after_a_move_is_not_a_duplicate() -> None:
    lines = [line(1.0, START), line(1.1, CANCELLED), line(2.0, START, 2, hop=1), line(2.1, FINISH, 2, hop=1)]
    assert check([sent()], lines, RECORD).duplicates == 0


def test_a_record_without_a_finish_is_found() -> None:
    assert broken(check([sent()], [line(1.0, START)], RECORD)) == ["JOURNAL"]


def test_messages_left_in_a_lane_are_found() -> None:
    left = Facts(
        stored=[Stored("jobs.work.default.normal.effect.-.a", 7, {})],
        consumers={"default/normal": {**IDLE, "num_ack_pending": 1}, "default/low": IDLE},
    )
    assert sorted(broken(check([sent()], [], left))) == ["END", "LANE", "STRANDED"]


def test_errors_in_a_log_and_a_growing_worker_are_found() -> None:
    lives = [Life(0, 1, 0.0, peak_fds=1000), Life(1, 2, 0.0, 5.0, code=1, wanted="stop")]
    assert broken(check([], [], lives=lives, log=["worker-0: Traceback"])) == ["I5", "I5", "I5"]


def test_quantiles_are_those_of_the_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert quantiles(values) == (100, 50.0, 99.0, 100.0)
    assert str(quantiles([])) == "none"
