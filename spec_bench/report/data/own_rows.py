"""Which rows a table, figure or claim of a paper may take: those of the paper's own recipes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from spec_bench.report.data.rows import cell_keys
from spec_bench.report.papers.items import Figure


def figure_rows(item: Figure, rows: pd.DataFrame, results: Path) -> pd.DataFrame:
    """The rows that a figure may take; of one without a model, its own file.

    Raises:
        ValueError: the figure's own file was not made yet; the message has the command.
    """
    if item.rows:
        near = [results.glob(f"{above}{item.rows}") for above in ("", "*/", "*/*/")]
        found = [path for paths in near for path in sorted(paths)]
        if not found:
            raise ValueError(f"no {item.rows} below {str(results)!r}; it is made by {item.command}")
        return pd.read_csv(found[0])
    return of_recipes(rows, item.experiments)


def of_recipes(rows: pd.DataFrame, experiments: Collection[str]) -> pd.DataFrame:
    """The rows that a paper's table, figure or claim may take: its own jobs', if there are any.

    Cells of one job share prompts, limits and baseline, and were decoded in turn; the same decoder
    at the same temperature in another paper's job need not. Where none of its own is there, all
    rows are taken, wherever they come from.
    """
    if "experiment" not in rows:
        return rows
    own = rows[rows.experiment.isin(list(experiments))]
    return rows if own.empty else own


def once(rows: pd.DataFrame) -> pd.DataFrame:
    """Each cell once; one that was measured twice with the larger number of prompts."""
    ordered = rows
    if "prompts" in rows:
        ordered = rows.sort_values("prompts", ascending=False, kind="stable")
    return ordered.drop_duplicates(cell_keys(rows)).sort_index(kind="stable")
