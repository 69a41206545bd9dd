"""The live view of `top`: frames, keys and counts, without a terminal and without a server."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetjobs.cli.live.collector import QUEUES_AT_ONCE, due_queues
from jetjobs.cli.live.columns import width_of
from jetjobs.cli.live.frame import Frame, frame
from jetjobs.cli.live.plain_text import plain
from jetjobs.cli.live.rate_history import SECONDS, RateHistory
from jetjobs.cli.live.snapshot import Content, Data, Snapshot, has_worker
from jetjobs.cli.live.view_state import (
    DOWN,
    END,
    ENTER,
    ESCAPE,
    HOME,
    PAGE_DOWN,
    RUBOUT,
    TAB,
    UP,
    Action,
    Cancel,
    Page,
    PauseQueue,
    ResumeQueue,
    Say,
    View,
    press,
)
from jetjobs.cli.terminal.screen import split_keys
from jetjobs.model.job import JobState
from jetjobs.model.views.queue_info import Pause
from tests.support import live_sample as sample

PAGES: dict[str, tuple[Page, Content | None]] = {
    "queues": (Page("queues"), None),
    "running": (Page("running"), None),
    "queue": (Page("queue", ("mail",)), Content(jobs=[sample.job("j1", "send", 5)], more=True)),
    "gone": (Page("queue", ("nosuch",)), Content(error="queue 'nosuch' does not exist")),
    "job": (Page("job", ("mail", "send", sample.LOST)), sample.job_content()),
    "dead": (Page("dead", ("mail",)), sample.letters_content()),
    "workers": (Page("workers"), None),
    "worker": (Page("worker", ("web-1-4f2a1c",)), None),
    "schedules": (Page("schedules"), sample.schedules_content()),
    "help": (Page("help"), None),
}
HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\t\r\n世界" + "x" * 1_000_000


def text_of(drawn: Frame) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in drawn.lines)


def styles_of(drawn: Frame) -> dict[str, str]:
    return {text.strip(): style for line in drawn.lines for text, style in line}


def played(keys: list[str], data: Data | None = None, view: View | None = None) -> tuple[View, list[Action]]:
    """The view and the actions after these keys, at 80 by 24."""
    view, actions, data = view or View(), [], data or sample.data()
    for key in keys:
        view, action = press(view, key, frame(view, data, 80, 24).extent)
        actions += [action] if action is not None else []
    return view, actions


# Frames


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(PAGES)), st.integers(1, 200), st.integers(1, 60), st.integers(0, 9), st.text(max_size=3)
)
def test_every_page_fits_every_screen(name: str, columns: int, rows: int, at: int, search: str) -> None:
    page, content = PAGES[name]
    view = View((Page("queues"), page._replace(at=at)), filter=search)
    drawn = frame(view, sample.data(content), columns, rows)
    assert len(drawn.lines) == rows
    for line in drawn.lines:
        assert sum(width_of(text) for text, _ in line) <= columns
        assert all(text.isprintable() for text, _ in line)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_no_name_steers_the_terminal_or_takes_long_to_draw(name: str) -> None:
    base = sample.snapshot()
    queues = [replace(base.queues[0], queue=HOSTILE, pause=Pause(None, HOSTILE, HOSTILE))]
    running = [
        replace(base.running[1], task=HOSTILE, worker=HOSTILE, message=HOSTILE, queue=HOSTILE, reason=HOSTILE)
    ]
    workers = [
        replace(base.workers[0], key=HOSTILE, name=HOSTILE, phase=HOSTILE, host=HOSTILE, refused=(HOSTILE,))
    ]
    job = replace(running[0], error=HOSTILE, traceback=HOSTILE, schedule=HOSTILE, history=({"type": HOSTILE},))
    letters = [replace(sample.letters_content().letters[0], task=HOSTILE, text=HOSTILE, error_type=HOSTILE)]
    content = Content(jobs=running, job=job, arguments=HOSTILE, letters=letters, error=HOSTILE)
    page, _ = PAGES[name]
    subject = {"queue": (HOSTILE,), "worker": (HOSTILE,), "job": (HOSTILE, HOSTILE, HOSTILE)}.get(page.kind, ())
    view = View((page._replace(subject=subject),))
    data = Data(replace(base, queues=queues, running=running, workers=workers), content, HOSTILE, note=HOSTILE)
    started = time.process_time()
    drawn = frame(view, data, 100, 30)
    assert time.process_time() - started < 0.5
    assert len(text_of(drawn)) < 100 * 30 + 30
    assert all(text.isprintable() for line in drawn.lines for text, _ in line)
    assert {sum(width_of(text) for text, _ in line) for line in drawn.lines} <= {0, 100}


def test_columns_are_left_out_from_the_right_and_a_name_keeps_its_room() -> None:
    heads = [
        text_of(frame(View(), sample.data(), columns, 24)).splitlines()[3].split() for columns in (40, 80, 140)
    ]
    assert heads[0] == ["QUEUE", "STATE", "QUEUED"]
    assert heads[1] == [*heads[0], "RUNNING", "DEAD", "OUT/s", "IN/s"]
    assert heads[2] == [*heads[1], "OLDEST", "LATER", "WORKERS"]
    long = replace(sample.queue("notifications-eu", queued=3), dead=1)
    shown = text_of(frame(View(), Data(Snapshot(1.0, [long])), 80, 24))
    assert "notifications-eu" in shown
    assert "IN/s" not in shown


def test_paused_is_yellow_dead_is_red_and_late_is_orange() -> None:
    styles = styles_of(frame(View(), sample.data(), 140, 30))
    assert styles["paused"] == "yellow"
    assert styles["12"] == "red" or styles["3"] == "red"
    assert styles["1m35s"] == styles["no worker"] == styles["worker lost, back in ≤ 21 s"] == "dark_orange"
    late = styles_of(frame(View((Page("schedules"),)), sample.data(sample.schedules_content()), 140, 30))
    assert late["late"] == "dark_orange"


def test_without_colour_the_selected_row_still_shows() -> None:
    lines = frame(View(), sample.data(), 80, 24).painted(colour=False)
    assert "\x1b[7m" in lines[4]
    assert lines[4].count("▸") == 1
    assert not any(code in "".join(lines) for code in ("\x1b[3", "\x1b[4", ";3", ";4"))


def test_numbers_are_aligned_to_the_right() -> None:
    lines = text_of(frame(View(), sample.data(), 140, 30)).splitlines()
    end = lines[3].index("QUEUED") + len("QUEUED")
    assert [line[:end].split()[-1] for line in lines[4:10]] == ["12", "0", "1.20M", "39", "410", "96"]
    assert all(line[end] == " " and line[end - 1] != " " for line in lines[4:10])


def test_of_500_queues_only_those_on_the_screen_are_drawn_and_the_selected_one_is_among_them() -> None:
    queues = [sample.queue(f"queue-{i:03}", queued=i) for i in range(500)]
    data = Data(Snapshot(1.0, queues))
    view, _ = played([END], data)
    drawn = frame(view, data, 80, 24)
    assert drawn.visible[-1] == "queue-499"
    assert len(drawn.visible) < 24
    assert "▸ queue-499" in text_of(drawn)
    assert "of 500" in text_of(drawn)
    view, _ = played([HOME, PAGE_DOWN, PAGE_DOWN], data, view)
    drawn = frame(view, data, 80, 24)
    assert "▸ " + drawn.visible[len(drawn.visible) // 2] in text_of(drawn)


def test_the_title_says_that_the_server_is_silent_and_that_updates_are_held_back() -> None:
    assert "NO ANSWER for 5 s, retrying" in text_of(frame(View(), sample.data(silent_s=5.2), 80, 24))
    assert "FROZEN at" in text_of(frame(View(frozen=True), sample.data(), 80, 24))


def test_an_empty_server_says_what_to_do() -> None:
    assert "jetjobs setup apply" in text_of(frame(View(), Data(Snapshot(1.0)), 140, 24))
    assert "jetjobs setup apply" not in text_of(frame(View(), Data(Snapshot(0.0)), 140, 24))
    assert "jetjobs worker" in text_of(frame(View((Page("workers"),)), Data(Snapshot(1.0)), 140, 24))


def test_the_page_of_a_job_shows_arguments_failures_and_the_traceback() -> None:
    page, content = PAGES["job"]
    shown = text_of(frame(View((page,)), sample.data(content), 80, 40))
    for text in (
        f"job         {sample.LOST}",
        '"token": "***"',
        "attempt 2: TimeoutError: no answer within 10 s",
        "due         in 12.0 s",
        "SMTPServerBusy: 421 try again later",
    ):
        assert text in shown
    running = replace(sample.snapshot().running[0], error=None)
    shown = text_of(frame(View((page,)), sample.data(Content(job=running, arguments="{}")), 80, 40))
    assert "worker lost, back in ≤ 21 s" in shown
    assert "35 %" in shown


# Counts and rates


@given(*[st.integers(0, 50)] * 5)
def test_running_and_busy_slots_agree(queued: int, delivered: int, slots: int, lost: int, busy: int) -> None:
    state = sample.queue("mail", queued=queued, running=delivered)
    worker = sample.worker("w", min(busy, 30), slots, {"mail": (busy, slots)})
    jobs = [sample.job(f"j{i}", "send", 1) for i in range(lost)]
    snapshot = Snapshot(1.0, [state], jobs, [worker], lost={job.id: 1.0 for job in jobs})
    counts = snapshot.counts(state)
    assert counts.running <= counts.slots == slots
    assert counts.queued + counts.running == queued + delivered
    assert snapshot.total == counts
    if delivered - lost <= slots:
        assert counts.running == max(0, delivered - lost)


def test_jobs_of_a_quiet_worker_run_until_they_end() -> None:
    state = sample.queue("mail", running=3)
    worker = sample.worker("w", 3, 10, {"mail": (3, 10)}, "quiet")
    assert Snapshot(1.0, [state], [], [worker]).counts(state) == (0, 3, 3)


def test_a_worker_of_the_same_name_that_started_later_does_not_run_the_job() -> None:
    job = sample.job("j1", "send", 60, worker="web-1")
    worker = sample.worker("web-1", 1, 10, {"mail": (1, 10)})
    assert has_worker(job, [worker])
    assert not has_worker(job, [replace(worker, started_at=sample.ago(10))])
    assert not has_worker(job, [replace(worker, name="web-2")])
    assert not has_worker(job, [])


@given(st.lists(st.tuples(st.floats(0.05, 30), st.floats(0, 1e5)), min_size=1, max_size=40))
def test_the_history_of_rates_counts_every_job_of_the_last_minute(steps: list[tuple[float, float]]) -> None:
    history, at = RateHistory(), sample.NOW
    for length, rate in steps:
        history.add(at, at := at + timedelta(seconds=length), rate, 2 * rate)
    came, went = history.series(at)
    assert len(came) == len(went) == SECONDS
    known = [(a, b) for a, b in zip(came, went, strict=True) if a is not None and b is not None]
    top = max(rate for _, rate in steps)
    assert all(0 <= a <= top * 1.001 and abs(b - 2 * a) <= 0.001 * b + 1e-6 for a, b in known)
    assert len(known) >= min(SECONDS, sum(length for length, _ in steps)) - 2


def test_every_queue_is_read_in_turn_and_those_on_the_screen_each_time() -> None:
    names = [f"q{i:03}" for i in range(500)]
    visible = names[100:120]
    read_at = dict.fromkeys(due_queues(names, visible, {}), 1)
    assert read_at.keys() == set(names)  # the first update shows all of them
    for number in range(2, 18):
        chosen = due_queues(names, visible, read_at)
        assert len(chosen) == QUEUES_AT_ONCE
        assert chosen[:20] == visible
        read_at |= dict.fromkeys(chosen, number)
    assert min(read_at.values()) > 1
    assert due_queues(names[:3], ["gone", "q001"], {}) == ["q001", "q000", "q002"]


# Keys


@pytest.mark.parametrize(
    ("keys", "pages"),
    [
        ([ENTER], ["queues", "queue billing"]),
        ([DOWN, DOWN, DOWN, ENTER], ["queues", "queue mail"]),
        ([TAB, ENTER], ["queues", f"job mail send {sample.LOST}"]),
        ([TAB, DOWN, DOWN, DOWN, UP, ENTER], ["queues", "job imports reindex 01a1e2531c847834a12f8c60fdba4d6f"]),
        ([ENTER, ESCAPE], ["queues"]),
        ([ESCAPE], ["queues"]),
        (["w"], ["queues", "workers"]),
        (["w", ENTER], ["queues", "workers", "worker web-1-4f2a1c"]),
        (["w", "w"], ["queues"]),
        (["w", "s", "w"], ["queues", "schedules", "workers"]),
        (["s"], ["queues", "schedules"]),
        (["?"], ["queues", "help"]),
        (["?", "?"], ["queues"]),
        (["d"], ["queues", "dead billing"]),
        (["d", "d"], ["queues", "dead"]),
        (["d", "d", "d"], ["queues"]),
        ([TAB, "d"], ["queues", "dead"]),
        (["x", "Z", "left"], ["queues"]),
    ],
)
def test_keys_open_and_leave_pages(keys: list[str], pages: list[str]) -> None:
    view, actions = played(keys)
    assert [" ".join([page.kind, *page.subject]) for page in view.pages] == pages
    assert actions == []


@pytest.mark.parametrize(
    ("keys", "action"),
    [
        ([TAB, "c", "y"], Cancel("mail", "send", sample.LOST)),
        ([TAB, ENTER, "c", "y"], Cancel("mail", "send", sample.LOST)),
        ([TAB, "c", "n"], Say("nothing was changed")),
        ([TAB, "c", ENTER], Say("nothing was changed")),
        ([TAB, "c", ESCAPE], Say("nothing was changed")),
        (["c"], Say("select a job to cancel it")),
        (["P", *"disk full", ENTER], PauseQueue("billing", "disk full")),
        (["P", ENTER], PauseQueue("billing", "")),
        (["P", *"x", ESCAPE], Say("nothing was changed")),
        ([ENTER, "P", *"ab", RUBOUT, ENTER], PauseQueue("billing", "a")),
        ([DOWN] * 4 + ["P", "y"], ResumeQueue("reports")),
        ([DOWN] * 4 + [ENTER, "P", "y"], ResumeQueue("reports")),
        ([DOWN] * 4 + ["P", "n"], Say("nothing was changed")),
        ([TAB, "P"], Say("select a queue to pause or resume it")),
        (["w", "P"], Say("select a queue to pause or resume it")),
    ],
)
def test_keys_that_change_something_ask_first(keys: list[str], action: Action) -> None:
    view, actions = played(keys)
    assert actions == [action]
    assert view.prompt is None
    *before, last = keys
    assert not [a for a in played(before)[1] if not isinstance(a, Say)], last


def test_a_dead_job_and_a_job_without_id_cannot_be_cancelled() -> None:
    _, said = played(["c"], sample.data(sample.letters_content()), View((Page("dead"),)))
    assert "dead already" in str(said)
    jobs = Content(jobs=[replace(sample.job("#17", "send", 1), state=JobState.QUEUED, queue="default")])
    for key in ("c", ENTER):
        _, said = played([key], sample.data(jobs), View((Page("queue", ("default",)),)))
        assert "has no id yet" in str(said)


def test_a_filter_applies_while_it_is_typed_and_escape_removes_it() -> None:
    view, _ = played(["/", *"IMPX", RUBOUT])
    assert view.search == "IMP"
    shown = text_of(frame(view, sample.data(), 80, 24))
    assert "filter: IMP_" in shown
    assert "imports" in shown
    assert "billing" not in shown
    assert "1.20M queued" in shown  # the heading counts everything
    view, _ = played([ENTER], view=view)
    assert (view.filter, view.prompt) == ("IMP", None)
    assert played([ENTER], view=view)[0].page.subject == ("imports",)
    assert played([ESCAPE], view=view)[0].filter == ""
    assert played(["/", *"q"])[0].quit is False
    assert len(played(["/", *"x" * 500])[0].search) <= 200


def test_the_selection_follows_its_item_when_others_come_and_go() -> None:
    view, _ = played([DOWN, DOWN])
    base = sample.snapshot()
    more = Data(replace(base, queues=[sample.queue("aaa"), sample.queue("aab"), *base.queues]))
    assert "▸ imports" in text_of(frame(view, more, 80, 24))
    fewer = Data(replace(base, queues=[q for q in base.queues if q.queue != "imports"]))
    assert "▸ mail" in text_of(frame(view, fewer, 80, 24))


def test_a_page_of_text_scrolls_to_its_end_and_not_beyond() -> None:
    page, content = PAGES["job"]
    data = sample.data(content)
    view, _ = played([DOWN] * 200, data, View((page,)))
    drawn = text_of(frame(view, replace(data), 80, 14))
    assert "SMTPServerBusy: 421 try again later" in drawn
    view, _ = played([UP], data, view)
    assert view.page.at < 30


def test_space_freezes_and_q_quits() -> None:
    assert played([" "])[0].frozen
    assert not played([" ", " "])[0].frozen
    assert played(["w", "q"])[0].quit


@given(st.lists(st.sampled_from(["\x1b[A", "\x1bOB", "\x1b[5~", "\x1b[200~", "\x1b[1;5C", "a", "é", "\r", "\t"])))
def test_keys_are_told_apart(parts: list[str]) -> None:
    names = {
        "\x1b[A": "up",
        "\x1bOB": "down",
        "\x1b[5~": "page up",
        "\r": "enter",
        "\t": "tab",
        "a": "a",
        "é": "é",
    }
    assert split_keys("".join(parts)) == [names[part] for part in parts if part in names]


# In a pipe


def test_a_pipe_gets_everything_and_no_control_characters() -> None:
    odd = sample.job("j1", "count", 9, 0.5, "a\x1b[2J\tb\x07")
    base = sample.snapshot()
    lines = plain(replace(base, running=[odd, sample.job("j2", "count", 9, 0.5, "x" * 300)]))
    assert all(line.isprintable() for line in lines)
    assert "x" * 300 in "\n".join(lines)
    head = next(line for line in lines if line.startswith("TASK"))
    assert [line.index("  j") + 2 for line in lines if line.startswith("count")] == [head.index("JOB")] * 2
