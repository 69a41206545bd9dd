"""Tables: whole in a pipe, cut to the width of a terminal."""

from __future__ import annotations

import pytest

from jetjobs.cli.output import fit, shorten
from jetjobs.cli.run_dead import one_line, printable


@pytest.mark.parametrize(
    ("widths", "room", "expected"),
    [
        ([10, 40, 9], 100, [10, 40, 9]),  # fits as it is
        ([10, 40, 9], 40, [10, 17, 9]),
        ([32, 40, 9], 53, [32, 8, 9]),
        ([32, 40, 9], 40, [19, 8, 9]),  # then the next column gives way
        ([32, 4, 9], 20, [8, 4, 9]),  # what is short already stays
        ([32, 40, 9], 10, [8, 8, 9]),  # nobody is cut to nothing
    ],
)
def test_columns_give_way_in_order(widths: list[int], room: int, expected: list[int]) -> None:
    assert fit(widths, ["ID", "ERROR", "DIED"], (1, 0), room) == expected


def test_what_is_cut_says_so() -> None:
    assert (shorten("exhausted", 9), shorten("exhausted", 6), shorten("", 0)) == ("exhausted", "exhau…", "")


def test_text_of_an_error_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2J\x07\r\n\tb") == "a\\x1b[2J\\x07\\r\n\tb"
    assert one_line("a\n\x1b b" + "c" * 500) == "a \\x1b b" + "c" * 195
