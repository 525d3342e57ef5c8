"""Per-prompt counts behind a cell's numbers, read from its raw records where they are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics import efficiency
from spec_bench.records import Generation
from spec_bench.report.rows import Row, generations_of

_SUMS: dict[str, Callable[[Sequence[Generation]], efficiency.Sums | None]] = {
    "block_efficiency": efficiency.emitted_per_call,
    "mbsu": efficiency.emitted_per_call,
    "token_rate": efficiency.tokens_per_decode_s,
    "token_rate_per_request": efficiency.tokens_per_latency_s,
    "acceptance_rate": efficiency.acceptance,
    "beam_width": efficiency.beams_per_layer,
    "perplexity": efficiency.surprise_per_token,
    "energy_j_per_token": efficiency.energy_per_token,
}
METRICS = tuple(_SUMS)
"""The metrics that can be compared prompt by prompt; scores have no records."""

Counts = dict[str, tuple[float, float]]


class Records:
    """Numerators and denominators by prompt.

    Args:
        results: the results file of rows that do not name their own in a column ``file``.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self._cells: dict[tuple[str, str], dict[str, Counts] | None] = {}

    def counts(self, row: Row, metric: str) -> Counts | None:
        """Prompt id -> (numerator, denominator) of a metric; None where there are no records."""
        path, run_id = str(row.get("file", self._results)), str(row["run_id"])
        if (path, run_id) not in self._cells:
            self._cells[path, run_id] = _read(Path(path), run_id)
        cell = self._cells[path, run_id]
        return None if cell is None else cell.get(metric)


def factor(row: Row, metric: str) -> float:
    """What a ratio of sums is multiplied by to be the metric: MBSU is tau / (L r + 1)."""
    if metric != "mbsu":
        return 1.0
    return efficiency.mbsu(1.0, int(row["draft_calls"]), float(row["parameter_ratio"]))


def value_of(ratio: NDArray[np.float64], row: Row, metric: str) -> NDArray[np.float64]:
    """The metric from its ratio of sums: perplexity is the exponential of what it has per token."""
    return np.exp(ratio) if metric == "perplexity" else ratio * factor(row, metric)


def _read(path: Path, run_id: str) -> dict[str, Counts] | None:
    found = generations_of(path, run_id)
    if not found:
        return None
    generations = list(found.values())
    cell: dict[str, Counts] = {}
    for metric, sums_of in _SUMS.items():
        sums = sums_of(generations)
        if sums is None:
            continue
        pairs = zip(sums.numerators, sums.denominators, strict=True)
        cell[metric] = dict(zip(found, pairs, strict=True))
    return cell
