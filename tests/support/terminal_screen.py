"""What a terminal shows after the output of a program: enough of its escape sequences for our own screens."""

from __future__ import annotations

import re
import unicodedata

_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|([^\x1b\r\n]+)")


def render(text: str, columns: int, rows: int) -> list[str]:
    """The lines of the screen, without colours and without blanks at their ends."""
    screen = [[" "] * columns for _ in range(rows)]
    row = column = 0
    for match in _PART.finditer(text):
        if match[3] is not None:
            for character in match[3]:
                wide = 2 if unicodedata.east_asian_width(character) in "WF" else 1
                assert column + wide <= columns, f"row {row} is wider than the screen: {match[3]!r}"
                screen[row][column : column + wide] = [character, *[""] * (wide - 1)]
                column += wide
        elif match[0] == "\r":
            column = 0
        elif match[0] == "\n":
            row = min(rows - 1, row + 1)
        elif match[2] == "H":
            there = [int(number) for number in match[1].split(";") if number] or [1, 1]
            row, column = min(rows, there[0]) - 1, there[1] - 1
        elif (match[1], match[2]) == ("2", "J"):
            screen = [[" "] * columns for _ in range(rows)]
        elif (match[1], match[2]) == ("2", "K"):
            screen[row] = [" "] * columns
        else:
            assert match[2] in "mhlJK", f"unknown sequence {match[0]!r}"
    return ["".join(line).rstrip() for line in screen]
