"""Lines of styled text, and tables of them that fit a width. No control character of a name gets through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from jetjobs.cli.terminal.text import one_line

PLAIN, DIM, BOLD = "", "dim", "bold"
PAUSED, DEAD, LATE, GOOD = "yellow", "red", "dark_orange", "green"
BAR, CAME, WENT = "cyan", "bright_blue", "green"
CHOSEN = "chosen"
"""Added to the styles of the selected row."""
GAP = 2
_NAME = 16
"""Columns that a name keeps before other columns are left out."""

Span = tuple[str, str]
"""Text without control characters, and its style: words of the palette."""
Line = list[Span]


class Column(NamedTuple):
    """A column of a table. `cell` gets the item and the width, and returns spans."""

    head: str
    least: int
    cell: Callable[[Any, int], Line]
    most: int = 0
    """How wide it may become on a wide terminal; 0 for its least width."""
    right: bool = False


def clean(text: object, most: int = 200) -> str:
    """Text from elsewhere on one line, with control characters escaped."""
    return one_line(str(text), most)


def width_of(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def clipped(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis, in at most `width` columns."""
    if width_of(text) <= width:
        return text
    if width < 1:
        return ""
    return (text[: width - 1] if text.isascii() else set_cell_size(text, width - 1)) + "…"


def fitted(spans: Line, width: int, *, right: bool = False) -> Line:
    """The spans in exactly `width` columns."""
    shown: Line = []
    left = width
    for text, style in spans:
        text = clipped(text, left)
        left -= width_of(text)
        if text:
            shown.append((text, style))
    if left > 0:
        shown.insert(0 if right else len(shown), (" " * left, PLAIN))
    return shown


def widths(columns: Sequence[Column], room: int, first: int = 0) -> list[int]:
    """The widths of the columns that fit: others are left out from the right, and room that is left is shared.

    The first column becomes as wide as `first` before the others get anything.
    """
    kept = [column.least for column in columns]
    kept[0] = max(kept[0], min(first, _NAME))
    while len(kept) > 1 and sum(kept) + GAP * (len(kept) - 1) > room:
        kept.pop()
    left = room - sum(kept) - GAP * (len(kept) - 1)
    if left < 0:
        return [max(1, room)]
    wanted = max(0, min(first, columns[0].most or first) - kept[0])
    kept[0] += min(left, wanted)
    left -= min(left, wanted)
    wanted_more = [max(0, column.most - size) for column, size in zip(columns[1:], kept[1:], strict=False)]
    return [kept[0], *(size + more for size, more in zip(kept[1:], shares(wanted_more, left), strict=True))]


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Parts of the room: as much as is wanted, or a fair share.

    >>> shares([2, 50, 3], 20), shares([9, 9, 9], 10), shares([1, 1], 0)
    ([2, 15, 3], [3, 3, 4], [0, 0])
    """
    given = [0] * len(wanted)
    left = room
    for number, index in enumerate(sorted(range(len(wanted)), key=lambda i: wanted[i])):
        given[index] = min(wanted[index], left // (len(wanted) - number))
        left -= given[index]
    return given


def heading(columns: Sequence[Column], kept: Sequence[int]) -> Line:
    line: Line = []
    for column, width in zip(columns, kept, strict=False):
        if line:
            line.append((" " * GAP, BOLD))
        line += fitted([(column.head, BOLD)], width, right=column.right)
    return line


def row(columns: Sequence[Column], kept: Sequence[int], item: Any) -> Line:
    line: Line = []
    for column, width in zip(columns, kept, strict=False):
        if line:
            line.append((" " * GAP, PLAIN))
        line += fitted(column.cell(item, width), width, right=column.right)
    return line


def bar(share: float, width: int, style: str = BAR) -> Line:
    """A bar that is filled to a share from 0 to 1. Anything above 0 shows."""
    full = min(width, max(1 if share > 0 else 0, round(share * width)))
    return [("━" * full, style), ("─" * (width - full), DIM)]


def wrapped(text: str, width: int) -> list[str]:
    """The text in pieces of at most `width` columns."""
    width = max(1, width)
    if text.isascii():
        return [text[i : i + width] for i in range(0, len(text), width)] or [""]
    pieces, piece, used = [], "", 0
    for character in text:
        size = width_of(character)
        if used + size > width and piece:
            pieces.append(piece)
            piece, used = "", 0
        piece, used = piece + character, used + size
    return [*pieces, piece]
