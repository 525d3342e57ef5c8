"""Which measured rows a figure shows: its pairs, its experiments, each cell once."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from spec_bench.report.papers.index import Item

_CELL = (
    *("pair", "draft", "task", "temperature", "top_k", "top_p", "seed", "batch_size", "batching"),
    *("max_new_tokens", "tree_attention"),
)


def usable(rows: pd.DataFrame, item: Item, paths_as_rows: bool = False) -> pd.DataFrame:
    """Rows with numbers and tree attention, each cell once.

    A pair and task that the recipe's own experiment has measured is shown from there only: cells of
    one job share their baseline and were measured interleaved. Of a cell measured twice the one
    with more prompts is shown.

    Args:
        rows: measured cells; a column ``experiment`` names the folder each came from.
        item: the figure.
        paths_as_rows: whether rows without tree attention are kept, too.

    Raises:
        ValueError: nothing is left.
    """
    found = rows if rows.empty or paths_as_rows else rows[with_tree_attention(rows)]
    if not found.empty:
        found = found[found.status != "failed"]
    if found.empty:
        raise nothing_measured(item)
    if "experiment" in found:
        own = found.experiment.isin(item.experiments)
        known = own.groupby([found.pair, found.task]).transform("any")
        found = found[own | ~known]
    order = found.assign(_prompts=found.get("prompts", pd.Series(0, found.index)))
    order = order.sort_values("_prompts", ascending=False, kind="stable")
    keys = [name for name in (*_CELL, "decoder", "spec") if name in found]
    return found.loc[order.drop_duplicates(keys).index.sort_values()]


def sampled_as(item: Item, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at the figure's own temperature."""
    wanted = item.settings.get("sampling", {}).get("temperature")
    return rows if wanted is None else rows[rows.temperature == wanted]


def own_pairs_first(rows: pd.DataFrame, own: Iterable[str]) -> pd.DataFrame:
    """The rows of the figure's own pairs; where there are none, all rows."""
    found = rows[rows.pair.isin(set(own))]
    return rows if found.empty else found


def with_tree_attention(rows: pd.DataFrame) -> pd.Series:
    """Which rows verified all paths in one row of the batch; a file without the column: all."""
    if "tree_attention" not in rows:
        return pd.Series(True, index=rows.index)
    return rows.tree_attention.map(lambda value: str(value).lower() != "false")


def nothing_measured(item: Item) -> ValueError:
    """The error for a figure without rows, with the commands that would measure them."""
    command = item.settings.get("command")
    how = [command] if command else [f"python -m spec_bench -m {name}" for name in item.recipes]
    return ValueError(f"nothing measured for figure {item.name}; to measure it: {' or '.join(how)}")
