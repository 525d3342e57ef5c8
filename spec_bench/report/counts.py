"""Per-prompt counts behind a cell's numbers, as far as there are records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics import CellRecords, Sums, metric
from spec_bench.metrics.metric import MEASURED_ANEW
from spec_bench.records import Generation
from spec_bench.report.records import repeats_of, scores_of
from spec_bench.report.rows import Row

Counts = dict[str, tuple[float, float]]


class Records:
    """Numerators and denominators by prompt.

    Args:
        results: the results file of rows that do not name their own in a column ``file``.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self._cells: dict[tuple[str, str], list[dict[str, Counts]]] = {}
        self._sittings: dict[tuple[str, str], list[dict[str, str]]] = {}
        self._categories: dict[tuple[str, str], dict[str, str]] = {}

    def counts(self, row: Row, name: str) -> Counts | None:
        """Prompt id -> (numerator, denominator) of a metric, each summed over a prompt's repeats.

        None where there are no records.
        """
        repeats = self._by_repeat(row, name)
        if len(repeats) < 2:
            return repeats[0] if repeats else None
        return {
            prompt: (
                sum(each[prompt][0] for each in repeats),
                sum(each[prompt][1] for each in repeats),
            )
            for prompt in repeats[0]
        }

    def _by_repeat(self, row: Row, name: str) -> list[Counts]:
        """The counts of each repeat that measured the metric anew; none without records."""
        return [cell[name] for cell in self._cells[self._cell(row)] if name in cell]

    def _cell(self, row: Row) -> tuple[str, str]:
        """Where a row's records are kept here, once they are read."""
        place = path, run_id = str(row.get("file", self._results)), str(row["run_id"])
        if place not in self._cells:
            repeats = repeats_of(Path(path), run_id)
            self._cells[place] = _read(Path(path), run_id, repeats)
            self._sittings[place] = [
                {prompt: each.sitting for prompt, each in found.items()} for found in repeats
            ]
            first = repeats[0] if repeats else {}
            self._categories[place] = {name: each.category for name, each in first.items()}
        return place

    def sittings(self, row: Row) -> dict[str, dict[str, str]]:
        """Seed, or ``SEED/REPEAT`` as ``by_seed`` has it -> prompt id -> in which sitting.

        Seconds of two cells are compared where they are of one sitting, which decoded them in turn.
        """
        runs = str(row["run_id"]).split(",")
        seeds = str(row.get("seeds", row.get("seed", ""))).split(",")
        return {
            f"{seed}/{number}" if number else seed: found
            for seed, run in zip(seeds, runs, strict=True)
            for number, found in enumerate(self._sittings[self._cell({**row, "run_id": run})])
        }

    def categories(self, row: Row) -> dict[str, str]:
        """Prompt id -> its category, "" where the task's rows did not say; {} without records."""
        run = str(row["run_id"]).split(",")[0]
        return self._categories[self._cell({**row, "run_id": run})]

    def by_seed(self, row: Row, name: str) -> dict[str, Counts] | None:
        """Seed -> the counts of its run; of a row that seeds were pooled in, all of them.

        Where its prompts were measured again, ``SEED/REPEAT`` -> those of a later repeat.

        None where some run has no records.
        """
        runs = str(row["run_id"]).split(",")
        seeds = str(row.get("seeds", row.get("seed", ""))).split(",")
        found = [self._by_repeat({**row, "run_id": run}, name) for run in runs]
        if not all(found):
            return None
        return {
            f"{seed}/{number}" if number else seed: counts
            for seed, repeats in zip(seeds, found, strict=True)
            for number, counts in enumerate(repeats)
        }


def value_of(ratio: NDArray[np.float64], row: Row, name: str) -> NDArray[np.float64]:
    """The metric from its ratio of sums: MBSU is tau / (L r + 1), perplexity an exponential.

    A score is the ratio itself.
    """
    calls, share = row.get("draft_calls"), row.get("parameter_ratio")
    cell = CellRecords(
        (),
        draft_calls=None if calls is None or isnan(calls) else int(calls),
        parameter_ratio=None if share is None else float(share),
    )
    number = metric[name].of(cell) if name in metric else None
    mapped = number.mapped if isinstance(number, Sums) else None
    return ratio if mapped is None else np.vectorize(mapped, otypes=[float])(ratio)


def _read(
    path: Path, run_id: str, repeats: Sequence[Mapping[str, Generation]]
) -> list[dict[str, Counts]]:
    """What every ratio of sums is made of, by repeat, and every score that is a mean over prompts.

    Later repeats have seconds and joules only: what they delivered is what the first one did.
    """
    cells = []
    for repeat, found in enumerate(repeats):
        records = CellRecords(list(found.values()), draft_calls=0, parameter_ratio=0.0)
        cell: dict[str, Counts] = {}
        for name, each in metric.items():
            anew = each.column.kind in MEASURED_ANEW or not repeat
            number = each.of(records) if each.column.interval and anew else None
            if isinstance(number, Sums):
                pairs = zip(number.numerators, number.denominators, strict=True)
                cell[name] = dict(zip(found, pairs, strict=True))
        cells.append(cell)
    for name, own in scores_of(path, run_id).items():
        for first in cells[:1]:
            first[name] = {prompt: (value, 1.0) for prompt, value in own.items()}
    return cells
