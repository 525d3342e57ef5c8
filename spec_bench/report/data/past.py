"""Rows that an earlier engine timed, and those of past states: the part of them that holds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from spec_bench.records.types import ENGINE
from spec_bench.system import files
from spec_bench.vocabulary.columns import columns_in

_TIMED = ("time", "energy")


def of_past_engine(rows: pd.DataFrame) -> pd.Series:
    """Marks rows that another engine than this one decoded; without a column ``engine``, all."""
    engine = rows["engine"].fillna(0) if "engine" in rows else pd.Series(0, rows.index)
    return (engine != ENGINE) & (rows.status != "failed")


def archived(table: Path) -> int:
    """The number of rows of past states in the archive beside a results file."""
    path = files.archive_file(table)
    return len(files.read_csv(path)) if path.is_file() else 0


def without_past_times(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with empty cells for times and energy that an earlier engine took.

    Counts (block efficiency, acceptance) and scores of the answers hold for any engine that decodes
    the same distribution; times do not.

    Args:
        rows: as files have them; without a column ``engine`` they are from before there was one.

    Returns:
        The rows; those of another ``ENGINE`` have no number in any column of time or energy, and a
        reason that says so.
    """
    past = of_past_engine(rows)
    timed = [
        name for each in columns_in(rows.columns) if each.kind in _TIMED for name in each.names
    ]
    held = [name for name in timed if name in rows and name != "energy_method"]
    if not past.any() or not held:
        return rows
    emptied = rows.copy()
    emptied[held] = emptied[held].mask(past)
    why = f"speedup: timed by an earlier engine, now {ENGINE}"
    notes = emptied["reason"].fillna("") if "reason" in rows else pd.Series("", rows.index)
    emptied["reason"] = notes.mask(past, notes.map(lambda text: f"{text}; {why}" if text else why))
    return emptied
