"""The paper's printed numbers as a figure plots them: shaped like measured cells."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pandas as pd

from spec_bench.report.figures.derived import derive, with_columns
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.papers.paper import load_paper
from spec_bench.vocabulary.columns import COLUMNS
from spec_bench.vocabulary.published import side_by_side

_NOT_TRUNCATED = {"top_k": 0.0, "top_p": 1.0}


def with_axes(rows: pd.DataFrame, paper: str) -> pd.DataFrame:
    """Measured rows with a column for each axis that divides the paper's tables into blocks.

    A tree stands where the paper's tables have it: budgets are nominal, so that node counts would
    not place it. Experiments share some trees, which alone are no run of either: an axis is empty
    in all rows unless some tree is only in its list.
    """
    trees = list(zip(rows.decoder, rows.spec.astype(str), strict=True))
    axes = load_paper(paper).axes
    for axis, places in axes.items():
        others = {tree for name, axis_trees in axes.items() if name != axis for tree in axis_trees}
        belongs = any(tree in places and tree not in others for tree in trees)
        column = pd.Series([places.get(tree) if belongs else None for tree in trees], rows.index)
        rows = with_columns(rows, column.astype(float).to_frame(f"paper.{axis}"))
    return rows


def printed_cells(paper: str, pairs: Iterable[str]) -> pd.DataFrame:
    """The paper's numbers of some pairs, a row per cell, the columns those of measured cells.

    Where a cell is printed twice, the first table counts. A speedup that is not printed is that of
    the printed token rates of one table.
    """
    frames = [_of_pair(paper, pair) for pair in dict.fromkeys(pairs)]
    known = [frame for frame in frames if not frame.empty]
    return derive(pd.concat(known, ignore_index=True)) if known else pd.DataFrame()


@functools.cache
def _of_pair(paper: str, pair: str) -> pd.DataFrame:
    config = pair_configs().get(pair)
    names = config.printed if config else frozenset()
    numbers = (n for n in load_paper(paper).numbers if (n["target"], n["draft"]) in names)
    rows = pd.DataFrame(side_by_side(numbers))
    if rows.empty:
        return rows
    number = {each.name for each in COLUMNS if each.holds == "number"} | {"axis_value", "table"}
    for name in number.intersection(rows):
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    rows = rows.fillna(_NOT_TRUNCATED).assign(pair=pair)
    for axis in load_paper(paper).axes:
        rows[f"paper.{axis}"] = rows.axis_value.where(rows.axis == axis)
    rows = rows.sort_values("table", kind="stable").reset_index(drop=True)
    if "token_rate" in rows and "speedup" not in rows:
        base = rows.token_rate.where(rows.decoder == "ar").groupby(rows.table).transform("first")
        rows["speedup"] = rows.token_rate / base
    keys = ["task", "temperature", "top_k", "top_p", "decoder", "spec", "axis"]
    return rows[~rows.duplicated(keys)]
