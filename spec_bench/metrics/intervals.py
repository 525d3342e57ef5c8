"""95% intervals of ratios, means and medians over prompts, and over repeats of a run.

Rates and their ratios use the studentised bootstrap (Efron and Tibshirani, An Introduction to the
Bootstrap, section 12.5) of the logarithm: each resample is measured in its own standard error,
which percentiles leave out, so that they come out too narrow where answers' lengths are skewed.
Scores, which are bounded and often the same on many prompts, have intervals of their own
(``bounded``). How often the intervals cover is measured by ``scripts/check/interval_coverage.py``
and ``scripts/check/verdict_null.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp

import numpy as np
from numpy.typing import ArrayLike

from spec_bench.metrics.bootstrap import Array, Statistic, studentised_interval
from spec_bench.metrics.bounded import score_interval
from spec_bench.metrics.interval import FEWEST, LEVEL, Interval


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """Interval of a ratio of sums, numerator and denominator paired by prompt.

    Studentised, on the logarithm where every numerator is positive.

    Args:
        numerators: one per prompt, or (repeats, prompts).
        denominators: likewise.
    """
    columns = np.stack([np.asarray(numerators, float), np.asarray(denominators, float)])
    return _on_log_scale(lambda sums: sums[0] / sums[1], columns)


def mean_interval(
    values: Sequence[float],
    counts: Sequence[float] | None = None,
    least: float = 0.0,
    most: float = 1.0,
) -> Interval:
    """Interval of a mean score over prompts.

    Args:
        values: a score per prompt, or a sum of as many scores as ``counts`` says.
        counts: how many scores each prompt has; None: one.
        least: the smallest score that there is.
        most: the largest.

    Raises:
        ValueError: no prompts.
    """
    below = [1.0] * len(values) if counts is None else counts
    interval = score_interval(lambda sums: sums[0] / sums[1], [values, below], least, most)
    assert interval is not None, "a mean over at least one prompt has a value"
    return interval if counts else replace(interval, by_prompt=tuple(values))


def median_interval(values: Sequence[float]) -> Interval:
    """The median with the order statistics that enclose it, whatever the distribution of the
    values.

    The narrowest pair of equal ranks from both ends that covers the distribution's median in at
    least 95% of samples (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.6).

    Args:
        values: one per prompt, independent of each other.

    Returns:
        The interval; fewer than six values have no ends.

    Raises:
        ValueError: no values.
    """
    from scipy.special import bdtr

    ranked = np.sort(np.asarray(values, dtype=np.float64))
    if not ranked.size:
        raise ValueError("a median needs at least one value")
    # Leaving out that many at each end misses the median with this probability.
    missed = 2 * bdtr(np.arange(ranked.size // 2, dtype=np.float64), ranked.size, 0.5)
    left_out = int((missed <= 1 - LEVEL).sum()) - 1
    median = float(np.median(ranked))
    if left_out < 0:
        return Interval(median)
    assert ranked.size >= FEWEST, "fewer enclose no median"
    return Interval(median, float(ranked[left_out]), float(ranked[-1 - left_out]))


def rate_ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    base_numerators: ArrayLike,
    base_denominators: ArrayLike,
) -> Interval | None:
    """Interval of one ratio of sums over another, all four paired by prompt (a speed-up).

    Each is one number per prompt, or (repeats, prompts).
    """
    parts = (numerators, denominators, base_numerators, base_denominators)
    columns = np.stack([np.asarray(part, float) for part in parts])
    return _on_log_scale(lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]), columns)


def _on_log_scale(ratio: Statistic, columns: Array) -> Interval | None:
    """The interval of a ratio, laid out on its logarithm if all inputs are positive."""
    if not columns.size or not (columns > 0).all():
        return studentised_interval(ratio, columns)
    interval = studentised_interval(lambda sums: np.log(ratio(sums)), columns)
    if interval is None:
        return None
    totals = columns.reshape(len(columns), -1).sum(axis=1, keepdims=True)
    return replace(interval.mapped(exp), value=float(ratio(totals)[0]))
