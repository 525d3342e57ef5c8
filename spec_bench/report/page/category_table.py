"""Numbers by category of prompt as tables of a page, like those of the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from spec_bench.metrics.interval import Interval
from spec_bench.report.data.categories import (
    TABLES,
    CellByCategory,
    Kind,
    by_category,
    kinds_of,
    overall_columns,
)
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group
from spec_bench.report.page.results_table import DECODER, Cell, Line, ResultsTable
from spec_bench.report.page.tree_title import tree_titles
from spec_bench.vocabulary import names


def category_tables(group: Group, records: Records) -> Iterator[tuple[str, ResultsTable]]:
    """Title and table of the speed-ups and of the tokens; none without categories."""
    kinds = kinds_of(group, records)
    cells = by_category(group, kinds, records) if kinds else []
    trees = dict(zip(group.rows.run_id, tree_titles(group.rows), strict=True))
    for column, title in TABLES.items() if cells else ():
        last = overall_columns(group, column)
        lines = [
            _line(cell, trees[cell.row["run_id"]], column, kinds, last)
            for cell in cells
            if cell.of(column)
        ]
        if lines:
            yield title, ResultsTable(_heads(kinds, last), tuple(lines))


def _heads(kinds: Sequence[Kind], last: Iterable[str]) -> tuple[tuple[str, str], ...]:
    counts = ((kind.name, f"{len(kind.prompts)} prompts") for kind in kinds)
    return (DECODER, *counts, *((title, "all prompts") for title in last))


def _line(
    cell: CellByCategory, tree: str, column: str, kinds: Sequence[Kind], last: Mapping[str, str]
) -> Line:
    row, intervals = cell.row, cell.of(column)
    numbers = [*(intervals.get(kind.name) for kind in kinds), *map(cell.overall, last.values())]
    return Line(
        code=str(row["decoder"]),
        decoder=names.decoder(str(row["decoder"])).title,
        tree=tree,
        marks=(),
        kind="baseline" if row["decoder"] == "ar" else "",
        failure="",
        cells=tuple(map(_cell, numbers)),
    )


def _cell(estimate: Interval | None) -> Cell | None:
    if estimate is None:
        return None
    low, high = estimate.low, estimate.high
    known = low is not None and high is not None and low < high
    interval = f"{low:.2f}–{high:.2f}" if known else ""
    return Cell(f"{estimate.value:.2f}", interval, f"{estimate.value:.6g}", None, best=False)
