"""95% intervals over prompts, and over repeats of a run where there are several.

Knows nothing of what the numbers mean: a statistic is any function of sums over prompts, so a
resample of the prompts is a resample of the columns of per-prompt numbers, all columns together
(paired by prompt). Seed and number of resamples are fixed, so that two cells with the same prompts
in the same order see the same resamples and a rerun prints the same interval.

Rates and their ratios use the studentised bootstrap (Efron and Tibshirani, An Introduction to the
Bootstrap, section 12.5) of the logarithm: each resample is measured in its own standard error,
which percentiles leave out, so that they come out too narrow where answers' lengths are skewed.
Scores, which are bounded and not smooth in the sums, use percentiles. How often the intervals
cover is measured by ``scripts/interval_coverage.py``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, isfinite, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
LEVEL = 0.95
SEED = 20240214
_BATCH_VALUES = 2_000_000  # numbers resampled at a time, to bound memory on large test sets
_STEP = 1e-5  # relative step of the numerical derivatives
_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_FEW_PROMPTS = 8  # fewer have too few different resamples: Student's t stands in

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval.

    Attributes:
        value: the statistic on the prompts as they are.
        low: lower end, None where there is no interval (a single prompt).
        high: upper end, None where there is no interval.
        by_prompt: what it is the mean of, a number a prompt; empty where it is no such mean.
    """

    value: float
    low: float | None = None
    high: float | None = None
    by_prompt: tuple[float, ...] = field(default=(), compare=False, repr=False)

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` (positive) times the statistic."""
        assert factor > 0
        return self.mapped(lambda value: value * factor)

    def mapped(self, increasing: Callable[[float], float]) -> Interval:
        """The interval of an increasing function of the statistic; none beyond all numbers."""
        value = increasing(self.value)
        if self.low is None or self.high is None:
            return Interval(value)
        try:
            return Interval(value, increasing(self.low), increasing(self.high))
        except OverflowError:
            return Interval(value)


def percentile_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
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

    data = _checked(columns)[:, 0, :]
    prompts = data.shape[-1]

    def of_samples(*samples: Array, axis: int) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return statistic(np.stack([sample.sum(axis=axis) for sample in samples]))

    value = float(of_samples(*data[:, None, :], axis=-1)[0])
    if not isfinite(value):
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
    if not (isfinite(ends.low) and isfinite(ends.high)):
        return Interval(value)
    return Interval(value, float(ends.low), float(ends.high))


def studentised_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """Studentised bootstrap of a smooth function of sums over prompts.

    Each resample is measured in its own standard error (the delta method's), the interval then laid
    out in the data's own (the jackknife's, which is the safer one for few prompts); neither side
    reaches less far than Student's t. With repeats the prompts are resampled as blocks, all repeats
    of one together; what whole repeats differ by adds its own variance, and the quantiles widen by
    the degrees of freedom that so few repeats leave (Satterthwaite, Biometrics Bulletin 2, 1946).

    Args:
        statistic: maps sums (columns, batch) to values (batch,); differentiable, best on a scale
            where its errors are symmetric (the logarithm of a rate).
        columns: (columns, prompts), or (columns, repeats, prompts) where the same prompts were
            measured several times.

    Returns:
        The interval, with empty ends for one prompt measured once or where a resample has no value;
        None where the statistic has no value at all.

    Raises:
        ValueError: no prompts, or columns of unequal length.
    """
    data = _checked(columns)
    repeats, prompts = data.shape[1:]
    blocks = data.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        totals = blocks.sum(axis=1, keepdims=True)
        value = float(statistic(totals)[0])
        if not isfinite(value):
            return None
        slopes = _gradient(statistic, totals)[:, 0]
    if prompts == 1 and repeats == 1:
        return Interval(value)
    error, below, above = _over_prompts(statistic, value, slopes, blocks)
    if error is None:
        return Interval(value)
    between = _between_repeats(slopes, data)
    variance = error**2 + between
    if variance == 0:
        return Interval(value, value, value)
    if between > 0:
        small = between**2 / (repeats - 1)
        freedom = variance**2 / (small + (error**4 / (prompts - 1) if prompts > 1 else 0))
        wider = _student_t(freedom)
        if error > 0:  # the skew of the prompts' quantiles is kept
            wider /= _student_t(prompts - 1)
        else:
            below, above = 1.0, 1.0
        below, above = below * wider, above * wider
    return Interval(value, value - below * sqrt(variance), value + above * sqrt(variance))


def ratio_interval(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """Interval of a ratio of sums, numerator and denominator paired by prompt.

    Studentised, on the logarithm where every numerator is positive.

    Args:
        numerators: one per prompt, or (repeats, prompts).
        denominators: likewise.
    """
    columns = np.stack([np.asarray(numerators, float), np.asarray(denominators, float)])
    return _on_log_scale(lambda sums: sums[0] / sums[1], columns)


def mean_interval(values: Sequence[float], counts: Sequence[float] | None = None) -> Interval:
    """Interval of a mean score over prompts, by percentiles.

    Args:
        values: a score per prompt, or a sum of scores where ``counts`` says of how many.
        counts: how many scores each prompt has; None: one.

    Raises:
        ValueError: no prompts.
    """
    below = [1.0] * len(values) if counts is None else counts
    found = percentile_interval(lambda sums: sums[0] / sums[1], [values, below])
    assert found is not None, "a mean over at least one prompt has a value"
    return found if counts else replace(found, by_prompt=tuple(values))


def median_interval(values: Sequence[float]) -> Interval:
    """The median with the order statistics that enclose it, whatever the law of the values.

    The narrowest pair of equal ranks from both ends that covers the median of the law in at least
    95% of samples (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.6).

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
    # Leaving out so many at each end misses the median with this probability.
    missed = 2 * bdtr(np.arange(ranked.size // 2, dtype=np.float64), ranked.size, 0.5)
    left_out = int((missed <= 1 - LEVEL).sum()) - 1
    median = float(np.median(ranked))
    if left_out < 0:
        return Interval(median)
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


def _over_prompts(
    statistic: Statistic, value: float, slopes: Array, blocks: Array
) -> tuple[float | None, float, float]:
    """Standard error over prompts and how many of it the interval reaches down and up.

    The error is None where some resample has no value, 0 where prompts do not differ.
    """
    prompts = blocks.shape[1]
    if prompts == 1:
        return 0.0, 0.0, 0.0
    influence = slopes @ blocks
    linear = float(np.sqrt(_spread(influence - influence.mean()) * prompts / (prompts - 1)))
    left_out = _jackknife(statistic, blocks)
    if linear <= 1e-9 * max(1.0, abs(value)):  # no more than the derivatives' rounding
        return (None if left_out is None else 0.0), 0.0, 0.0
    normal = _student_t(prompts - 1)
    reached: list[Array] = []
    for weights in _weights(prompts):
        with np.errstate(divide="ignore", invalid="ignore"):
            values, errors = _resampled(statistic, blocks, weights)
            if not np.isfinite(values).all():
                return None, 0.0, 0.0
            # A resample of one prompt again and again has no error of its own and says nothing.
            reached.append(((values - value) / errors)[errors > 1e-6 * linear])
    error = left_out or linear
    if prompts < _FEW_PROMPTS:
        return error, normal, normal
    low, high = np.quantile(np.concatenate(reached), _ENDS)
    return error, max(float(high), normal), max(float(-low), normal)


@functools.lru_cache(maxsize=256)
def _student_t(freedom: float) -> float:
    """The upper end of the central 95% of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, _ENDS[1]))


def _jackknife(statistic: Statistic, blocks: Array) -> float | None:
    """Standard error from leaving out one prompt at a time; None where that leaves no value."""
    prompts = blocks.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        left = blocks.sum(axis=1, keepdims=True) - blocks
        values = statistic(left * (prompts / (prompts - 1)))
    if not np.isfinite(values).all():
        return None
    return sqrt(_spread(values - values.mean()) * (prompts - 1) / prompts)


def _weights(prompts: int) -> Iterator[Array]:
    """How often each prompt is drawn: (prompts, batch) until all resamples are there."""
    batch = max(1, _BATCH_VALUES // prompts)
    if batch >= RESAMPLES:
        yield _few_weights(prompts)
        return
    rng, equal = np.random.default_rng(SEED), np.full(prompts, 1 / prompts)
    for start in range(0, RESAMPLES, batch):
        size = min(batch, RESAMPLES - start)
        yield rng.multinomial(prompts, equal, size=size).T.astype(np.float64)


@functools.lru_cache(maxsize=4)
def _few_weights(prompts: int) -> Array:
    """All resamples at once; the same for every cell of a table, so kept."""
    rng, equal = np.random.default_rng(SEED), np.full(prompts, 1 / prompts)
    return rng.multinomial(prompts, equal, size=RESAMPLES).T.astype(np.float64)


def _resampled(statistic: Statistic, blocks: Array, weights: Array) -> tuple[Array, Array]:
    """Values and standard errors of resamples.

    Args:
        statistic: of sums.
        blocks: (columns, prompts).
        weights: (prompts, batch) how often each prompt was drawn.
    """
    prompts = blocks.shape[1]
    sums = blocks @ weights
    slopes = _gradient(statistic, sums)
    variance = np.zeros(sums.shape[1])
    for i, first in enumerate(blocks):
        for j in range(i, len(blocks)):
            spread = (first * blocks[j]) @ weights - sums[i] * sums[j] / prompts
            variance += slopes[i] * slopes[j] * spread * (1 if i == j else 2)
    return statistic(sums), np.sqrt(np.maximum(variance, 0.0) * prompts / (prompts - 1))


def _between_repeats(slopes: Array, data: Array) -> float:
    """Variance of the mean that comes from whole repeats; 0 where there is one."""
    repeats = data.shape[1]
    if repeats == 1:
        return 0.0
    influence = np.einsum("c,crn->r", slopes, data)
    return float(_spread(influence - influence.mean()) * repeats / (repeats - 1))


def _gradient(statistic: Statistic, sums: Array) -> Array:
    """(columns, batch) derivatives of the statistic by each sum, by central differences."""
    slopes = np.empty_like(sums)
    for column in range(len(sums)):
        step = np.maximum(np.abs(sums[column]) * _STEP, np.finfo(np.float64).tiny ** 0.5)
        up, down = sums.copy(), sums.copy()
        up[column] += step
        down[column] -= step
        slopes[column] = (statistic(up) - statistic(down)) / (2 * step)
    return slopes


def _spread(centred: Array) -> float:
    return float((centred**2).sum())


def _on_log_scale(ratio: Statistic, columns: Array) -> Interval | None:
    """The interval of a ratio, laid out on its logarithm where all that goes in is positive."""
    if not columns.size or not (columns > 0).all():
        return studentised_interval(ratio, columns)
    found = studentised_interval(lambda sums: np.log(ratio(sums)), columns)
    if found is None:
        return None
    totals = columns.reshape(len(columns), -1).sum(axis=1, keepdims=True)
    return replace(found.mapped(exp), value=float(ratio(totals)[0]))


def _checked(columns: ArrayLike) -> Array:
    """(columns, repeats, prompts).

    Raises:
        ValueError: no prompts, or columns of unequal length.
    """
    data = np.asarray(columns, dtype=np.float64)
    if data.ndim == 2:
        data = data[:, None, :]
    if data.ndim != 3 or 0 in data.shape:
        raise ValueError(f"an interval needs at least one prompt, got columns {data.shape}")
    return data
