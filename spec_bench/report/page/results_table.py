"""One group of cells as a sortable table, the fastest first: every number with its interval; and
the same by category of prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pandas as pd

from spec_bench.metrics.interval import Interval
from spec_bench.report.data.categories import TABLES, by_category, kinds_of, overall_columns
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group, Row, failure_of, numbers_in, remarks_of, rows_of
from spec_bench.report.page.headline import tree_titles
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.columns import Column
from spec_bench.vocabulary.numbers import ends_of

_DRAWN = ("block_efficiency", "speedup")  # their intervals are drawn, not only written
_JUDGED = ("speedup", "token_rate", "block_efficiency", "mbsu")  # the best ones are shaded
_OF_A_REQUEST = "token_rate_per_request"
_WIDTH = 96  # of a drawn interval, in pixels
Scale = tuple[float, float]
_COUNTS = ("draft_calls", "nodes_per_call")
_CUT = "block_efficiency_stream"
DECODER = ("decoder", "name of the algorithm; the tree in the papers' shorthand")


@dataclass(frozen=True)
class Drawn:
    """An interval on the column's common scale, in pixels."""

    low: str
    value: str
    high: str
    width: int = _WIDTH


@dataclass(frozen=True)
class Cell:
    """A number."""

    text: str  # as written
    interval: str  # its 95% interval; "" where there is none
    sorted_by: str  # the key of a click on the heading
    drawn: Drawn | None  # the interval as a line; None where the column has none
    best: bool  # whether it is the best exact one, or ties with it


@dataclass(frozen=True)
class Line:
    """One cell of the experiment."""

    code: str  # the decoder's name in results
    decoder: str  # its name for people
    tree: str  # its tree, and the drafter where that alone differs
    marks: tuple[tuple[str, bool], ...]  # its remarks, and whether each is a minor one
    kind: str  # `baseline`, `failed` or ""
    failure: str  # why it failed; "" where it did not
    cells: tuple[Cell | None, ...]  # one per column, None where it has no number


@dataclass(frozen=True)
class ResultsTable:
    """A group's table."""

    heads: tuple[tuple[str, str], ...]  # title and definition of each column
    lines: tuple[Line, ...]  # one per cell
    left_out: int = 0  # how many cells more there are, all of them behind those of the lines


def shown_columns(rows: pd.DataFrame) -> list[Column]:
    """The columns with a value, the judged ones first: two counts, and all with an interval.

    Where a row's calls tell no block efficiency, the tokens delivered per call are a count, too.
    """
    there = columns.columns_in(rows.columns)
    counts = [*_COUNTS]
    if _CUT in rows and (rows[_CUT].notna() & rows[_JUDGED[2]].isna()).any():
        counts.append(_CUT)
    shown = [c for c in there if (c.interval or c.name in counts) and rows[c.name].notna().any()]
    return sorted(shown, key=lambda column: column.name != _JUDGED[0])


def results_table(group: Group, most: int | None = None) -> ResultsTable:
    """The group's table, of at most so many lines; columns without a value are left out."""
    rows = _ordered(group.rows)
    shown = shown_columns(rows)
    if "batch_size" in rows and (rows.batch_size == 1).all():
        shown = [c for c in shown if c.name != _OF_A_REQUEST]  # all requests are one
    scales = {c.name: _scale(rows, c.name) for c in shown if c.name in _DRAWN}
    best = {c.name: _ahead(rows, c.name) for c in shown if c.name in _JUDGED}
    written = [_digits(rows, c) for c in shown]
    lines = []
    part = rows.head(most) if most else rows
    for index, row, tree in zip(part.index, rows_of(part), tree_titles(rows), strict=False):
        ahead = {name for name, places in best.items() if index in places}
        cells = tuple(
            _cell(row, column, digits, scales.get(column.name), column.name in ahead)
            for column, digits in zip(shown, written, strict=True)
        )
        lines.append(_line(row, tree, cells))
    heads = (DECODER, *((c.title, c.definition) for c in shown))
    return ResultsTable(heads, tuple(lines), len(rows) - len(part))


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """The baseline first, then the best by the first judged column that there is."""
    by = next((name for name in _JUDGED if name in rows and rows[name].notna().any()), None)
    if by is None:
        return rows
    rank = rows[by].where(rows.decoder != "ar", float("inf")).fillna(float("-inf"))
    return rows.loc[rank.sort_values(ascending=False, kind="stable").index]


def _line(row: Row, tree: str, cells: tuple[Cell | None, ...]) -> Line:
    """One cell of the experiment."""
    decoder, lossless = str(row["decoder"]), str(row["lossless"])
    marks = [(names.MARKS[lossless], lossless == "exact_beam")] if lossless in names.MARKS else []
    if not row.get("tree_attention", True):
        marks.append(("rows", True))
    marks += [(remark, True) for remark in remarks_of(row)]
    failed = row["status"] == "failed"
    return Line(
        code=decoder,
        decoder=names.decoder(decoder).title,
        tree=tree,
        marks=tuple(marks),
        kind="failed" if failed else "baseline" if decoder == "ar" else "",
        failure=failure_of(row) if failed else "",
        cells=cells,
    )


def _digits(rows: pd.DataFrame, column: Column) -> int:
    """After the point; one more than usual where small rates would look alike."""
    return column.digits or int(column.interval and rows[column.name].max() < 100)


def _cell(row: Row, column: Column, digits: int, scale: Scale | None, best: bool) -> Cell | None:
    """A number, its interval, and that drawn where the column has a scale."""
    value, low, high = numbers_in(row, column.name)
    if value is None:
        return None
    if low is None or high is None:
        low = high = value
    interval = ends_of(low, high, f".{digits}f", "{}–{}") if low != high else ""
    drawn = _drawn(value, low, high, scale) if scale else None
    return Cell(f"{value:.{digits}f}", interval, f"{value:.6g}", drawn, best)


def _drawn(value: float, low: float, high: float, scale: Scale) -> Drawn:
    start, end = scale

    def place(number: float) -> str:
        return f"{3 + (number - start) / (end - start) * (_WIDTH - 6):.1f}"

    return Drawn(place(low), place(value), place(high))


def _scale(rows: pd.DataFrame, name: str) -> Scale:
    """The smallest and largest end of the column's intervals."""
    columns = [c for c in (name, f"{name}_low", f"{name}_high") if c in rows]
    low, high = float(rows[columns].min().min()), float(rows[columns].max().max())
    return (low, high) if high > low else (low - 1, high + 1)


def _ahead(rows: pd.DataFrame, name: str) -> Collection[object]:
    """The indices of the best exact cell and of those whose intervals overlap its interval."""
    low, high = f"{name}_low", f"{name}_high"
    if low not in rows or high not in rows:
        return ()
    exact = rows[(rows.decoder != "ar") & (rows.lossless == "exact") & rows[low].notna()]
    if len(exact) < 2:
        return ()
    return {*exact.index[exact[high] >= exact.at[exact[name].idxmax(), low]]}


def category_tables(group: Group, records: Records) -> Iterator[tuple[str, ResultsTable]]:
    """Title and table of the speed-ups and of the tokens; none without categories."""
    kinds = kinds_of(group, records)
    cells = by_category(group, kinds, records) if kinds else []
    trees = dict(zip(group.rows.run_id, tree_titles(group.rows), strict=True))
    counts = {kind.name: f"{len(kind.prompts)} prompts" for kind in kinds}
    for column, title in TABLES.items() if cells else ():
        last = overall_columns(group, column)
        lines = [
            Line(
                code=str(cell.row["decoder"]),
                decoder=names.decoder(str(cell.row["decoder"])).title,
                tree=trees[cell.row["run_id"]],
                marks=(),
                kind="baseline" if cell.row["decoder"] == "ar" else "",
                failure="",
                cells=tuple(
                    map(_estimate, (*map(of.get, counts), *map(cell.overall, last.values())))
                ),
            )
            for cell in cells
            if (of := cell.of(column))
        ]
        if lines:
            heads = (DECODER, *counts.items(), *((name, "all prompts") for name in last))
            yield title, ResultsTable(heads, tuple(lines))


def _estimate(estimate: Interval | None) -> Cell | None:
    if estimate is None:
        return None
    low, high = estimate.low, estimate.high
    known = low is not None and high is not None and low < high
    interval = f"{low:.2f}–{high:.2f}" if known else ""
    return Cell(f"{estimate.value:.2f}", interval, f"{estimate.value:.6g}", None, best=False)
