"""Selects the rows of a paper's table, figure or claim: those of the paper's recipes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from spec_bench.report.data.rows import cell_keys
from spec_bench.report.papers.items import Figure


def figure_rows(item: Figure, rows: pd.DataFrame, results: Path) -> pd.DataFrame:
    """The rows that a figure may take; of one without a model, those of ``item.rows``.

    Raises:
        ValueError: that file was not made yet; the message has the command.
    """
    if item.rows:
        near = [results.glob(f"{above}{item.rows}") for above in ("", "*/", "*/*/")]
        matches = [path for paths in near for path in sorted(paths)]
        if not matches:
            raise ValueError(f"no {item.rows} below {str(results)!r}; it is made by {item.command}")
        return pd.read_csv(matches[0])
    return of_recipes(rows, item.experiments)


def of_recipes(rows: pd.DataFrame, experiments: Collection[str]) -> pd.DataFrame:
    """The rows that a paper's table, figure or claim may take: of the paper's jobs, if any.

    Cells of one job share prompts, limits and baseline, and were decoded in turn; the same decoder
    at the same temperature in another paper's job need not. Without any, all rows are taken,
    wherever they come from.
    """
    if "experiment" not in rows:
        return rows
    matching = rows[rows.experiment.isin(list(experiments))]
    return rows if matching.empty else matching


def once(rows: pd.DataFrame) -> pd.DataFrame:
    """Each cell once; one that was measured twice with the larger number of prompts."""
    ordered = rows
    if "prompts" in rows:
        ordered = rows.sort_values("prompts", ascending=False, kind="stable")
    return ordered.drop_duplicates(cell_keys(rows)).sort_index(kind="stable")
