"""Layout of tables: column widths that fit a terminal, and aligned lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jetjobs.cli.terminal.text import LONG_NAME, one_line, shorten


def printable_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows with each cell on one line. Call it before measuring: an escaped character takes more columns."""
    return [[cell if cell.isprintable() else one_line(cell, None) for cell in row] for row in rows]


def natural_widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column if nothing is cut."""
    return [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """One line for each row. Columns beyond the last width are left out."""
    for row in rows:
        cells = zip(row, widths, strict=False)
        yield "  ".join(shorten(cell, width).ljust(width) for cell, width in cells).rstrip()


def total(widths: Sequence[int]) -> int:
    """Columns of a line, with two spaces between cells."""
    return sum(widths) + 2 * (len(widths) - 1)


def fit(widths: list[int], head: list[str], shrink: tuple[int, ...], room: int) -> list[int]:
    """Narrow the columns of `shrink`, in this order, until lines fit into `room`.

    Each keeps the width of its heading and at least 8 characters.

    >>> fit([10, 40, 9], ["ID", "ERROR", "DIED"], (1,), 40)
    [10, 17, 9]
    """
    fitted = list(widths)
    for column in shrink:
        over = total(fitted) - room
        least = min(fitted[column], max(len(head[column]), 8))
        fitted[column] = max(least, fitted[column] - max(0, over))
    return fitted


def drop(widths: list[int], room: int, least: int = LONG_NAME) -> list[int]:
    """The widths of the columns that remain: columns are dropped from the right until the others fit.

    The second column is cut before it is dropped, down to 5 characters, because a name alone says little. The
    first column shrinks to `least` or half of the line, and gets the room that is left in the end.

    >>> drop([32, 9, 7, 5], 80), drop([32, 9, 7, 5], 50), drop([32, 9, 7, 5], 40), drop([32, 9], 36)
    ([32, 9, 7, 5], [32, 9], [32, 6], [32])
    >>> drop([63, 6, 8, 20], 40, 20)
    [22, 6, 8]
    """
    kept = list(widths)
    over = total(kept) - room
    if over > 0:  # one long name must not displace all other columns
        kept[0] = max(min(kept[0], LONG_NAME, max(least, room // 2)), kept[0] - over)
    while len(kept) > 1 and total(kept) > room:
        if len(kept) == 2 and room - kept[0] - 2 >= 5:
            return [kept[0], room - kept[0] - 2]
        kept.pop()
    if len(kept) == 1:
        return [min(widths[0], max(room, 8))]
    kept[0] = min(widths[0], kept[0] + room - total(kept))
    return kept
