"""The change of one cell in one number, prompt by prompt, with its interval.

A speed-up is that over the run's plain decoding, timed in turn with the cell: two machines, or one
machine on two days, differ least in it. Where prompts were measured three times
or more, each counts with the median over its repeats: a stall that hits one of them is no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log1p

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench.metrics.bootstrap import studentised_interval
from spec_bench.metrics.bounded import score_difference_interval
from spec_bench.metrics.interval import TOO_FEW, Interval
from spec_bench.metrics.many import p_value
from spec_bench.report.comparison.cells import Cell, Match, Side
from spec_bench.report.data.counts import Counts, Records, value_of_sums
from spec_bench.vocabulary.columns import Column, column, columns_in

Array = NDArray[np.float64]
Runs = Mapping[str, Counts]
_SPEEDUP, _OTHER_PROMPTS = "speedup", "other prompts"
_TIMES = "token_rate"
_ENOUGH = 3  # repeats whose median leaves out one that stalled


@dataclass(frozen=True)
class Change:
    """One number of one cell on both sides."""

    cell: str  # its name
    column: Column  # the number's
    before: float | None  # on the first side, of the prompts that both have
    after: float | None  # on the second side
    # the change with its interval, a share of `before` where `relative`; None where it is not
    # judged
    shift: Interval | None
    relative: bool  # whether it is a share
    # uncorrected p-value of no change beyond the margin; None where it is not judged
    p: float | None
    prompts: int = 0  # that both sides have
    why: str = ""  # why it is not judged; ""
    identical: bool = False  # whether no prompt differs

    @property
    def worse(self) -> bool:
        """Whether it goes the wrong way."""
        assert self.shift is not None
        return self.shift.value < 0 if self.column.better == "up" else self.shift.value > 0


def changes(match: Match, before: Side, after: Side, margin: float) -> Iterator[Change]:
    """The changes of a cell that both sides have: speed-up, block efficiency, quality.

    Args:
        match: the cell.
        before: the first side.
        after: the second side.
        margin: a speed-up that changed by this share is as good as the same.
    """
    if match.before.failed or match.after.failed:
        return
    for each in _columns(match):
        if each.kind != "score" and match.before.row["decoder"] == "ar":
            continue  # 1 by definition
        change = _change(match, each, before.records, after.records, margin)
        if change.shift is not None or None not in (change.before, change.after):
            yield change


def _columns(match: Match) -> Iterator[Column]:
    yield column(_SPEEDUP)
    yield column("block_efficiency")
    for each in columns_in({**match.before.row, **match.after.row}):
        if each.kind in ("likelihood", "score"):
            yield each


def _change(match: Match, each: Column, before: Records, after: Records, margin: float) -> Change:
    """One number's change."""
    timed = each.name == _SPEEDUP
    relative = each.kind != "score"
    name = each.name
    one, other = _number(match.before.row.get(name)), _number(match.after.row.get(name))
    if _digests(match):
        return Change(match.name, each, one, other, None, relative, None, why=_OTHER_PROMPTS)
    read = _timed if timed else partial(_counted, name=name)
    first, second = read(match.before, before), read(match.after, after)
    if timed and first and second:
        first, second = _medians(first), _medians(second)
    table, why = _table(first, second)
    if table is None:
        return Change(match.name, each, one, other, None, relative, None, why=why)
    statistic = partial(_speedup if timed else value_of_sums, row=match.before.row, name=name)
    interval = _interval(statistic, table, each)
    if interval is None:
        return Change(match.name, each, one, other, None, relative, None, why="no value")
    p = p_value(interval, log1p(margin) if timed else 0.0)
    shown = interval.mapped(lambda value: float(np.expm1(value))) if relative else interval
    # Of the prompts that both have; rows of an earlier engine, which show no times, have them too.
    half, sums = len(table) // 2, table.sum(axis=(1, 2))[:, None]
    one, other = float(statistic(sums[:half])[0]), float(statistic(sums[half:])[0])
    why, same = "" if p is not None else TOO_FEW, bool((table[:half] == table[half:]).all())
    prompts = table.shape[-1]
    return Change(match.name, each, one, other, shown, relative, p, prompts, why, same)


def _interval(statistic: Callable[..., Array], table: Array, each: Column) -> Interval | None:
    """Of the log-ratio of the sides' numbers, or of scores their difference."""
    half = len(table) // 2

    def ratio(sums: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(statistic(sums[half:])) - np.log(statistic(sums[:half]))

    def difference(sums: Array) -> Array:
        return statistic(sums[half:]) - statistic(sums[:half])

    if each.kind == "score":
        return score_difference_interval(difference, table.sum(axis=1))
    return studentised_interval(ratio, table)


def _speedup(sums: Array, **_: object) -> Array:
    """sums [4, batch]: tokens, seconds, plain decoding's tokens and seconds."""
    return (sums[0] / sums[1]) / (sums[2] / sums[3])


def _digests(match: Match) -> bool:
    """Whether the sides' digests show that their prompts differ."""
    digests = [cell.row.get("prompts_digest") for cell in (match.before, match.after)]
    known = [str(each) for each in digests if not (each is None or pd.isna(each) or each == "")]
    return len(set(known)) > 1


def _timed(cell: Cell, records: Records) -> Runs | None:
    """By seed and prompt: tokens and seconds, then those of the baseline timed in turn."""
    for base in cell.bases:
        ours, theirs = records.interleaved([cell.row, base], _TIMES) or ({}, {})
        timed = {
            seed: {prompt: (*counts, *theirs[seed][prompt]) for prompt, counts in run.items()}
            for seed, run in ours.items()
        }
        if any(timed.values()):
            return timed
    return None


def _medians(runs: Runs) -> Runs:
    """Runs of ``_timed`` with the repeats of a seed as one, where there are enough of them."""
    by_seed: dict[str, list[Counts]] = {}
    for name, run in runs.items():
        by_seed.setdefault(name.split("/")[0], []).append(run)
    if min(map(len, by_seed.values())) < _ENOUGH:
        return runs
    return {seed: _median(repeats) for seed, repeats in by_seed.items()}


def _median(repeats: Sequence[Counts]) -> Counts:
    """Of each prompt that all have: seconds in the median ratio to plain decoding's, by repeat.

    A repeat's two timings were taken in turn, so the machine's load moves their ratio least.
    """
    medians: Counts = {}
    for prompt in repeats[0]:
        if all(prompt in each for each in repeats):
            tokens, seconds, plain_tokens, plain_s = np.array([each[prompt] for each in repeats]).T
            typical_s = float(np.median(plain_s))
            cell_s = typical_s * float(np.median(seconds / plain_s))
            medians[prompt] = float(tokens[0]), cell_s, float(plain_tokens[0]), typical_s
    return medians


def _counted(cell: Cell, records: Records, name: str) -> Runs | None:
    return records.by_seed(cell.row, name)


def _table(first: Runs | None, second: Runs | None) -> tuple[Array | None, str]:
    """[counts of both sides, seeds, prompts] of their common prompts; else why there is none."""
    if not first or not second:
        return None, "no records by prompt, or none timed in turn"
    seeds = [seed for seed in first if seed in second]
    runs = [side[seed] for side in (first, second) for seed in seeds]
    common = [name for name in runs[0] if all(name in run for run in runs)] if runs else []
    if not common:
        return None, "no seed or prompt in common"
    width = len(runs[0][common[0]])
    columns = [
        [[side[seed][prompt][end] for prompt in common] for seed in seeds]
        for side in (first, second)
        for end in range(width)
    ]
    return np.array(columns, dtype=np.float64), ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not pd.isna(value) else None
