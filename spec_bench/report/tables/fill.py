"""Measured values beside printed ones, the best of them marked.

Our best of a block and column stands out only where its 95% interval lies above those of all other
cells of that block and column; only exact rows ever do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Row, failure_of, interval_in, reason_of
from spec_bench.report.papers.pairs import drafter_size
from spec_bench.report.papers.paper import Column
from spec_bench.report.tables.grid import Cell, Estimate, Grid, Line, Wanted, falls, tree_text
from spec_bench.report.tables.measured import Measured

NOT_RUN = "not run"
NO_VALUE = "no value"


def fill(grid: Grid, measured: Measured) -> Grid:
    """The grid with its measured values."""
    rows = {wanted: measured.find(wanted) for wanted in _all_wanted(grid)}
    lines = [
        replace(line, cells=tuple(_filled(cell, rows, measured.records) for cell in line.cells))
        for line in grid.lines
    ]
    shown = {id(row) for line in lines if not line.extra for row in _rows(line, rows)}
    kept = [
        line
        for line in lines
        if not line.extra
        or (any(cell.ours for cell in line.cells) and not shown & {*map(id, _rows(line, rows))})
    ]
    return replace(
        grid,
        lines=tuple(_mark_best(kept, grid.columns)),
        measured=any(cell.ours for line in kept for cell in line.cells),
    )


def missing_of(wanted: Sequence[Wanted], measured: Measured) -> list[Wanted]:
    """The wanted cells without numbers, failed ones included."""
    missing = []
    for each in wanted:
        row = measured.find(each)
        if row is None or row["status"] == "failed":
            missing.append(each)
    return missing


def _all_wanted(grid: Grid) -> set[Wanted]:
    cells = [cell for line in grid.lines for cell in line.cells]
    asked = {each for cell in cells for each in (cell.wanted, cell.minus, cell.over)}
    return {each for each in asked if each is not None}


def _rows(line: Line, by_wanted: dict[Wanted, Row | None]) -> list[Row]:
    """The measured rows that a line is about."""
    rows = [by_wanted[cell.wanted] for cell in line.cells if cell.wanted is not None]
    return [row for row in rows if row is not None]


def _filled(cell: Cell, by_wanted: dict[Wanted, Row | None], records: Records) -> Cell:
    """The cell with its measured value, or with the reason why it has none."""
    if cell.wanted is None:
        return cell
    asked = (cell.wanted, cell.minus, cell.over)
    rows = [by_wanted[each] for each in asked if each is not None]
    for row in rows:
        if row is None:
            return replace(cell, state=NOT_RUN)
        if row["status"] == "failed":
            return replace(cell, state=f"failed: {failure_of(row)}")
    there = [row for row in rows if row is not None]
    estimates = [_estimate(row, cell.column, cell.scale) for row in there]
    for row, estimate in zip(there, estimates, strict=True):
        if estimate is None:
            return replace(cell, state=reason_of(row, cell.column) or cell.state or NO_VALUE)
    known = [each for each in estimates if each is not None]
    if cell.over and there[0] is there[-1]:
        return replace(cell, ours=Estimate(1.0, 1.0, 1.0, mark=known[0].mark), state="")
    if len(known) == 1:
        return replace(cell, ours=known[0], state="")
    return replace(cell, ours=_between(cell, there, known, records), state="")


def _estimate(row: Row, column: str, scale: float) -> Estimate | None:
    """A row's value of a column; None where it is empty."""
    lossless = str(row.get("lossless", "exact"))
    mark = "" if lossless in ("exact", "nan", "") else lossless
    if column == "tree":
        return Estimate(None, text=tree_text(str(row["decoder"]), str(row["spec"])), mark=mark)
    if column == "setting":
        return Estimate(None, text=str(row["spec"]), mark=mark)
    if column == "size":
        text = drafter_size(row)
        return None if text is None else Estimate(None, text=text, mark=mark)
    interval = interval_in(row, column)
    if interval is None:
        return None
    interval = interval.scaled(scale)
    return Estimate(interval.value, interval.low, interval.high, mark=mark)


def _between(
    cell: Cell, rows: Sequence[Row], known: Sequence[Estimate], records: Records
) -> Estimate:
    """The difference or ratio of two cells, paired by prompt; without records no interval."""
    one, other = known
    assert one.value is not None and other.value is not None
    mark = one.mark or other.mark
    over = cell.over is not None
    gap = difference([[Contrast((rows[0],), (rows[1],))]], cell.column, records, over)
    if gap is None or not gap.paired:
        return Estimate(one.value / other.value if over else one.value - other.value, mark=mark)

    def scaled(number: float) -> float:
        return 1 + number if over else number * cell.scale

    assert gap.ends is not None, "it is paired"
    low, high = map(scaled, gap.ends)
    return Estimate(scaled(gap.value), low, high, mark=mark)


def _mark_best(lines: Sequence[Line], columns: Sequence[Column]) -> list[Line]:
    """Marks the cells whose interval lies above all others of their block and column."""
    blocks: dict[str, list[Line]] = {}
    for line in lines:
        if line.block:
            blocks.setdefault(line.block, []).append(line)
    less = [falls(column) for column in columns]
    marked = []
    for line in lines:
        cells = []
        for index, (cell, column) in enumerate(zip(line.cells, columns, strict=True)):
            rivals = [o.cells[index] for o in blocks.get(line.block, []) if o is not line]
            ahead = column.best and _ahead(cell, rivals, less[index])
            cells.append(replace(cell, ours_best=ahead))
        marked.append(replace(line, cells=tuple(cells)))
    return marked


def _ahead(cell: Cell, rivals: Sequence[Cell], less: bool) -> bool:
    """Whether a cell's interval lies above those of all exact rivals, at least one.

    Where ``less`` is better: below them.
    """
    theirs = [rival.ours for rival in rivals if rival.ours is not None and not rival.ours.mark]
    ours = cell.ours
    if ours is None or ours.mark or ours.low is None or ours.high is None or not theirs:
        return False
    low, high = ours.low, ours.high
    if less:
        return all(other.low is not None and high < other.low for other in theirs)
    return all(other.high is not None and low > other.high for other in theirs)
