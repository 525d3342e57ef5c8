"""The lead of one set of cells over another, with a 95% interval.

A contrast has a left and a right side of one or several cells each. Of several the best one counts;
on the right a mean with given weights can count instead. The difference of several contrasts is the
mean of theirs, of relative ones the geometric mean. With records it is paired by prompt and between
contrasts. A best cell is picked on one half of the prompts and compared on the other, both ways
round: of several cells that are equal in truth the one with the best number on some prompts is too
good there, the more so the more cells and the fewer prompts there are; on other prompts it is not.
Without records there is a value but no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log, sqrt

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from spec_bench.metrics import metric as registered
from spec_bench.metrics.bootstrap import Total, studentised_interval
from spec_bench.metrics.bounded import score_difference_interval
from spec_bench.metrics.interval import TOO_FEW, WIDEST, Interval
from spec_bench.metrics.many import p_above, p_below
from spec_bench.report.claims.verdict import PValues
from spec_bench.report.data.counts import Counts, Records, value_of_sums
from spec_bench.report.data.rows import Row
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.numbers import with_ends

FEWEST_PICKED = 8
"""Fewer prompts pick nothing: half of them would be fewer than four."""
NO_RECORDS = "no records by prompt to pair the cells"
NOT_IN_TURN = "the cells were not timed in turn"
TOO_WIDE = f"its ends are a factor of more than {WIDEST:g} apart"
FEW_TO_PICK = f"fewer than {FEWEST_PICKED} prompts to pick a tree on one half and compare the other"
TIMED = frozenset(each.name for each in columns.of_kind("time", "energy"))
# Compared as left / right - 1, since another machine or text scales them; others as left - right.
RELATIVE = frozenset(
    each.name
    for each in columns.of_kind("time", "energy", "likelihood")
    if each.interval and each.unit != "×" and each.name != "host_overhead"
)
# Each half's pick hangs on the prompts that the other's is compared on. Of m equal cells the two
# comparisons correlate by e(m)^2 / (m - 1), e the mean of the largest of m standard normals; that
# is at most 0.36 (m = 3), by which the variance of their mean grows.
_WIDER = sqrt(1.36)
Table = NDArray[np.float64]
Pick = Callable[[NDArray[np.bool_]], int]
"""Mask of the prompts to pick on, (prompts,) -> the picked cell's place."""


@dataclass(frozen=True)
class Contrast:
    """Two sides to compare."""

    left: tuple[Row, ...]  # cells, of which the best counts
    right: tuple[Row, ...]  # likewise
    weights: tuple[float, ...] | None = None  # of the right cells, whose mean counts instead

    @property
    def shape(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """The compared trees; contrasts of several tasks are pooled if this is the same."""
        return tuple(
            tuple((str(row["decoder"]), str(row["spec"])) for row in side)
            for side in (self.left, self.right)
        )

    @property
    def picks(self) -> bool:
        """Whether some side has a choice."""
        return len(self.left) > 1 or (len(self.right) > 1 and self.weights is None)

    @property
    def cells(self) -> tuple[Row, ...]:
        """The left side's, then the right side's."""
        return (*self.left, *self.right)


@dataclass(frozen=True)
class Difference:
    """Left minus right, or for relative metrics left over right minus 1."""

    value: float  # on the prompts as they are; of picked cells on the halves that did not pick
    tested: Interval | None  # on the scale of the test, for relative metrics a logarithm
    relative: bool  # whether it is a share
    why: str = ""  # why there is no interval

    @property
    def paired(self) -> bool:
        """Whether there is an interval over common prompts."""
        return self.tested is not None and self.tested.low is not None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval's ends as printed."""
        interval = self.tested
        if interval is None or interval.low is None or interval.high is None:
            return None
        if not self.relative:
            return interval.low, interval.high
        return float(np.expm1(interval.low)), float(np.expm1(interval.high))

    @property
    def too_wide(self) -> bool:
        """Whether a share's interval is too wide to print."""
        interval = self.tested
        if not self.relative or interval is None or interval.low is None or interval.high is None:
            return False
        return interval.high - interval.low > log(WIDEST)

    @property
    def of_picks(self) -> Difference:
        """The same where a side was picked on one half of the prompts for the other."""
        return replace(self, tested=widened(self.tested) if self.tested else None)

    def above(self, bound: float = 0.0) -> PValues | None:
        """PValues of a claim that the difference is more than that; None without an interval."""
        if self.tested is None:
            return None
        at = float(np.log1p(bound)) if self.relative else bound
        more, less = p_above(self.tested, at), p_below(self.tested, at)
        return None if more is None or less is None else PValues(more, less)

    def below(self, bound: float = 0.0) -> PValues | None:
        """PValues of a claim that the difference is less than that."""
        p_values = self.above(bound)
        return p_values.turned if p_values else None

    def within(self, room: float) -> PValues | None:
        """PValues of a claim that the difference is at most so large, either way (two tests)."""
        over, under = self.below(room), self.above(-room)
        if over is None or under is None:
            return None
        either = min(over.against_claim, under.against_claim)
        return PValues(max(over.for_claim, under.for_claim), min(1.0, 2 * either))

    def __str__(self) -> str:
        form = "+.1%" if self.relative else "+.3f"
        if self.ends is None:
            return f"{self.value:{form}} (no interval: {self.why})"
        return with_ends(self.value, *self.ends, form)


def difference(
    strata: Sequence[Sequence[Contrast]],
    metric: str,
    records: Records,
    relative: bool | None = None,
    prompts: frozenset[str] | None = None,
) -> Difference | None:
    """The mean difference over the contrasts.

    Args:
        strata: the same contrasts on one or several tasks, whose prompts are pooled.
        metric: a registered metric.
        records: source of per-prompt counts.
        relative: left over right minus 1 instead of left minus right; None: the metric's default.
        prompts: those that count; None: all.

    Returns:
        None where a number is missing, or where several tasks cannot be pooled for lack of records.
    """
    relative = metric in RELATIVE if relative is None else relative
    contrasts = strata[0]
    shapes = [[contrast.shape for contrast in stratum] for stratum in strata]
    if not contrasts or any(shape != shapes[0] for shape in shapes):
        return None
    tables = [counts_of(stratum, metric, records, prompts) for stratum in strata]
    known = [table for table in tables if table is not None]
    if len(known) < len(strata):
        return None if len(strata) > 1 else _from_rows(contrasts, metric, records, relative)
    return of_table(contrasts, _together(known), metric, relative)


def of_table(
    contrasts: Sequence[Contrast], table: Table, metric: str, relative: bool
) -> Difference | None:
    """The mean difference from counts [every contrast's cells in their order, repeats, prompts]."""
    picks = any(contrast.picks for contrast in contrasts)
    if picks:
        if table.shape[2] < FEWEST_PICKED:
            value = _on_all(contrasts, table, metric, relative)
            return None if value is None else Difference(value, None, relative, FEW_TO_PICK)
        contrasts, table = _settled(contrasts, table, metric)
    statistic = _mean_difference(contrasts, metric, relative, _widths(contrasts, table))
    # Scores are bounded and often equal; all else is smooth in the sums. Repeats are blocks.
    if metric in registered:
        interval = studentised_interval(statistic, table)
    else:
        interval = score_difference_interval(statistic, table.sum(axis=1))
    if interval is None:
        return None
    value = float(np.expm1(interval.value)) if relative else interval.value
    gap = Difference(value, interval, relative, TOO_FEW)
    gap = gap.of_picks if picks else gap
    return replace(gap, tested=Interval(value), why=TOO_WIDE) if gap.too_wide else gap


def _on_all(
    contrasts: Sequence[Contrast], table: Table, metric: str, relative: bool
) -> float | None:
    """The difference of cells picked on the prompts that they are compared on."""
    sums = table.sum(axis=(1, 2))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = _mean_difference(contrasts, metric, relative, _widths(contrasts, table))(sums)[0]
    if not np.isfinite(mean):
        return None
    return float(np.expm1(mean)) if relative else float(mean)


def _settled(
    contrasts: Sequence[Contrast], table: Table, metric: str
) -> tuple[list[Contrast], Table]:
    """The contrasts with one cell on a side that has a choice, and that cell's counts.

    Of each prompt it is the counts of the cell that the other half of the prompts picked.
    """
    settled, parts, start = [], [], 0
    for contrast, width in zip(contrasts, _widths(contrasts, table), strict=True):
        block = table[start : start + width]
        start += width
        block = block.reshape(len(contrast.cells), -1, *block.shape[1:])
        left, rest = block[: len(contrast.left)], block[len(contrast.left) :]
        parts.append(picked_cells(contrast.left, left, metric))
        if contrast.weights is None:
            rest = picked_cells(contrast.right, rest, metric)[None]
        parts.extend(rest)
        right = contrast.right[:1] if contrast.weights is None else contrast.right
        settled.append(Contrast(contrast.left[:1], right, contrast.weights))
    return settled, np.concatenate(parts)


def counts_of(
    contrasts: Sequence[Contrast],
    metric: str,
    records: Records,
    prompts: frozenset[str] | None = None,
) -> Table | None:
    """[counts of every cell, seeds, prompts] such as numerators and denominators; None without.

    Of the seeds and prompts that all cells have; of times, that one sitting decoded in turn.
    """
    rows = [row for contrast in contrasts for row in contrast.cells]
    cells = (
        records.interleaved(rows, metric) if metric in TIMED else _counted(rows, metric, records)
    )
    if cells is None:
        return None
    seeds = [seed for seed in cells[0] if all(seed in runs for runs in cells)]
    runs = [runs[seed] for runs in cells for seed in seeds]
    common = [prompt for prompt in runs[0] if all(prompt in run for run in runs)] if runs else []
    common = [prompt for prompt in common if prompts is None or prompt in prompts]
    if not common:
        return None
    columns = [
        [[runs[seed][prompt][end] for prompt in common] for seed in seeds]
        for runs in cells
        for end in range(len(runs[seeds[0]][common[0]]))
    ]
    return np.array(columns, dtype=np.float64)


def _counted(rows: Sequence[Row], metric: str, records: Records) -> list[dict[str, Counts]] | None:
    """Each row's counts by seed; None where a row has no records."""
    counts = [records.by_seed(row, metric) for row in rows]
    known = [each for each in counts if each is not None]
    return known if len(known) == len(counts) else None


def _together(tables: Sequence[Table]) -> Table:
    """Several tasks' prompts side by side; where their numbers of seeds differ, seeds summed."""
    if len({table.shape[1] for table in tables}) > 1:
        tables = [table.sum(axis=1, keepdims=True) for table in tables]
    return np.concatenate(tables, axis=2)


def _widths(contrasts: Sequence[Contrast], table: Table) -> list[int]:
    """The number of columns of the table for each contrast; every cell has as many."""
    cells = [len(contrast.cells) for contrast in contrasts]
    return [count * (len(table) // sum(cells)) for count in cells]


def _mean_difference(
    contrasts: Sequence[Contrast], metric: str, relative: bool, widths: Sequence[int]
) -> Total:
    """Of sums [counts of every cell, batch]: the contrasts' mean, [batch]."""
    return Total(
        tuple(
            (width, partial(_share, contrast, metric, relative, len(contrasts)))
            for contrast, width in zip(contrasts, widths, strict=True)
        )
    )


def _share(contrast: Contrast, metric: str, relative: bool, of: int, sums: Table) -> Table:
    """One contrast's part of the mean of so many: sums [counts of its cells, batch] -> [batch]."""
    each = iter(np.split(sums, len(contrast.cells)))
    best = []
    for side, weights in ((contrast.left, None), (contrast.right, contrast.weights)):
        rates = [value_of_sums(next(each), row, metric) for row in side]
        best.append(np.max(rates, axis=0) if weights is None else np.dot(weights, rates))
    with np.errstate(divide="ignore", invalid="ignore"):
        return (np.log(best[0]) - np.log(best[1]) if relative else best[0] - best[1]) / of


def _from_rows(
    contrasts: Sequence[Contrast], metric: str, records: Records, relative: bool
) -> Difference | None:
    """The value alone: the cells' own intervals are over the same prompts.

    An interval of the difference depends on how far prompts move both cells alike, known from
    records only; to take the cells as independent gives intervals several times too wide.
    """
    values = []
    for contrast in contrasts:
        left, right = _best(contrast.left, metric), _right(contrast, metric)
        if left is None or right is None or (relative and min(left, right) <= 0):
            return None
        values.append(np.log(left / right) if relative else left - right)
    sides = [row for contrast in contrasts for row in contrast.cells]
    recorded = all(records.by_seed(row, metric) for row in sides)
    why = NOT_IN_TURN if recorded and metric in TIMED else NO_RECORDS
    mean = float(np.mean(values))
    return Difference(float(np.expm1(mean)) if relative else mean, None, relative, why)


def _right(contrast: Contrast, metric: str) -> float | None:
    """The right side's value; None where some cell has none."""
    if contrast.weights is None:
        return _best(contrast.right, metric)
    cells = [_best((row,), metric) for row in contrast.right]
    known = [cell for cell in cells if cell is not None]
    return None if len(known) < len(cells) else float(np.dot(contrast.weights, known))


def _best(side: Sequence[Row], metric: str) -> float | None:
    """The best cell's value; None where some cell has no value."""
    if any(pd.isna(row.get(metric)) for row in side):
        return None
    return max(float(row[metric]) for row in side)


def picked(side: Sequence[Row], metric: str) -> str:
    """The best cell's tree, and of how many."""
    known = [row for row in side if not pd.isna(row.get(metric))]
    if not known:
        return "-"
    best = max(known, key=lambda row: float(row[metric]))
    many = f" (best of {len(side)} on all prompts)" if len(side) > 1 else ""
    return f"{best['decoder']} {best['spec']}{many}"


def picked_cells(side: Sequence[Row], counts: Table, metric: str) -> Table:
    """The counts of a side (cells, counts, repeats, prompts) with, for each prompt, the cell that
    the other half picked by the metric; as if of the side's first cell (``composed``).
    """
    if len(side) == 1:
        return counts[0]
    return composed(side, counts, metric, lambda seen: _largest(side, counts[..., seen], metric))


def composed(side: Sequence[Row], counts: Table, metric: str, pick: Pick) -> Table:
    """``picked_cells`` with the caller's choice.

    The factor of a metric's ratio (MBSU's 1 / (L r + 1)) is carried over from the picked cell to
    the side's first one.
    """
    first = np.arange(counts.shape[-1]) % 2 == 0
    chosen = np.empty_like(counts[0])
    for half in (first, ~first):
        place = pick(~half)
        cell = counts[place][..., half].copy()
        cell[0] *= _factor(side[place], metric) / _factor(side[0], metric)
        chosen[..., half] = cell
    return chosen


def values_of(side: Sequence[Row], counts: Table, metric: str) -> Table:
    """(cells,) numbers of (cells, counts, repeats, prompts); NaN where there is none."""
    sums = counts.sum(axis=(2, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [
            float(value_of_sums(totals[:, None], row, metric)[0])
            for row, totals in zip(side, sums, strict=True)
        ]
    return np.where(np.isfinite(values), values, np.nan)


def _largest(side: Sequence[Row], counts: Table, metric: str) -> int:
    values = values_of(side, counts, metric)
    return 0 if np.isnan(values).all() else int(np.nanargmax(values))


def widened(interval: Interval) -> Interval:
    """The interval of both halves' comparison together, as wide as their correlation may ask."""
    if interval.low is None or interval.high is None:
        return interval
    value = interval.value
    low, high = (value + (end - value) * _WIDER for end in (interval.low, interval.high))
    return replace(interval, low=low, high=high)


def _factor(row: Row, metric: str) -> float:
    """A cell's MBSU over its block efficiency; 1 for any other metric."""
    if metric != "mbsu":
        return 1.0
    return float(value_of_sums(np.ones((2, 1)), row, metric)[0])


def fisher(r: float, count: int) -> tuple[float, float, PValues]:
    """The 95% interval of a correlation by Fisher's z, and the p-values of its being positive."""
    z, error = float(np.arctanh(r)), 1 / sqrt(count - 3)
    low, high = (float(np.tanh(z + sign * 1.96 * error)) for sign in (-1, 1))
    return low, high, PValues(float(ndtr(-z / error)), float(ndtr(z / error)))
