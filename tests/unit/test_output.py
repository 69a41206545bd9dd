"""Output: tables, JSON, names only, colors, and text that cannot control the terminal."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len

from jetjobs.cli.terminal.output import Output
from jetjobs.cli.terminal.palette import dead_style, state_style
from jetjobs.cli.terminal.table import Look, drop, fit
from jetjobs.cli.terminal.text import json_line, one_line, printable, shorten


@pytest.mark.parametrize(
    ("widths", "room", "expected"),
    [
        ([10, 40, 9], 100, [10, 40, 9]),  # fits without a change
        ([10, 40, 9], 40, [10, 17, 9]),
        ([32, 40, 9], 53, [32, 8, 9]),
        ([32, 40, 9], 40, [19, 8, 9]),  # then the next column is narrowed
        ([32, 4, 9], 20, [8, 4, 9]),  # a short column keeps its width
        ([32, 40, 9], 10, [8, 8, 9]),  # every column keeps 8 characters
    ],
)
def test_columns_give_way_in_order(widths: list[int], room: int, expected: list[int]) -> None:
    assert fit(widths, ["ID", "ERROR", "DIED"], (1, 0), room) == expected


def test_what_is_cut_says_so() -> None:
    assert (shorten("exhausted", 9), shorten("exhausted", 6), shorten("", 0)) == ("exhausted", "exhau…", "")


def test_text_of_an_error_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2J\x07\r\n\tb") == "a\\x1b[2J\\x07\\r\n\tb"
    assert one_line("a\n\x1b b" + "c" * 500) == "a \\x1b b" + "c" * 195


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (120, [32, 9, 7, 5, 7]),  # fits without a change
        (60, [32, 9, 7, 5]),
        (57, [32, 9, 7]),
        (51, [32, 9]),
        (42, [32, 8]),
        (40, [32, 6]),  # the second column is cut before it is dropped
        (38, [32]),
        (20, [20]),
        (1, [8]),
    ],
)
def test_columns_go_from_the_right(room: int, expected: list[int]) -> None:
    assert drop([32, 9, 7, 5, 7], room) == expected


def test_a_long_name_gives_way_to_other_columns() -> None:
    assert drop([100, 9, 7], 200) == [100, 9, 7]
    assert drop([100, 9, 7], 80) == [60, 9, 7]
    assert drop([100, 9, 7], 50) == [39, 9]  # it gets the room that is left
    assert drop([63, 6, 8, 20, 10], 40, 20) == [22, 6, 8]
    assert drop([63, 6, 8, 20, 10], 100, 20) == [48, 6, 8, 20, 10]


HEAD, ROWS = ["ID", "STATE", "QUEUE", "TASK"], [["a" * 32, "running", "default", "greet"]]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_a_table_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, 40)
    Output().table(HEAD, ROWS)
    assert capsys.readouterr().out.splitlines() == [f"{'ID':<32}  STATE", "a" * 32 + "  runni…"]


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Output().table(HEAD, ROWS, shrink=(3,))
    assert capsys.readouterr().out.splitlines()[1] == "a" * 32 + "  running  default  greet"


def test_quiet_prints_names_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch, 20)
    Output(quiet=True).table(HEAD, ROWS)
    assert capsys.readouterr().out == "a" * 32 + "\n"
    Output(quiet=True).table(HEAD, ROWS, name=None)  # a table without names
    assert capsys.readouterr().out.startswith("ID")


def test_json_lines_are_the_items_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    document = {"items": [{"id": "a", "at": moment}, {"id": "b"}], "cursor": None}
    Output(lines=True).json(document)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"id": "a", "at": "2026-01-02T00:00:00+00:00"}, {"id": "b"}]
    Output(as_json=True).json(document)
    assert len(json.loads(capsys.readouterr().out)["items"]) == 2
    Output(lines=True).json({"id": "a"})
    assert json.loads(capsys.readouterr().out) == {"id": "a"}
    Output(lines=True).json({"items": [], "cursor": None})
    assert capsys.readouterr().out == ""


def test_json_goes_before_quiet() -> None:
    both = Output(as_json=True, quiet=True)
    assert (both.as_json, both.quiet) == (True, False)


@pytest.mark.parametrize(
    ("variables", "terminal", "flag", "expected"),
    [
        ({}, True, True, True),
        ({}, False, True, False),
        ({"NO_COLOR": "1"}, True, True, False),
        ({"NO_COLOR": ""}, True, True, True),
        ({"TERM": "dumb"}, True, True, False),
        ({"FORCE_COLOR": "1"}, False, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True, True),
        ({"FORCE_COLOR": "1"}, True, False, False),  # --no-color overrides FORCE_COLOR
        ({}, True, False, False),
    ],
)
def test_colour(
    variables: dict[str, str], terminal: bool, flag: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert Output(colour=flag).colour is expected


ESCAPE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\x7f"


def test_nothing_printed_for_people_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.data(f"a{ESCAPE}b")
    out.data(out.paint(ESCAPE, "1"), painted=True)
    out.note(ESCAPE)
    out.error(ESCAPE, ESCAPE, 1)
    out.table(["ID", "WORKER"], [[ESCAPE, f"two\nlines{ESCAPE}"]])
    printed = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in printed.out + printed.err)
    assert len(printed.out.splitlines()) == 4
    assert "a\\x1b]0;pwned" in printed.out


def test_a_value_for_people_is_json_still(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"é": f"{ESCAPE}\u200d😀\U000e0001"}
    Output().data(json_line(value))
    printed = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert "é" in printed
    assert json.loads(printed) == value


def test_a_table_on_a_terminal_has_short_ids_numbers_to_the_right_and_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, 80)
    monkeypatch.setenv("TERM", "xterm-256color")
    head, rows = ["ID", "STATE", "DEAD"], [["a" * 22 + "0123456789", "paused 5m", "7"], ["b", "late", "1,234"]]
    look = Look(right=(2,), ids=0, styles={1: state_style, 2: dead_style})
    Output().table(head, rows, look=look)
    assert capsys.readouterr().out.splitlines() == [
        "ID          STATE       DEAD",
        "0123456789  paused 5m      7",
        "b           late       1,234",
    ]
    monkeypatch.delenv("NO_COLOR")
    Output().table(head, rows, look=look)
    shown = capsys.readouterr().out
    assert "\x1b[33mpaused 5m\x1b[0m" in shown
    assert "\x1b[38;5;208mlate\x1b[0m" in shown
    assert "\x1b[31m1,234\x1b[0m" in shown


def test_a_wide_character_takes_two_columns_and_a_hostile_one_is_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, 20)
    Output().table(["NAME", "N"], [["進捗進捗進捗進捗進捗進捗", "1"], [ESCAPE, "2"]], look=Look(right=(1,)))
    lines = capsys.readouterr().out.splitlines()
    assert all(cell_len(line) <= 20 for line in lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("columns", [1, 10, 40, 80])
def test_a_fact_is_wrapped_to_the_terminal_and_cut_if_it_is_huge(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, columns)
    Output().fact("arguments", "x" * 1_000_000)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= max(33, columns)
    whole = "".join(line[13:].replace(" ", "") for line in lines)
    assert whole.endswith("…(1,000,000characters;--jsonprintsall)")


def test_a_fact_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    Output().fact("arguments", "a  b" * 100_000)
    assert capsys.readouterr().out == "arguments    " + "a  b" * 100_000 + "\n"
