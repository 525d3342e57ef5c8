"""Selects the measured rows of a figure: its pairs, tasks and experiments, each cell once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pandas as pd

from spec_bench.report.data.apart import split
from spec_bench.report.data.recipe_rows import of_recipes, once
from spec_bench.report.data.rows import tree_attention
from spec_bench.report.figures.derived import GROUP, derive
from spec_bench.report.figures.drawing import Drawing
from spec_bench.report.figures.printed import with_axes
from spec_bench.report.papers.pairs import pair_of
from spec_bench.report.papers.paper import Figure, load_paper
from spec_bench.vocabulary.columns import apart_in


class NothingMeasuredError(ValueError):
    """There are rows, but none that a figure shows."""


def shown_cells(item: Figure, rows: pd.DataFrame, paths_as_rows: bool = False) -> pd.DataFrame:
    """The cells of a figure: of the paper's pairs, or if none of them is measured, of all that are.

    Of the paper's pairs the tasks that it names are shown, of any other pair all tasks.
    """
    pairs = pairs_of(item)
    shown = paper_pairs_first(usable(rows, item, paths_as_rows), pairs)
    if not item.tasks:
        return shown
    return shown[~shown.pair.isin(pairs) | shown.task.isin(item.tasks)]


def cells(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells."""
    return with_axes(derive(shown_cells(item, rows, drawing.paths_as_rows)), item.paper)


def usable(rows: pd.DataFrame, item: Figure, paths_as_rows: bool = False) -> pd.DataFrame:
    """Rows with numbers and tree attention, of the recipe's experiments; each cell once.
    ``paths_as_rows`` keeps rows without tree attention too.

    Raises:
        NothingMeasuredError: nothing is left.
    """
    kept = rows if rows.empty or paths_as_rows else rows[tree_attention(rows)]
    if not kept.empty:
        kept = kept[kept.status != "failed"]
    if kept.empty:
        raise nothing_measured(item)
    return once(of_recipes(kept, item.experiments))


def parts_of(drawing: Drawing, rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows in parts that one file may show, and the settings of each.

    Settings that the figure shows, by an axis, a panel or a colour, may differ in a file.
    """
    shown = {*drawing.files, *drawing.across, *filter(None, [drawing.down]), "pair", "task"}
    for row, column in product(range(len(drawing.rows)), range(len(drawing.columns))):
        for layer in drawing.panel(row, column).drawn:
            shown |= {layer.x, layer.y, *layer.hue, *layer.keep, *filter(None, [layer.marker])}
    groups = {each.name for each in apart_in(rows)} if GROUP in shown else set()
    return split(rows, shown | groups)


def paper_pairs_first(rows: pd.DataFrame, pairs: Iterable[str]) -> pd.DataFrame:
    """The rows of the figure's pairs; where there are none, all rows."""
    matching = rows[rows.pair.isin(set(pairs))]
    return rows if matching.empty else matching


def pairs_of(item: Figure) -> list[str]:
    """Names of the pair configs that a figure shows in the paper: ``pairs``, or its tables'."""
    printed = item.pairs
    if item.tables:
        rows = load_paper(item.paper).reference
        printed_rows = rows[rows.table.isin([str(number) for number in item.tables])]
        printed = printed_rows[["target", "draft"]].drop_duplicates().to_numpy()
    names = (pair_of(str(target), str(draft)) for target, draft in printed)
    return list(dict.fromkeys(name for name in names if name))


def nothing_measured(item: Figure) -> NothingMeasuredError:
    """The error for a figure without rows, with the commands that would measure them."""
    how = [item.command] if item.command else [f"spec-bench -m {name}" for name in item.recipes]
    ways = " or ".join(how)
    return NothingMeasuredError(f"nothing measured for figure {item.name}; to measure it: {ways}")
