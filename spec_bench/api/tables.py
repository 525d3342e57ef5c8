"""A table of rows as a person wants to read it. Knows column names; nothing about jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from spec_bench.vocabulary.columns import columns_in

if TYPE_CHECKING:
    import pandas as pd

Columns = Literal["main", "all"] | Sequence[str]

_NAMES = ("decoder", "spec")  # there whether they vary or not
_NUMBERS = ("block_efficiency", "token_rate", "speedup")
_VARY = ("identity", "setting")
_NEVER = (
    *("run_id", "baseline", "draft", "target", "prompts_digest", "target_revision"),
    *("draft_revision", "tree_revision", "data_revision", "data_file", "library", "stage"),
    *("lossless", "status", "reason", "simulated_acceptance", "machine"),
)


def check_columns(columns: Columns) -> None:
    """Refuses what names no columns.

    Raises:
        ValueError: naming it.
    """
    if columns in ("main", "all"):
        return
    if isinstance(columns, str) or not all(isinstance(each, str) for each in columns):
        raise ValueError(f"columns must be main, all or a list of names, got {columns!r}")


def chosen(rows: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Some columns of a table.

    Args:
        rows: one per cell, as ``results.csv`` has them.
        columns: ``all``; names; or ``main``: decoder, spec and whatever else tells the rows apart,
            prompts, the main numbers and the task's scores with the ends of their 95% intervals,
            losslessness, status and, where a cell failed, the reason.

    Raises:
        ValueError: a name that no column has.
    """
    if columns == "all":
        return rows
    if columns != "main":
        if unknown := [name for name in columns if name not in rows]:
            raise ValueError(f"no column {unknown[0]!r}; columns='all' has {', '.join(rows)}")
        return rows[list(columns)]
    known = columns_in(rows.columns)
    varying = [
        each.name
        for each in known
        if each.kind in _VARY
        and each.name not in (*_NAMES, *_NEVER)
        and rows[each.name].nunique(dropna=False) > 1
    ]
    numbers = [
        name
        for each in known
        if each.name in _NUMBERS or (each.kind == "score" and each.interval)
        for name in each.names
        if name in rows and (each.name in _NUMBERS or rows[each.name].notna().any())
    ]
    prompts = [name for name in ("prompts",) if name in rows]
    state = ["lossless", "status", *(["reason"] if (rows.status == "failed").any() else [])]
    shown = rows[[*varying, *_NAMES, *prompts, *numbers, *state]]
    return shown.astype(dict.fromkeys(numbers, float))  # not None, which no plot or mean takes
