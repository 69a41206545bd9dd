"""Layout of tables: column widths that fit a terminal, and aligned lines, with colours where they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from jetjobs.cli.terminal.palette import BOLD, FAINT, Style
from jetjobs.cli.terminal.text import LONG_NAME, one_line, shorten


class Look(NamedTuple):
    """How columns are shown, by their index."""

    right: Collection[int] = ()
    """Aligned to the right: numbers and durations."""
    styles: Mapping[int, Style] = {}
    ids: int | None = None
    """Job ids. On a terminal only the last characters of each are shown."""
    below: int | None = None
    """On a terminal, this column, which is the last one, is shown below its row, where it has the whole line."""


def printable_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows with each cell on one line. Call it before measuring: an escaped character takes more columns."""
    return [[cell if cell.isprintable() else one_line(cell, None) for cell in row] for row in rows]


def natural_widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], measure: Callable[[str], int] = len
) -> list[int]:
    """The width of each column if nothing is cut."""
    return [max(measure(row[i]) for row in [head, *rows]) for i in range(len(head))]


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int], right: Collection[int] = ()) -> Iterator[str]:
    """One line for each row. Columns beyond the last width are left out."""
    for row in rows:
        cells = enumerate(zip(row, widths, strict=False))
        yield "  ".join(
            shorten(cell, width).rjust(width) if index in right else shorten(cell, width).ljust(width)
            for index, (cell, width) in cells
        ).rstrip()


def drawn(rows: Sequence[Sequence[str]], widths: Sequence[int], look: Look, room: int, *, colour: bool) -> str:
    """The lines of a table, drawn by rich; the first row is the heading. `room` is the width of a line, or 0.

    Wide characters take two columns here.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    def line(row: Sequence[str], plain: str | None) -> Text:
        text = Text(end="\n")
        for index, width in enumerate(widths):
            cell = row[index]
            if cell_len(cell) > width:
                cell = set_cell_size(cell, width - 1).rstrip() + "…"
            style = plain if plain is not None else look.styles[index](row[index]) if index in look.styles else ""
            padding = " " * (width - cell_len(cell))
            text.append(padding if index in look.right else "")
            text.append(cell, style or None)
            text.append(("" if index in look.right else padding) + "  ")
        text.rstrip()
        return text

    lines = [line(rows[0], BOLD)]
    for row in rows[1:]:
        lines.append(line(row, None))
        if look.below is not None and room and row[look.below]:
            indent = min(widths[0] + 2, room // 4)
            under = row[look.below]
            if cell_len(under) > room - indent:
                under = set_cell_size(under, max(1, room - indent - 1)).rstrip() + "…"
            lines.append(Text(" " * indent).append(under, FAINT))
    return rendered(lines, colour=colour)


def rendered(lines: Sequence[object], *, colour: bool) -> str:
    """Lines of rich as text, printed by the caller: rich itself would exit when a pipe is closed."""
    from io import StringIO

    from rich.console import Console

    found = Console(file=StringIO(), force_terminal=True).color_system
    system = found or "standard"  # none for TERM=dumb, which FORCE_COLOR overrides
    console = Console(
        file=StringIO(),
        force_terminal=True,
        no_color=False,
        color_system=system if colour else None,  # type: ignore[arg-type]  # it is one of its own names
        width=100_000,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        for line in lines:
            console.print(line, soft_wrap=True)
    return capture.get().rstrip("\n")


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
