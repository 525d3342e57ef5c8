"""A paper's table joined with the measured rows: ours beside the printed numbers, the best marked.

Our best of a block and column stands out only where its 95% interval lies above those of all other
cells of that block and column; only exact rows ever do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Row, failure_of, numbers_in, reason_of
from spec_bench.report.papers.pairs import drafter_size, pair_configs
from spec_bench.report.papers.paper import Column, Item, Table, load_paper
from spec_bench.report.tables.commands import commands_for
from spec_bench.report.tables.measured import NOWHERE, Measured
from spec_bench.report.tables.notes import lost_notes, notes_for
from spec_bench.report.tables.printed import Sheet, falls, printed_sheet, tree_text

NOT_RUN = "not run"
NO_VALUE = "no value"
_NOTHING = {
    "value": None, "low": None, "high": None, "text": "", "mark": "", "ours": False, "state": "",
}  # fmt: skip


def build_tables(
    item: Table, measured: Measured, pair: str | None = None, results: Path | None = None
) -> list[Sheet]:
    """A table, once for each way in which its cells were run: rows that differ are not mixed.

    The headings name the differences. Commands for missing cells stand below the first.

    Raises:
        ValueError: no such pair.
    """
    measured = measured.of(item.experiments)
    first = build_table(item, measured, pair, results)
    parts = measured.apart(first.wanted)
    if len(parts) == 1:
        return [first]
    sheets = [(text, build_table(item, part, pair, results)) for text, part in parts]
    return [
        replace(
            sheet,
            title=f"{sheet.title} ({text})",
            setting=text,
            commands=() if place else first.commands,
        )
        for place, (text, sheet) in enumerate(sheets)
    ]


def build_table(
    item: Table, measured: Measured, pair: str | None = None, results: Path | None = None
) -> Sheet:
    """A table with its measured cells, notes and commands, of a pair or of the paper's pairs.

    Raises:
        ValueError: no such pair.
    """
    measured = measured.of(item.experiments)
    paper = load_paper(item.paper)
    if pair is not None:
        check_pair(item, pair, measured)
    sheet = joined(printed_sheet(item.name, pair), measured)
    lost = lost_notes(paper.numbers_of(item.number))
    pairs = sorted({*printed_sheet(item.name, None).wanted.pair})
    notes = (*sheet.notes, *lost, *notes_for(paper, item, sheet, measured, pair, pairs))
    commands: list[str] = []
    if item.recipes:
        missing = measured.missing(sheet.wanted)
        commands = commands_for(item.recipes[0], missing, measured, results)
    return replace(sheet, notes=notes, commands=tuple(commands))


def check_pair(item: Item, pair: str, measured: Measured) -> None:
    """Refuses a pair that neither has a config nor was measured.

    Raises:
        ValueError: naming the choices.
    """
    known = sorted({*pair_configs(), *measured.pairs()})
    if pair not in known:
        raise ValueError(f"unknown pair {pair!r}; known: {', '.join(known)}")


def joined(sheet: Sheet, measured: Measured) -> Sheet:
    """The table with its measured values; a line that the paper has not is left out where it was
    not measured, or where another line shows its rows.
    """
    asked = [*sheet.asked[["line", "column", "role"]].itertuples(index=False, name=None)]
    found = measured.find(sheet.asked)
    places: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for (line, column, role), row in zip(asked, found, strict=True):
        places.setdefault((line, column), []).append((role, row))
    ours = [
        _ours(cell, sheet.columns[cell.column], places[cell.line, cell.column], measured)
        if (cell.line, cell.column) in places
        else _NOTHING
        for cell in sheet.cells.itertuples()
    ]
    cells = sheet.cells.join(pd.DataFrame(ours, index=sheet.cells.index, columns=list(_NOTHING)))
    cells = cells.astype({"value": float, "low": float, "high": float, "ours": bool})
    own = {(at[0], row) for at, row in zip(asked, found, strict=True) if at[2] == "ours"}
    extra = {*sheet.lines.index[sheet.lines.extra]}
    of_paper = {row for line, row in own if line not in extra and row != NOWHERE}
    repeated = {line for line, row in own if row in of_paper}
    gone = extra - ({*cells.line[cells.ours]} - repeated)
    lines = sheet.lines.drop(index=[*gone])
    cells = cells[~cells.line.isin(gone)]
    return replace(
        sheet,
        lines=lines,
        cells=cells.assign(ours_best=_ahead(cells, lines, sheet.columns)),
        asked=sheet.asked[~sheet.asked.line.isin(gone)],
        measured=bool(cells.ours.any()),
    )


def _ours(
    cell: Any, column: Column, asked: Sequence[tuple[str, int]], measured: Measured
) -> dict[str, Any]:
    """A place's measured value, or the reason why it has none.

    Args:
        cell: the place.
        column: its column.
        asked: what it asks for, ours, then minus or over, with the position of each one's row.
        measured: the rows.
    """
    rows = []
    for _, place in asked:
        if place == NOWHERE:
            return {**_NOTHING, "state": NOT_RUN}
        rows.append(measured.listed[place])
        if rows[-1]["status"] == "failed":
            return {**_NOTHING, "state": f"failed: {failure_of(rows[-1])}"}
    known = [_value(row, cell.number, column.scale) for row in rows]
    for row, value in zip(rows, known, strict=True):
        if value is None:
            return {**_NOTHING, "state": reason_of(row, cell.number) or cell.empty or NO_VALUE}
    first, other = known[0], known[-1]
    assert first is not None and other is not None
    role, place = asked[-1]
    if role == "over" and asked[0][1] == place:
        ends = {"value": 1.0, "low": 1.0, "high": 1.0}
        return {**_NOTHING, **ends, "mark": first["mark"], "ours": True}
    if len(known) == 1:
        return {**_NOTHING, **first, "ours": True}
    between = _between(cell.number, column.scale, role, rows, known, measured.records)
    return {**_NOTHING, **between, "mark": first["mark"] or other["mark"], "ours": True}


def _value(row: Row, number: str, scale: float) -> dict[str, Any] | None:
    """A row's value of a column with its mark; None where it is empty."""
    lossless = str(row.get("lossless", "exact"))
    mark = "" if lossless in ("exact", "nan", "") else lossless
    if number == "tree":
        return {"text": tree_text(str(row["decoder"]), str(row["spec"])), "mark": mark}
    if number == "setting":
        return {"text": str(row["spec"]), "mark": mark}
    if number == "size":
        text = drafter_size(row)
        return None if text is None else {"text": text, "mark": mark}
    ends = zip(("value", "low", "high"), numbers_in(row, number), strict=True)
    known = {name: each * scale for name, each in ends if each is not None}
    return {**known, "mark": mark} if "value" in known else None


def _between(
    number: str,
    scale: float,
    role: str,
    rows: Sequence[Row],
    known: Sequence[Any],
    records: Records,
) -> dict[str, float]:
    """The difference or ratio of two cells, paired by prompt; without records no interval."""
    over = role == "over"
    one, other = (each["value"] for each in known)
    gap = difference([[Contrast((rows[0],), (rows[1],))]], number, records, over)
    if gap is None or gap.ends is None:
        return {"value": one / other if over else one - other}
    ends = (gap.value, *gap.ends)
    value, low, high = (1 + each if over else each * scale for each in ends)
    return {"value": value, "low": low, "high": high}


def _ahead(cells: pd.DataFrame, lines: pd.DataFrame, columns: Sequence[Column]) -> pd.Series:
    """Whether a cell's interval lies above those of all exact rivals, at least one; below them
    where less is better.
    """
    ahead = pd.Series(False, cells.index)
    exact = cells[cells.ours & (cells.mark == "")]
    if exact.empty:
        return ahead
    blocks = exact.line.map(lines.block)
    for (block, column), rivals in exact.groupby([blocks, "column"]):
        if not block or not columns[column].best or len(rivals) < 2:
            continue
        low, high = rivals.low, rivals.high
        if falls(columns[column]):
            low, high = -high, -low
        if low.notna().any():
            others = high.drop(best := low.idxmax())
            ahead[best] = bool(others.notna().all() and low[best] > others.max())
    return ahead
