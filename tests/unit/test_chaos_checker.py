"""The checker of the chaos run finds every broken invariant."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import clock
from tests.chaos.answers import false_answers
from tests.chaos.check import FORGOTTEN, Checker, Findings
from tests.chaos.facts import Facts, Stored
from tests.chaos.history import (
    CONFIRMED,
    DUPLICATE,
    OLDER_STORE,
    REFUSED,
    UNCONFIRMED,
    Ask,
    History,
    Life,
    Move,
    Replay,
    Sent,
    Span,
)
from tests.chaos.journal import CANCELLED, FAIL, FINISH, START, Line
from tests.chaos.measure import quantiles, recoveries
from tests.chaos.timing import wrong_times

IDLE = {"num_pending": 0, "num_ack_pending": 0}


def sent(kind: str = "plain", task: str = "effect", answer: str = CONFIRMED, job_id: str = "a") -> Sent:
    return Sent(kind, 1, "default", task, 1.0, answer, 1.1, job_id, "r1" if answer == CONFIRMED else "")


def line(at: float, event: str, pid: int = 1, *, task: str = "effect", hop: int = 0, delivery: int = 1) -> Line:
    return Line(at, pid, event, task, "a", "r1", hop, 1, delivery, "default/normal", 100)


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
        ([Span("slow_answers", 1.5, 5.0, frozenset({0}), note="all")], 0.0, True),
        ([Span("slow_answers", 1.5, 5.0, frozenset({0}), note="confirmations")], 0.0, False),
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


# An older store


OLDER = Span(OLDER_STORE, 10.0, 13.0, stopped=12.0)
"""The store of 10.0 came back at 13.0; what was stored until 12.0 is forgotten."""


@pytest.mark.parametrize(
    ("at", "answered", "lost"),
    [(9.0, 9.5, 1), (9.9, 10.1, 0), (11.0, 11.1, 0), (11.9, 12.1, 0), (11.0, 13.5, 1), (13.1, 13.2, 1)],
    ids=["before", "during the copy", "after the copy", "at the stop", "confirmed later", "after the restart"],
)
def test_only_a_job_confirmed_between_the_copy_and_the_stop_may_be_forgotten(
    at: float, answered: float, lost: int
) -> None:
    job = Sent("plain", 100, "default", "effect", at, CONFIRMED, answered, "a", "r1")
    found = check([job], [], spans=[OLDER])
    assert found.lost == lost
    assert found.outcomes["plain", FORGOTTEN] == 1 - lost


def test_a_job_that_was_seen_alive_after_the_restart_may_not_be_forgotten() -> None:
    first = Sent("keyed", 100, "default", "effect", 11.0, CONFIRMED, 11.1, "a", "r1")
    again = Sent("keyed", 200, "default", "effect", 14.0, DUPLICATE, 14.1, "a", "r1")
    assert check([first, again], [], spans=[OLDER]).lost == 1


@pytest.mark.parametrize(("finished", "explained"), [(4.0, False), (9.0, True), (11.0, True)])
def test_a_message_comes_back_with_the_older_store_if_it_was_settled_after_the_copy(
    finished: float, explained: bool
) -> None:
    lines = [line(finished - 1, START), line(finished, FINISH), line(20.0, START, 2), line(21.0, FINISH, 2)]
    found = check([sent()], lines, RECORD, spans=[OLDER], lives=[Life(0, 1, 0.0), Life(1, 2, 0.0)])
    assert found.unexplained == ([] if explained else ["a"])


def test_a_body_of_which_the_server_forgot_a_part_is_no_wrong_ending() -> None:
    torn = Facts(dead={"a": dead("malformed")})
    job = Sent("large", 100, "default", "large", 11.0, CONFIRMED, 14.0, "a", "r1")
    assert broken(check([job], [], torn, spans=[OLDER])) == []
    assert broken(check([job], [], torn)) == ["END"]


def test_a_job_dead_lettered_because_of_its_own_next_place_is_found() -> None:
    letter = {"type": "IdTaken", **dead("malformed", "r1")}
    found = check([sent()], RAN, Facts(done={"a": {"run": "r1"}}, dead={"a-s7": letter}))
    assert broken(found) == ["I2"]


def test_the_record_of_a_cancelled_job_may_be_forgotten_with_the_older_store() -> None:
    asked = Ask("cancel", "a", "r1", 10.5, "cancelled", 11.0)
    history = History(started=0.0, sent=[sent("cancelled")], asks=[asked], spans=[OLDER])
    assert Checker(history, [], Facts(), []).check([]).outcomes == {("cancelled", FORGOTTEN): 1}
    asked.at, asked.answered_at = 14.0, 15.0
    assert broken(Checker(history, [], Facts(), []).check([])) == ["I1"]


def test_a_cancelled_job_may_start_from_a_delivery_behind_a_broken_link_and_is_stopped() -> None:
    held_back = [Span("blackhole", 1.0, 2.9, workers=frozenset([0]))]
    stopped = [line(3.0, START), line(3.1, CANCELLED)]
    assert answers(ask("cancel", "cancelled"), stopped, spans=held_back) == []
    ran_on = [line(3.0, START), line(3.1, FINISH)]
    assert len(answers(ask("cancel", "cancelled"), ran_on, spans=held_back)) == 1


def test_a_cancel_that_got_no_answer_may_have_removed_the_job() -> None:
    history = History(started=0.0, sent=[sent("cancelled")], asks=[Ask("cancel", "a", "r1", 2.0)])
    assert Checker(history, [], Facts(), []).check([]).lost == 0
    history.asks[0].answer = "cancelled"
    assert Checker(history, [], Facts(), []).check([]).lost == 1


# Answers


def answers(
    ask: Ask,
    lines: list[Line],
    facts: Facts | None = None,
    *,
    due_at: float = 0.0,
    spans: list[Span] | None = None,
) -> list[str]:
    job = Sent("plain", 100, "default", "effect", 1.0, CONFIRMED, 1.1, "a", "r1", due_at=due_at)
    history = History(started=0.0, sent=[job], asks=[ask], spans=spans or [], lives=[Life(0, 1, 0.0)])
    return [text for text, _ in false_answers(history, lines, facts or Facts())]


def ask(action: str, answer: str, at: float = 2.0, moment: float = 0.0) -> Ask:
    return Ask(action, "a", "r1", at, answer, at + 0.1, moment)


LATE_RUN = [line(1.5, START), line(4.0, FINISH)]


def test_a_worker_that_was_cut_off_may_have_ended_a_job_before_its_cancel_was_confirmed() -> None:
    asked = Ask("cancel", "a", "r1", 2.0, "cancelled", 6.0)
    cut_off = [Span("blackhole", 1.9, 9.0)]
    assert len(answers(asked, LATE_RUN)) == 1
    assert answers(asked, LATE_RUN, spans=cut_off) == []
    assert len(answers(ask("cancel", "cancelled"), LATE_RUN, spans=cut_off)) == 1  # it ended later


@pytest.mark.parametrize(
    ("answer", "lines", "false"),
    [
        ("cancelled", [], False),
        ("cancelled", [line(1.5, START), line(2.0, CANCELLED)], False),
        ("cancelled", LATE_RUN, True),
        ("cancelled", [line(3.0, START), line(3.1, CANCELLED)], True),
        ("cancelled", [line(1.2, START), line(1.5, START, 2), line(2.0, CANCELLED, 2), line(4.0, FINISH)], False),
        ("unconfirmed", LATE_RUN, False),
        ("not found", [], True),
    ],
    ids=["removed", "stopped", "ran on", "started later", "a worker without lease ran on", "unsure", "not found"],
)
def test_a_cancel_must_not_be_confirmed_for_a_job_that_runs_on(
    answer: str, lines: list[Line], false: bool
) -> None:
    assert bool(answers(ask("cancel", answer), lines)) is false


@pytest.mark.parametrize(
    ("action", "answer", "first", "hop", "false"),
    [
        ("run_now", "too late", 3.0, 1, True),
        ("run_now", "too late", 20.0, 0, False),
        ("run_now", "moved", 3.0, 1, False),
        ("run_now", "moved", 20.0, 0, True),
        ("reschedule", "too late", 30.0, 1, True),
        ("reschedule", "too late", 20.0, 0, False),
        ("reschedule", "moved", 30.0, 1, False),
        ("reschedule", "moved", 20.0, 1, True),
    ],
)
def test_the_answer_to_a_move_must_say_whether_the_job_moved(
    action: str, answer: str, first: float, hop: int, false: bool
) -> None:
    started = [line(first, START, hop=hop)]
    assert bool(answers(ask(action, answer, moment=30.0), started, due_at=20.0)) is false


def test_a_change_of_priority_that_was_made_must_not_be_called_too_late() -> None:
    history = History(started=0.0, sent=[sent()], moves=[Move("a", "high", 2.0, "too late", done=True)])
    assert len(false_answers(history, [], Facts())) == 1
    history.moves.insert(0, Move("a", "high", 1.5))  # an earlier one without an answer may have done it
    assert false_answers(history, [], Facts()) == []


@pytest.mark.parametrize(
    ("answer", "facts", "false"),
    [
        ("100", Facts(), False),
        ("200", Facts(), True),
        ("failed: crashed", Facts(), True),
        ("failed: crashed", Facts(dead={"a": dead("crashed")}), False),
        ("cancelled", Facts(), True),
        ("expired", Facts(), True),
        ("", Facts(), False),
    ],
)
def test_a_result_must_be_that_of_the_job(answer: str, facts: Facts, false: bool) -> None:
    assert bool(answers(ask("result", answer), RAN, facts)) is false


def test_a_finished_job_without_record_may_be_unknown_after_storage_was_full() -> None:
    assert answers(ask("get", "not found"), RAN, spans=[Span("fill_storage", 0.5, 1.5)]) == []
    assert answers(ask("result", "expired"), RAN, spans=[Span("fill_storage", 0.5, 1.5)]) == []
    assert len(answers(ask("get", "not found"), [], spans=[Span("fill_storage", 0.5, 1.5)])) == 1


def test_answers_about_a_job_that_the_server_forgot_are_not_false() -> None:
    assert answers(ask("get", "not found"), [], spans=[Span(OLDER_STORE, 0.5, 1.9, stopped=1.5)]) == []


def test_a_refused_job_that_ran_is_found_by_its_number() -> None:
    refused = Sent("plain", 100, "default", "effect", 1.0, REFUSED, 1.1)
    history = History(started=0.0, sent=[refused])
    assert len(false_answers(history, RAN, Facts())) == 1
    assert false_answers(history, [], Facts()) == []


# Times


@pytest.mark.parametrize(("start", "wrong"), [(7.0, True), (9.5, False), (30.0, False), (3600.0, True)])
def test_a_delayed_job_must_start_when_it_is_due(start: float, wrong: bool) -> None:
    job = Sent("delayed", 100, "default", "effect", 1.0, CONFIRMED, 1.1, "a", "r1", due_at=10.0)
    assert bool(wrong_times(History(started=0.0, sent=[job]), [line(start, START)], Facts())) is wrong


@pytest.mark.parametrize(("expired_at", "wrong"), [(5.0, True), (10.1, False)])
def test_a_job_must_not_expire_before_its_deadline(expired_at: float, wrong: bool) -> None:
    job = Sent("expiring", 100, "default", "effect", 1.0, CONFIRMED, 1.1, "a", "r1", deadline=10.0)
    letter = {**dead("expired"), "stored_at": datetime.fromtimestamp(expired_at, UTC)}
    assert bool(wrong_times(History(started=0.0, sent=[job]), [], Facts(dead={"a": letter}))) is wrong


def test_a_job_must_not_start_after_its_deadline_unless_its_worker_was_frozen() -> None:
    job = Sent("expiring", 100, "default", "effect", 1.0, CONFIRMED, 1.1, "a", "r1", deadline=10.0)
    history = History(started=0.0, sent=[job], lives=[Life(0, 1, 0.0)])
    assert len(wrong_times(history, [line(15.0, START)], Facts())) == 1
    history.spans.append(Span("freeze_worker", 9.9, 14.9, frozenset({0})))
    assert wrong_times(history, [line(15.0, START)], Facts()) == []


def test_recovery_is_measured_from_the_end_of_a_fault_unless_another_follows() -> None:
    spans = [Span("kill_server", 2.0, 4.0), Span("cut", 4.5, 4.5)]
    history = History(started=0.0, sent=[sent()], spans=spans)
    cut, killed = recoveries(history, [line(1.0, START), line(4.2, START), line(5.0, START)])
    assert (cut.kind, killed.kind) == ("cut", "kill_server")
    assert killed.until_started.longest == pytest.approx(0.2)
    assert killed.pause.longest == pytest.approx(2.2)
    assert cut.until_started.longest == pytest.approx(0.5)
    assert cut.until_confirmed.number == 0
    history.spans.append(Span("cut", 4.1, 4.1))
    assert recoveries(history, [line(1.0, START), line(4.2, START)])[1].until_started.number == 0


def test_the_history_of_the_producer_reaches_the_harness(tmp_path: Path) -> None:
    history = History(sent=[sent()], asks=[ask("get", "queued")], producer_trouble=["oops"])
    history.dump(tmp_path / "done")
    other = History(started=clock.now())
    other.load(tmp_path / "done")
    assert (other.sent, other.asks, other.producer_trouble) == (history.sent, history.asks, ["oops"])
