"""95% bootstrap intervals over prompts.

Knows nothing of what the numbers mean: a statistic is any function of sums over prompts, so a
resample of the prompts is a resample of the columns of per-prompt numbers, all columns together
(paired by prompt). Seed and number of resamples are fixed, so that two cells with the same prompts
in the same order see the same resamples and a rerun prints the same interval.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEVEL = 0.95
SEED = 20240214
_BATCH_VALUES = 2_000_000  # numbers resampled at a time, to bound memory on large test sets

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval.

    Attributes:
        value: the statistic on the prompts as they are.
        low: lower end, None where there is no interval (a single prompt).
        high: upper end, None where there is no interval.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` (positive) times the statistic."""
        assert factor > 0
        return self.mapped(lambda value: value * factor)

    def mapped(self, increasing: Callable[[float], float]) -> Interval:
        """The interval of an increasing function of the statistic."""
        low = None if self.low is None else increasing(self.low)
        high = None if self.high is None else increasing(self.high)
        return Interval(increasing(self.value), low, high)


def bootstrap_sums(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """Percentile bootstrap of a function of sums over prompts.

    Args:
        statistic: maps sums (columns, batch) to values (batch,); may yield NaN where undefined.
        columns: per-prompt numbers (columns, prompts).

    Returns:
        The interval, with empty ends for one prompt or where some resample has no value; None where
        the statistic has no value at all.

    Raises:
        ValueError: no prompts, or columns of unequal length.
    """
    from scipy.stats import DegenerateDataWarning, bootstrap  # takes long to import

    data = np.asarray(columns, dtype=np.float64)
    prompts = data.shape[-1]
    if data.ndim != 2 or prompts == 0:
        raise ValueError(f"an interval needs at least one prompt, got columns {data.shape}")

    def of_samples(*samples: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return statistic(np.stack([sample.sum(axis=axis) for sample in samples]))

    value = float(of_samples(*data[:, None, :], axis=-1)[0])
    if not np.isfinite(value):
        return None
    if prompts == 1:
        return Interval(value)
    with warnings.catch_warnings():
        # Resamples without a value are seen below; the warning would not say which column it was.
        warnings.simplefilter("ignore", DegenerateDataWarning)
        ends = bootstrap(
            tuple(data),
            of_samples,
            n_resamples=RESAMPLES,
            batch=max(1, _BATCH_VALUES // prompts),
            vectorized=True,
            paired=True,
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(SEED),
        ).confidence_interval
    if not (np.isfinite(ends.low) and np.isfinite(ends.high)):
        return Interval(value)
    return Interval(value, float(ends.low), float(ends.high))


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval | None:
    """Interval of a ratio of sums, numerator and denominator paired by prompt."""
    return bootstrap_sums(lambda sums: sums[0] / sums[1], [numerators, denominators])


def rate_ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    base_numerators: Sequence[float],
    base_denominators: Sequence[float],
) -> Interval | None:
    """Interval of one ratio of sums over another, all four paired by prompt (a speed-up)."""
    return bootstrap_sums(
        lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]),
        [numerators, denominators, base_numerators, base_denominators],
    )
