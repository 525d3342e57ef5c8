"""A grid's cells as plain texts: one column each for the paper's number, ours and their difference.

Shared by the renderers, so that all of them show the same.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from spec_bench.report.papers.paper import Column
from spec_bench.report.tables.grid import Cell, Grid, Line, Text
from spec_bench.vocabulary.names import MARKS
from spec_bench.vocabulary.numbers import ends_of

LOST = "lost"


def written(grid: Grid) -> Grid:
    """The grid with its texts; columns that nobody printed or measured are left out."""
    places = [(i, part) for i in range(len(grid.columns)) for part in _parts(grid, i)]
    lines = [
        replace(
            line,
            labels=_labels(line),
            texts=tuple(_text(line, line.cells[i], grid.columns[i], part) for i, part in places),
            block=line.block or "|".join(line.labels[:1]),
        )
        for line in grid.lines
    ]
    shown = tuple((grid.columns[i], part if grid.measured else "") for i, part in places)
    return replace(grid, shown=shown, lines=tuple(lines))


def levels(grid: Grid) -> list[list[tuple[str, int]]]:
    """One to three lines of headings as (text, columns wide): groups, titles, whose number."""
    heads = grid.shown
    keys = [[head.group for head, _ in heads]] if any(head.group for head, _ in heads) else []
    keys.append([f"{head.group}\0{head.title}" for head, _ in heads])
    if any(part for _, part in heads):
        keys.append([f"{index}\0{part}" for index, (_, part) in enumerate(heads)])
    return [
        [(key.rpartition("\0")[2], len(list(same))) for key, same in groupby(level)]
        for level in keys
    ]


def _parts(grid: Grid, index: int) -> list[str]:
    """The shown parts of a column."""
    cells = grid.cells_of(index)
    printed = any(cell.printed or cell.lost for cell in cells)
    ours = grid.measured and any(cell.wanted for cell in cells)
    lines = any(cell.printed and cell.wanted for cell in cells)  # else ours has separate lines
    both = printed and ours and lines and not grid.columns[index].is_text
    return ["paper"] * printed + ["ours"] * ours + ["difference"] * both


def _labels(line: Line) -> tuple[str, ...]:
    """The labels, the last one with the mark that all of the line's measured cells bear."""
    if not line.mark:
        return line.labels
    return (*line.labels[:-1], f"{line.labels[-1]} ({MARKS.get(line.mark, line.mark)})".strip())


def _text(line: Line, cell: Cell, column: Column, part: str) -> Text:
    """One place."""
    form = f".{column.digits}f"
    if part == "paper":
        if cell.lost:
            return Text(LOST, is_number=False)
        spread = f"±{cell.plus_minus}" if cell.plus_minus else ""
        number = bool(cell.printed) and not column.is_text
        return Text(cell.printed, cell.best, spread, number, cell.underlined)
    if part == "difference":
        value = cell.difference
        return Text("" if value is None else f"{value:+{form}}", is_number=True)
    ours = cell.ours
    if ours is None:
        return Text(cell.state, is_number=False)
    symbol = ours.mark if not line.mark else ""
    mark = f" ({MARKS.get(symbol, symbol)})" if symbol else ""
    if ours.value is None:
        return Text(f"{ours.text}{mark}", is_number=False)
    interval = ends_of(ours.low, ours.high, form) if ours.low != ours.high else ""
    return Text(f"{ours.value:{form}}{mark}", cell.ours_best, interval)
