"""95% intervals of rates, over prompts and over repeats of a run.

A rate and a ratio of rates have the bootstrap's interval of their logarithm (``resampling``).
Tokens per call of a look-up that seldom hits are equal on most prompts, where resampling shows too
little spread: ``interval_where_few_differ`` treats them like differences of scores. A median is
between two order statistics.

``scripts/check/interval_coverage.py`` and ``scripts/check/verdict_null.py`` measure how often the
intervals cover the true value.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isfinite, nan
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spec_bench.metrics.interval import FEWEST, LEVEL, WIDEST, Interval
from spec_bench.metrics.resampling import Array, Statistic, bootstrap_intervals, make_checked_table
from spec_bench.metrics.score_intervals import score_difference_interval
from spec_bench.system.groups import make_in_groups

# Power of tokens per call that a column is proportional to.
AS_TAU = {
    "speedup": 1,
    "speedup_end_to_end": 1,
    "token_rate": 1,
    "token_rate_end_to_end": 1,
    "token_rate_per_request": 1,
    "energy_j_per_token": -1,
}


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    largest_difference: float = nan,
) -> Interval | None:
    """Computes the interval of a ratio of sums from (prompts,) or (repeats, prompts), paired by
    prompt: studentised, on the logarithm if all numbers are positive, or
    ``interval_where_few_differ``.
    """
    table = _stack_columns(numerators, denominators)
    return (
        interval_where_few_differ(RATIOS[2], table, largest_difference)
        or ratio_intervals([table])[0]
    )


def rate_ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    baseline_numerators: ArrayLike,
    baseline_denominators: ArrayLike,
) -> Interval | None:
    """Computes the interval of one ratio of sums over another (a speed-up), paired by prompt."""
    return ratio_intervals(
        [_stack_columns(numerators, denominators, baseline_numerators, baseline_denominators)]
    )[0]


def ratio_intervals(tables: Sequence[Array]) -> list[Interval | None]:
    """Computes intervals for tables (columns, repeats, prompts): with two columns of a ratio of
    sums, with four of one such ratio over another. None for a ratio without a value.
    """
    return make_in_groups(
        _make_same_shape_ratio_intervals,
        tables,
        lambda table: (table.shape, bool((table > 0).all())),
    )


RATIOS: dict[int, Statistic] = {
    2: lambda sums: sums[0] / sums[1],
    4: lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]),
}
"""Statistics by number of columns: a ratio of sums, and one such ratio over another."""


def _stack_columns(*parts: ArrayLike) -> Array:
    """Stacks a cell's columns to a table (columns, repeats, prompts)."""
    return make_checked_table(np.stack([np.asarray(part, float) for part in parts]))


def _make_same_shape_ratio_intervals(tables: Sequence[Array]) -> list[Interval | None]:
    """Computes intervals for tables of one shape, on the logarithm if all numbers are positive."""
    ratio = RATIOS[len(tables[0])]
    if not (tables[0] > 0).all():
        return bootstrap_intervals(ratio, tables)
    sums = np.stack([table.reshape(len(table), -1).sum(axis=1) for table in tables], axis=1)
    log_intervals = bootstrap_intervals(lambda sums: np.log(ratio(sums)), tables)
    return [
        interval and replace(interval.map(exp), value=value)
        for interval, value in zip(log_intervals, ratio(sums).tolist(), strict=True)
    ]


def median_interval(values: Sequence[float]) -> Interval:
    """Computes the median of one number per prompt between order statistics, for any distribution:
    the narrowest pair of equal ranks from both ends that covers the median in at least 95% of
    samples (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.6). Without ends for
    fewer than six values. Raises ValueError if there are none.
    """
    from scipy.special import bdtr

    sorted_values = np.sort(np.asarray(values, dtype=np.float64))
    if not sorted_values.size:
        raise ValueError("a median needs at least one value")
    # At index k: the probability to miss the median if k values are left out at each end.
    miss_chances = 2 * bdtr(
        np.arange(sorted_values.size // 2, dtype=np.float64), sorted_values.size, 0.5
    )
    left_out = int((miss_chances <= 1 - LEVEL).sum()) - 1
    median = float(np.median(sorted_values))
    if left_out < 0:
        return Interval(median)
    assert sorted_values.size >= FEWEST, "fewer enclose no median"
    return Interval(median, float(sorted_values[left_out]), float(sorted_values[-1 - left_out]))


class MajorityValue(NamedTuple):
    """The value that a statistic has on most single prompts."""

    value: float
    unlike_count: int  # prompts with a different value


def find_majority_value(statistic: Statistic, columns: ArrayLike) -> MajorityValue | None:
    """Finds the value of a statistic on most single prompts; None if ``FEWEST`` or half have
    another.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(make_checked_table(columns).sum(axis=1))
    finite = values[np.isfinite(values)]
    majority_value = float(np.median(finite)) if finite.size else 0.0
    unlike_count = finite.size - int(np.isclose(finite, majority_value, rtol=1e-9).sum())
    return (
        MajorityValue(majority_value, unlike_count)
        if unlike_count < FEWEST and 2 * unlike_count < finite.size
        else None
    )


def interval_where_few_differ(
    statistic: Statistic, columns: ArrayLike, largest_difference: float
) -> Interval | None:
    """Computes the interval of a statistic that few prompts change; None if many do, or with
    repeats, or for fewer than ``FEWEST`` prompts.

    It is the interval of a difference of scores, taken from the value of most prompts.
    ``largest_difference`` is how far a prompt can be from that value: after five look-ups without a
    hit, the sixth may hit. If it is 0 the interval is exact; if it is not known there are no ends.
    """
    table = make_checked_table(columns)
    data = table.sum(axis=1)
    majority_and_unlike = find_majority_value(statistic, data)
    if majority_and_unlike is None or table.shape[1] > 1 or table.shape[2] < FEWEST:
        return None
    majority_value, unlike_count = majority_and_unlike
    interval = score_difference_interval(
        lambda sums: statistic(sums) - majority_value, data, largest_difference
    )
    interval = interval and interval.map(lambda number: number + majority_value)
    if interval is None or not isfinite(largest_difference):
        return interval and Interval(interval.value)
    return replace(interval, shrink_power=0.75 if unlike_count else 1.0)


def widen_to_tau_width(interval: Interval, tau: Interval | None, column_name: str) -> Interval:
    """Widens a column's interval to the relative width of that of tokens per call, if few prompts
    differ in these: future prompts with more tokens per call are faster in proportion. Ends of a
    speed-up that differ by the factor ``WIDEST`` or more are ignored.
    """
    if column_name not in AS_TAU or not (
        interval.ends and tau and tau.ends and tau.shrink_power > 0.5
    ):
        return interval
    low, high = sorted(
        interval.value * (end / tau.value) ** AS_TAU[column_name] for end in tau.ends
    )
    is_speedup = column_name.startswith("speedup")
    if not is_speedup or interval.ends[1] < WIDEST * interval.ends[0]:
        low = min(low, interval.ends[0])
        high = max(high, interval.ends[1])
    return replace(interval, low=low, high=high)
