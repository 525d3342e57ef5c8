"""Picking a cell without being flattered by it: on one half of the prompts, for the other half.

Of several cells that are equal in truth the one with the best number on some prompts is too good
there, the more so the more cells there are and the fewer prompts. On other prompts it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics.interval import Interval
from spec_bench.report.data.counts import value_of_sums
from spec_bench.report.data.rows import Row

FEWEST_PICKED = 8
"""Fewer prompts pick nothing: half of them would be fewer than four."""
# Each half's pick hangs on the prompts that the other's is compared on. Of m equal cells the two
# comparisons correlate by e(m)^2 / (m - 1), e the mean of the largest of m standard normals; that
# is at most 0.36 (m = 3), by which the variance of their mean grows.
_WIDER = sqrt(1.36)
Counts = NDArray[np.float64]
Pick = Callable[[NDArray[np.bool_]], int]
"""Mask of the prompts to pick on, (prompts,) -> the picked cell's place."""


def picked_cells(side: Sequence[Row], counts: Counts, metric: str) -> Counts:
    """The counts of a side (cells, counts, repeats, prompts) with, for each prompt, the cell that
    the other half picked by the metric; as if of the side's first cell (``composed``).
    """
    if len(side) == 1:
        return counts[0]
    return composed(side, counts, metric, lambda seen: _largest(side, counts[..., seen], metric))


def composed(side: Sequence[Row], counts: Counts, metric: str, pick: Pick) -> Counts:
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


def values_of(side: Sequence[Row], counts: Counts, metric: str) -> Counts:
    """(cells,) numbers of (cells, counts, repeats, prompts); NaN where there is none."""
    sums = counts.sum(axis=(2, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [
            float(value_of_sums(totals[:, None], row, metric)[0])
            for row, totals in zip(side, sums, strict=True)
        ]
    return np.where(np.isfinite(values), values, np.nan)


def _largest(side: Sequence[Row], counts: Counts, metric: str) -> int:
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
