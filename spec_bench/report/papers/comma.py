"""A table as CSV: every label in every line; numbers and interval ends in columns of their own."""

from __future__ import annotations

import csv
import io

from spec_bench.report.papers.flat import LOST
from spec_bench.report.papers.grid import Cell, Column, Grid


def render(grid: Grid) -> str:
    """The table alone: notes are no rows. Measured values keep all their digits."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = [head.replace(" ", "_") for head in grid.heads]
    ends = ("ours", "low", "high", "difference", "state") if grid.measured else ()
    names = [column.name for column in grid.columns]
    columns = [f"{name}_{end}" for name in names for end in ("paper", *ends)]
    writer.writerow([*heads, *columns, *(["lossless"] if grid.measured else [])])
    for line in grid.lines:
        values: list[str] = []
        for cell, column in zip(line.cells, grid.columns, strict=True):
            values += _values(cell, column) if grid.measured else [_printed(cell)]
        marks = {cell.ours.mark or "exact" for cell in line.cells if cell.ours}
        lossless = ["/".join(sorted(marks))] if grid.measured else []
        writer.writerow([*line.labels, *values, *lossless])
    return stream.getvalue()


def _printed(cell: Cell) -> str:
    if cell.lost:
        return LOST
    return f"{cell.printed}±{cell.plus_minus}" if cell.plus_minus else cell.printed


def _values(cell: Cell, column: Column) -> list[str]:
    """Paper, ours, both ends of the interval, difference, state."""
    if cell.ours is None:
        return [_printed(cell), "", "", "", "", cell.state]
    if column.is_text:
        return [_printed(cell), cell.ours.text, "", "", "", ""]
    numbers = (cell.ours.value, cell.ours.low, cell.ours.high, cell.difference)
    return [_printed(cell), *("" if n is None else f"{n:.6g}" for n in numbers), ""]
