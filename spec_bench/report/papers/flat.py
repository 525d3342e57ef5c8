"""A grid as plain texts: one column each for the paper's number, ours and their difference.

Shared by the renderers, so that all of them show the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.report.papers.grid import Cell, Column, Grid, Line
from spec_bench.report.papers.titles import MARKS, titled

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

    @property
    def whole(self) -> str:
        """Text and interval."""
        return f"{self.text} {self.interval}".strip()


@dataclass(frozen=True)
class FlatLine:
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
class Flat:
    """A table of texts."""

    heads: tuple[Head, ...]
    lines: tuple[FlatLine, ...]


def flatten(grid: Grid) -> Flat:
    """The grid's texts; columns that nobody printed or measured are left out."""
    heads: list[Head] = []
    parts: list[tuple[int, str]] = []
    for index, column in enumerate(grid.columns):
        for part in _parts(grid, index):
            shown = part if grid.measured else ""
            heads.append(Head(column.group, column.title, shown))
            parts.append((index, part))
    lines = [
        FlatLine(
            _labels(line),
            tuple(_text(line, line.cells[i], grid.columns[i], part) for i, part in parts),
            line.block or "|".join(line.labels[:1]),
        )
        for line in grid.lines
    ]
    return Flat(tuple(heads), tuple(lines))


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
    return (*line.labels[:-1], f"{line.labels[-1]} ({titled(MARKS, line.mark)})".strip())


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
    mark = f" ({titled(MARKS, cell.ours.mark)})" if cell.ours.mark and not line.mark else ""
    if cell.ours.value is None:
        return Text(f"{cell.ours.text}{mark}", is_number=False)
    return Text(
        f"{cell.ours.value:.{column.digits}f}{mark}", cell.ours_best, _interval(cell, column)
    )


def _interval(cell: Cell, column: Column) -> str:
    """``[low, high]``; "" where there is none or it is a point."""
    ours = cell.ours
    if ours is None or ours.low is None or ours.high is None or ours.low == ours.high:
        return ""
    return f"[{ours.low:.{column.digits}f}, {ours.high:.{column.digits}f}]"
