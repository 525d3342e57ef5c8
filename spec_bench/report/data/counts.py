"""Per-prompt counts behind a cell's numbers, as far as there are records.

Seconds of two cells are compared where one session decoded both in turn. A baseline that later
sessions timed again has several timings of a prompt: that of the other cell's session counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics import CellRecords, Sums, metric
from spec_bench.metrics.metric import MEASURED_ANEW
from spec_bench.metrics.quality import score_of_sums
from spec_bench.records.types import Generation
from spec_bench.report.data.records import repeats_of, retimed_of, scores_of
from spec_bench.report.data.rows import Row, number_in

_FEWEST_ROUNDS = 2  # one round has no spread
Counts = dict[str, tuple[float, ...]]
"""Prompt id -> numerator and denominator, or the numbers that a score is made of by their sums."""
Timings = dict[str, dict[str, tuple[float, ...]]]
"""Prompt id -> session -> numerator and denominator."""


@dataclass
class _Cell:
    """A cell's counts, sessions and categories."""

    repeats: list[dict[str, Counts]]  # counts by metric, of each repeat
    sittings: list[dict[str, str]]  # the session of each prompt, of each repeat
    # counts by metric of prompts that later sessions timed again, by repeat and session
    again: dict[tuple[int, str], dict[str, Counts]]
    categories: dict[str, str]  # of each prompt


class Records:
    """Numerators and denominators by prompt; of rows without a column ``file`` those beside
    ``results``.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self._cells: dict[tuple[str, str], _Cell] = {}

    def counts(self, row: Row, name: str) -> Counts | None:
        """Prompt id -> the sums behind a metric over its repeats, mostly numerator and denominator;
        None without records.
        """
        return summed(self._by_repeat(row, name))

    def _by_repeat(self, row: Row, name: str) -> list[Counts]:
        """Returns the counts of each repeat that measured the metric anew; none without records."""
        return [cell[name] for cell in self._cell(row).repeats if name in cell]

    def _cell(self, row: Row) -> _Cell:
        """Returns a row's records, read once."""
        place = path, run_id = str(row.get("file", self._results)), str(row["run_id"])
        if place not in self._cells:
            self._cells[place] = _read(Path(path), run_id)
        return self._cells[place]

    def interleaved(self, rows: Sequence[Row], name: str) -> list[dict[str, Counts]] | None:
        """Returns the counts of seconds or joules that one session measured in turn for all rows.

        For each row, by seed as ``by_seed`` has it, of the seeds that all rows have; without the
        prompts that no session decoded for all of them. None where some row has no records.
        """
        cells = [self._timings(row, name) for row in rows]
        if not all(cells):
            return None
        seeds = [seed for seed in cells[0] if all(seed in cell for cell in cells)]
        counts: list[dict[str, Counts]] = [{seed: {} for seed in seeds} for _ in cells]
        for seed in seeds:
            for prompt, first in cells[0][seed].items():
                timed = [cell[seed].get(prompt, {}) for cell in cells]
                if shared := [sat for sat in first if all(sat in each for each in timed)]:
                    for by_seed, each in zip(counts, timed, strict=True):
                        by_seed[seed][prompt] = each[shared[0]]
        return counts

    def _timings(self, row: Row, name: str) -> dict[str, Timings]:
        """By seed the counts of each session, the cell's first; {} where some run has none."""
        timings: dict[str, Timings] = {}
        for seed, run in _runs(row):
            cell = self._cell({**row, "run_id": run})
            whole = [counts[name] for counts in cell.repeats if name in counts]
            if not whole:
                return {}
            for number, (counts, sat) in enumerate(zip(whole, cell.sittings, strict=False)):
                timed = {prompt: {sat[prompt]: pair} for prompt, pair in counts.items()}
                for (repeat, sitting), again in cell.again.items():
                    for prompt, pair in again.get(name, {}).items() if repeat == number else ():
                        timed.setdefault(prompt, {}).setdefault(sitting, pair)
                timings[_seed_of(seed, number)] = timed
        return timings

    def categories(self, row: Row) -> dict[str, str]:
        """Prompt id -> its category, "" where the task's rows have none; {} without records."""
        run = str(row["run_id"]).split(",")[0]
        return self._cell({**row, "run_id": run}).categories

    def by_seed(self, row: Row, name: str) -> dict[str, Counts] | None:
        """Seed -> the counts of its run, of a row that seeds were pooled in all of them, and where
        its prompts were measured again ``SEED/REPEAT`` -> those of a later repeat; None where some
        run has no records.
        """
        runs = [(seed, self._by_repeat({**row, "run_id": run}, name)) for seed, run in _runs(row)]
        if not all(repeats for _, repeats in runs):
            return None
        return {
            _seed_of(seed, number): counts
            for seed, repeats in runs
            for number, counts in enumerate(repeats)
        }


class Rounds(Records):
    """Records of which seconds of different jobs may be compared, round by round.

    A round is every job once, under one seed, on one machine. Each round's difference includes
    the drift of that machine between two jobs, so that rounds differ: an interval over prompts and
    rounds covers the drift, one over the prompts of a single round does not.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records._results)
        self._cells = records._cells

    def interleaved(self, rows: Sequence[Row], name: str) -> list[dict[str, Counts]] | None:
        """The counts that one session measured; else those of at least two rounds, by seed, a
        prompt's repeats summed, which are of one job.
        """
        timed = super().interleaved(rows, name)
        if timed and any(timed[0].values()):
            return timed
        cells = [
            {seed: self.counts({**row, "run_id": run}, name) for seed, run in _runs(row)}
            for row in rows
        ]
        seeds = [seed for seed in cells[0] if all(cell.get(seed) is not None for cell in cells)]
        if len(seeds) < _FEWEST_ROUNDS:
            return None
        return [{seed: cell[seed] or {} for seed in seeds} for cell in cells]


def _runs(row: Row) -> list[tuple[str, str]]:
    """Returns a row's seeds with the runs that were pooled in it."""
    seeds = str(row.get("seeds", row.get("seed", ""))).split(",")
    return list(zip(seeds, str(row["run_id"]).split(","), strict=True))


def _seed_of(seed: str, repeat: int) -> str:
    return f"{seed}/{repeat}" if repeat else seed


def value_of_sums(sums: NDArray[np.float64], row: Row, name: str) -> NDArray[np.float64]:
    """Returns the metric or score from what it is made of by sums, ``(counts, batch)``."""
    made = None if name in metric else score_of_sums(name, len(sums))
    return value_of(sums[0] / sums[1], row, name) if made is None else made(sums)


def arrays(
    cells: Iterable[Counts], prompts: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``[cells, prompts]`` numerators and denominators."""
    both = np.array([[cell[prompt][:2] for prompt in prompts] for cell in cells], float)
    return both[..., 0], both[..., 1]


def summed(repeats: Sequence[Counts]) -> Counts | None:
    """The counts of the prompts that all repeats have, summed over these; None without any."""
    if len(repeats) < 2:
        return repeats[0] if repeats else None
    return {
        prompt: tuple(map(sum, zip(*(each[prompt] for each in repeats), strict=True)))
        for prompt in repeats[0]
        if all(prompt in each for each in repeats)
    }


def value_of(ratio: NDArray[np.float64], row: Row, name: str) -> NDArray[np.float64]:
    """The metric from its ratio of sums: MBSU is tau / (L r + 1), perplexity an exponential; a
    score is the ratio itself.
    """
    share = row.get("parameter_ratio")
    ratio_of = None if share is None else float(share)
    cell = CellRecords((), draft_calls=number_in(row, "draft_calls"), parameter_ratio=ratio_of)
    number = metric[name].of(cell) if name in metric else None
    mapped = number.mapped if isinstance(number, Sums) else None
    return ratio if mapped is None else np.vectorize(mapped, otypes=[float])(ratio)


def _read(path: Path, run_id: str) -> _Cell:
    """The sums behind every ratio, by repeat, and every score; of later repeats seconds and joules
    only: they delivered the same answers as the first.
    """
    repeats = repeats_of(path, run_id)
    cells = [_counts(records.values(), anew=bool(repeat)) for repeat, records in enumerate(repeats)]
    for name, scores in scores_of(path, run_id).items():
        for first in cells[:1]:
            first[name] = {
                prompt: (float(each), 1.0) if isinstance(each, int | float) else tuple(each)
                for prompt, each in scores.items()
            }
    again: dict[tuple[int, str], list[Generation]] = {}
    for each in retimed_of(path, run_id):
        again.setdefault((each.repeat, each.sitting), []).append(each)
    return _Cell(
        cells,
        [{prompt: each.sitting for prompt, each in records.items()} for records in repeats],
        {place: _counts(timed, anew=True) for place, timed in again.items()},
        {name: each.category for records in repeats[:1] for name, each in records.items()},
    )


def _counts(generations: Iterable[Generation], anew: bool) -> dict[str, Counts]:
    """By metric the counts of every prompt, one generation each; ``anew``: the prompts' again, of
    which seconds and joules alone are new.
    """
    records = CellRecords(list(generations), draft_calls=0, parameter_ratio=0.0)
    counts: dict[str, Counts] = {}
    for name, each in metric.items():
        wanted = each.column.kind in MEASURED_ANEW or not anew
        number = each.of(records) if each.column.interval and wanted else None
        if isinstance(number, Sums):
            pairs = zip(number.numerators, number.denominators, strict=True)
            counts[name] = dict(zip(records.ids, pairs, strict=True))
    return counts
