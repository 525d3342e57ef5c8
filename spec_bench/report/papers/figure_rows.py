"""The rows that a figure is drawn from."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from spec_bench.report.papers.index import Item


def figure_rows(item: Item, rows: pd.DataFrame, results: Path) -> pd.DataFrame:
    """The rows of the recipe's own experiments; all where it has none.

    Args:
        item: the figure. One that no model is needed for names a file of its own.
        rows: all measured rows.
        results: the results folder.

    Raises:
        ValueError: the figure's own file was not made yet; the message has the command.
    """
    if "rows" in item.settings:
        name = str(item.settings["rows"])
        found = sorted([*results.glob(name), *results.glob(f"*/{name}")])
        if not found:
            raise ValueError(
                f"no {name} below {str(results)!r}; it is made by {item.settings['command']}"
            )
        return pd.read_csv(found[0])
    if rows.empty or not item.recipes:
        return rows
    own = rows[rows.experiment.isin(item.experiments)]
    return rows if own.empty else own
