"""A grid as plain texts: one column each for the paper's number, ours and their difference.

Shared by the renderers, so that all of them show the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from spec_bench.report.papers.paper import Column
from spec_bench.report.tables.grid import Cell, Grid, Line
from spec_bench.vocabulary.names import MARKS

LOST = "lost"


@dataclass(frozen=True)
class Head:
    """A column's heading.

    Attributes:
        group: over several columns; "" for none.
        title: of the number.
        part: ``paper``, ``ours`` or ``difference``; "" where only the paper's number is shown.
    """

    group: str
    title: str
    part: str


@dataclass(frozen=True)
class Text:
    """What stands in a place.

    Attributes:
        text: the number or the reason why there is none.
        bold: whether it stands out.
        interval: the 95% interval in brackets, or the paper's plus/minus; "" for none.
        is_number: whether it is one.
        underlined: whether it is.
    """

    text: str
    bold: bool = False
    interval: str = ""
    is_number: bool = True
    underlined: bool = False


@dataclass(frozen=True)
class SheetLine:
    """A line.

    Attributes:
        labels: the line's, with its mark.
        texts: as many as there are heads.
        block: of the line.
    """

    labels: tuple[str, ...]
    texts: tuple[Text, ...]
    block: str


@dataclass(frozen=True)
class Sheet:
    """A table of texts: the headings of its columns, and its lines."""

    heads: tuple[Head, ...]
    lines: tuple[SheetLine, ...]

    @property
    def levels(self) -> list[list[tuple[str, int]]]:
        """One to three lines of headings as (text, columns wide): groups, titles, whose number."""
        keys = [[head.group for head in self.heads]] if any(h.group for h in self.heads) else []
        keys.append([f"{head.group}\0{head.title}" for head in self.heads])
        if any(head.part for head in self.heads):
            keys.append([f"{index}\0{head.part}" for index, head in enumerate(self.heads)])
        return [
            [(key.rpartition("\0")[2], len(list(same))) for key, same in groupby(level)]
            for level in keys
        ]


def sheet_of(grid: Grid) -> Sheet:
    """The grid's texts; columns that nobody printed or measured are left out."""
    parts = [(i, part) for i in range(len(grid.columns)) for part in _parts(grid, i)]
    heads = [
        Head(grid.columns[i].group, grid.columns[i].title, part if grid.measured else "")
        for i, part in parts
    ]
    lines = [
        SheetLine(
            _labels(line),
            tuple(_text(line, line.cells[i], grid.columns[i], part) for i, part in parts),
            line.block or "|".join(line.labels[:1]),
        )
        for line in grid.lines
    ]
    return Sheet(tuple(heads), tuple(lines))


def _parts(grid: Grid, index: int) -> list[str]:
    """What of a column is shown."""
    cells = grid.cells_of(index)
    printed = any(cell.printed or cell.lost for cell in cells)
    ours = grid.measured and any(cell.wanted for cell in cells)
    lines = any(cell.printed and cell.wanted for cell in cells)  # else ours has lines of its own
    both = printed and ours and lines and not grid.columns[index].is_text
    return ["paper"] * printed + ["ours"] * ours + ["difference"] * both


def _labels(line: Line) -> tuple[str, ...]:
    """The labels, the last one with the mark that all of the line's measured cells bear."""
    if not line.mark:
        return line.labels
    return (*line.labels[:-1], f"{line.labels[-1]} ({MARKS.get(line.mark, line.mark)})".strip())


def _text(line: Line, cell: Cell, column: Column, part: str) -> Text:
    """One place."""
    if part == "paper":
        if cell.lost:
            return Text(LOST, is_number=False)
        spread = f"±{cell.plus_minus}" if cell.plus_minus else ""
        number = bool(cell.printed) and not column.is_text
        return Text(cell.printed, cell.best, spread, number, cell.underlined)
    if part == "difference":
        value = cell.difference
        return Text("" if value is None else f"{value:+.{column.digits}f}", is_number=True)
    if cell.ours is None:
        return Text(cell.state, is_number=False)
    own = cell.ours.mark if not line.mark else ""
    mark = f" ({MARKS.get(own, own)})" if own else ""
    if cell.ours.value is None:
        return Text(f"{cell.ours.text}{mark}", is_number=False)
    ours = f"{cell.ours.value:.{column.digits}f}{mark}"
    return Text(ours, cell.ours_best, _interval(cell, column))


def _interval(cell: Cell, column: Column) -> str:
    """``[low, high]``; "" where there is none or it is a point."""
    ours = cell.ours
    if ours is None or ours.low is None or ours.high is None or ours.low == ours.high:
        return ""
    return f"[{ours.low:.{column.digits}f}, {ours.high:.{column.digits}f}]"
