"""Per-prompt counts behind a cell's numbers, as far as there are records."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics import CellRecords, Sums, metric
from spec_bench.report.records import repeats_of
from spec_bench.report.rows import Row

Counts = dict[str, tuple[float, float]]


class Records:
    """Numerators and denominators by prompt.

    Args:
        results: the results file of rows that do not name their own in a column ``file``.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self._cells: dict[tuple[str, str], dict[str, Counts] | None] = {}

    def counts(self, row: Row, name: str) -> Counts | None:
        """Prompt id -> (numerator, denominator) of a metric; None where there are no records."""
        path, run_id = str(row.get("file", self._results)), str(row["run_id"])
        if (path, run_id) not in self._cells:
            self._cells[path, run_id] = _read(Path(path), run_id)
        cell = self._cells[path, run_id]
        return None if cell is None else cell.get(name)

    def by_seed(self, row: Row, name: str) -> dict[str, Counts] | None:
        """Seed -> the counts of its run; of a row that seeds were pooled in, all of them.

        None where some run has no records.
        """
        runs = str(row["run_id"]).split(",")
        seeds = str(row.get("seeds", row.get("seed", ""))).split(",")
        found = [self.counts({**row, "run_id": run}, name) for run in runs]
        known = [counts for counts in found if counts is not None]
        return dict(zip(seeds, known, strict=True)) if len(known) == len(found) else None


def value_of(ratio: NDArray[np.float64], row: Row, name: str) -> NDArray[np.float64]:
    """The metric from its ratio of sums: MBSU is tau / (L r + 1), perplexity an exponential."""
    calls, share = row.get("draft_calls"), row.get("parameter_ratio")
    cell = CellRecords(
        (),
        draft_calls=None if calls is None or isnan(calls) else int(calls),
        parameter_ratio=None if share is None else float(share),
    )
    number = metric[name].of(cell)
    mapped = number.mapped if isinstance(number, Sums) else None
    return ratio if mapped is None else np.vectorize(mapped, otypes=[float])(ratio)


def _read(path: Path, run_id: str) -> dict[str, Counts] | None:
    """What every ratio of sums is made of, a prompt's repeats summed; scores have no records."""
    repeats = [list(found.values()) for found in repeats_of(path, run_id)]
    if not repeats:
        return None
    first, *again = repeats
    records = CellRecords(first, again=again, draft_calls=0, parameter_ratio=0.0)
    cell: dict[str, Counts] = {}
    for name, each in metric.items():
        number = each.of(records) if each.column.interval else None
        if isinstance(number, Sums):
            above, below = (each.sum(axis=0).tolist() for each in number.blocks())
            names = (generation.prompt_id for generation in first)
            cell[name] = dict(zip(names, zip(above, below, strict=True), strict=True))
    return cell
