"""One group of cells as a sortable table: every number with its interval, some drawn to scale."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from spec_bench.report.data.rows import Group, Row, failure_of, numbers_in, rows_of, stall_of
from spec_bench.report.page.tree_title import tree_titles
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.columns import Column
from spec_bench.vocabulary.numbers import ends_of

_DRAWN = ("block_efficiency", "speedup")  # their intervals are drawn, not only written
_JUDGED = ("speedup", "token_rate", "block_efficiency", "mbsu")  # the best one is shaded
_OF_A_REQUEST = "token_rate_per_request"
_WIDTH = 96  # of a drawn interval, in pixels
Scale = tuple[float, float]
_COUNTS = ("draft_calls", "nodes_per_call")


@dataclass(frozen=True)
class Drawn:
    """An interval on the column's common scale, in pixels."""

    low: str
    value: str
    high: str
    width: int = _WIDTH


@dataclass(frozen=True)
class Cell:
    """A number.

    Attributes:
        text: as written.
        interval: its 95% interval; "" where there is none.
        sorted_by: what a click on the heading sorts by.
        drawn: the interval as a line; None where the column has none.
        best: whether it is ahead of all other exact ones.
    """

    text: str
    interval: str
    sorted_by: str
    drawn: Drawn | None
    best: bool


@dataclass(frozen=True)
class Line:
    """One cell of the experiment.

    Attributes:
        code: the decoder's name in results.
        decoder: its name for people.
        tree: its tree, and who drafted where that alone differs.
        marks: what sets it apart, and whether that is a small thing.
        kind: ``baseline``, ``failed`` or "".
        failure: why it failed; "" where it did not.
        cells: one per column, None where it has no number.
    """

    code: str
    decoder: str
    tree: str
    marks: tuple[tuple[str, bool], ...]
    kind: str
    failure: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class ResultsTable:
    """A group's table.

    Attributes:
        heads: title and definition of each column.
        lines: one per cell.
    """

    heads: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]


def shown_columns(rows: pd.DataFrame) -> list[Column]:
    """The columns with a value: two counts, and all that has an interval."""
    there = columns.columns_in(rows.columns)
    return [c for c in there if (c.interval or c.name in _COUNTS) and rows[c.name].notna().any()]


def results_table(group: Group) -> ResultsTable:
    """The group's table; columns without a value are left out."""
    rows = group.rows
    shown = shown_columns(rows)
    if "batch_size" in rows and (rows.batch_size == 1).all():
        shown = [c for c in shown if c.name != _OF_A_REQUEST]  # all requests are one
    scales = {c.name: _scale(rows, c.name) for c in shown if c.name in _DRAWN}
    best = {c.name: _ahead(rows, c.name) for c in shown if c.name in _JUDGED}
    written = [_digits(rows, c) for c in shown]
    lines = []
    for index, row, tree in zip(rows.index, rows_of(rows), tree_titles(rows), strict=True):
        ahead = {name for name, place in best.items() if place == index}
        cells = tuple(
            _cell(row, column, digits, scales.get(column.name), column.name in ahead)
            for column, digits in zip(shown, written, strict=True)
        )
        lines.append(_line(row, tree, cells))
    heads = (("decoder", "name of the algorithm"), ("tree", "the papers' shorthand"))
    return ResultsTable((*heads, *((c.title, c.definition) for c in shown)), tuple(lines))


def _line(row: Row, tree: str, cells: tuple[Cell | None, ...]) -> Line:
    """One cell of the experiment."""
    decoder, lossless = str(row["decoder"]), str(row["lossless"])
    marks = [(names.MARKS[lossless], lossless == "exact_beam")] if lossless in names.MARKS else []
    if not row.get("tree_attention", True):
        marks.append(("rows", True))
    if stalled := stall_of(row):
        marks.append((stalled, True))
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


def _ahead(rows: pd.DataFrame, name: str) -> object:
    """The index of the exact cell whose interval lies above all others; None where none does."""
    low, high = f"{name}_low", f"{name}_high"
    if low not in rows or high not in rows:
        return None
    exact = (rows.decoder != "ar") & (rows.lossless == "exact") & rows[low].notna()
    if exact.sum() < 2:
        return None
    best = rows[name][exact].idxmax()
    return best if rows.at[best, low] > rows[high][exact].drop(best).max() else None
