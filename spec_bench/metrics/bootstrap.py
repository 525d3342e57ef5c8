"""Resampling of prompts: 95% intervals of any function of sums over prompts.

Knows nothing of what the numbers mean: a statistic is any function of sums over prompts, so a
resample of the prompts is a resample of the columns of per-prompt numbers, all columns together
(paired by prompt). Seed and number of resamples are fixed, so that two cells with the same prompts
in the same order see the same resamples and a rerun prints the same interval.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spec_bench.metrics.interval import FEWEST, LEVEL, Interval

RESAMPLES = 2000
SEED = 20240214
_BATCH_VALUES = 2_000_000  # numbers resampled at a time, to bound memory on large test sets
_STEP = 1e-5  # relative step of the numerical derivatives
_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_FEW_PROMPTS = 8  # fewer have too few different resamples: Student's t is used instead

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]


@dataclass(frozen=True)
class Total:
    """A statistic that is a sum of statistics, each of columns of its own.

    A derivative by one column then needs only one term, which keeps a mean over hundreds of
    comparisons cheap.
    """

    # how many columns each takes, in their order, and the term
    terms: tuple[tuple[int, Statistic], ...]

    def __call__(self, sums: Array) -> Array:
        """Sums (columns, batch) -> values (batch,)."""
        return np.sum([term(part) for term, part in self.split(sums)], axis=0)

    def split(self, sums: Array) -> Iterator[tuple[Statistic, Array]]:
        """Every term with its columns."""
        ends = np.cumsum([width for width, _ in self.terms])
        parts = np.split(sums, ends[:-1])
        return zip((term for _, term in self.terms), parts, strict=True)


def studentised_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """Studentised bootstrap of a smooth function of sums over prompts.

    Each resample is measured in its own standard error (the delta method's), the interval then laid
    out in the data's own (the jackknife's, safer for few prompts); neither side is shorter than
    Student's t. With repeats the prompts are resampled as blocks, all repeats of one together; the
    difference between whole repeats adds its own variance, and the quantiles widen by the degrees
    of freedom that so few repeats leave (Satterthwaite, Biometrics Bulletin 2, 1946).

    Args:
        statistic: maps sums (columns, batch) to values (batch,); differentiable, best on a scale
            where its errors are symmetric (the logarithm of a rate).
        columns: (columns, prompts), or (columns, repeats, prompts) where the same prompts were
            measured several times.

    Returns:
        The interval, with empty ends for fewer than ``FEWEST`` prompts or if a resample has no
        value; None if the statistic has no value at all.

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
    if prompts < FEWEST:
        return Interval(value)
    error, below, above = _over_prompts(statistic, value, slopes, blocks)
    if error is None:
        return Interval(value)
    between = _between_repeats(slopes, data)
    variance = error**2 + between
    freedom = float(prompts - 1)
    if variance == 0:
        return Interval(value, value, value, freedom=freedom)
    if between > 0:
        small = between**2 / (repeats - 1)
        freedom = variance**2 / (small + error**4 / (prompts - 1))
        wider = _student_t(freedom)
        if error > 0:  # the skew of the prompts' quantiles is kept
            wider /= _student_t(prompts - 1)
        else:
            below, above = 1.0, 1.0
        below, above = below * wider, above * wider
    low, high = value - below * sqrt(variance), value + above * sqrt(variance)
    return Interval(value, low, high, freedom=freedom)


def _over_prompts(
    statistic: Statistic, value: float, slopes: Array, blocks: Array
) -> tuple[float | None, float, float]:
    """Standard error over prompts, and how many of them the interval reaches down and up.

    The error is None if some resample has no value, 0 if prompts do not differ.
    """
    prompts = blocks.shape[1]
    influence = slopes @ blocks
    linear = float(np.sqrt(_spread(influence - influence.mean()) * prompts / (prompts - 1)))
    without = _jackknife(statistic, blocks)
    if linear <= 1e-9 * max(1.0, abs(value)):  # no more than the derivatives' rounding
        return (None if without is None else 0.0), 0.0, 0.0
    normal = _student_t(prompts - 1)
    reached: list[Array] = []
    for weights in _weights(prompts):
        with np.errstate(divide="ignore", invalid="ignore"):
            values, errors = _resampled(statistic, blocks, weights)
            if not np.isfinite(values).all():
                return None, 0.0, 0.0
            # A resample of the same prompt throughout has no error of its own and says nothing.
            reached.append(((values - value) / errors)[errors > 1e-6 * linear])
    error = without or linear
    if prompts < _FEW_PROMPTS:
        return error, normal, normal
    low, high = np.quantile(np.concatenate(reached), _ENDS)
    return error, max(float(high), normal), max(float(-low), normal)


@functools.lru_cache(maxsize=256)
def _student_t(freedom: float) -> float:
    """The upper end of the central 95% of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, _ENDS[1]))


def left_out(statistic: Statistic, blocks: Array) -> Array:
    """The statistic without each prompt in turn, its sums scaled to as many prompts.

    Args:
        statistic: maps sums (columns, batch) to values (batch,).
        blocks: (columns, prompts), at least two prompts.

    Returns:
        (prompts,) values; NaN or infinite where there is none.
    """
    prompts = blocks.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        left = blocks.sum(axis=1, keepdims=True) - blocks
        return statistic(left * (prompts / (prompts - 1)))


def _jackknife(statistic: Statistic, blocks: Array) -> float | None:
    """Standard error from leaving out one prompt at a time; None if that leaves no value."""
    prompts = blocks.shape[1]
    values = left_out(statistic, blocks)
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
    influence = blocks.T @ _gradient(statistic, sums)
    influence -= np.einsum("pb,pb->b", influence, weights) / prompts
    variance = np.einsum("pb,pb,pb->b", influence, influence, weights)
    return statistic(sums), np.sqrt(variance * prompts / (prompts - 1))


def _between_repeats(slopes: Array, data: Array) -> float:
    """Variance of the mean that comes from whole repeats; 0 if there is only one."""
    repeats = data.shape[1]
    if repeats == 1:
        return 0.0
    influence = np.einsum("c,crn->r", slopes, data)
    return float(_spread(influence - influence.mean()) * repeats / (repeats - 1))


def _gradient(statistic: Statistic, sums: Array) -> Array:
    """(columns, batch) derivatives of the statistic by each sum, by central differences."""
    if isinstance(statistic, Total):
        return np.concatenate([_gradient(term, part) for term, part in statistic.split(sums)])
    count, batch = sums.shape
    step = np.maximum(np.abs(sums) * _STEP, np.finfo(np.float64).tiny ** 0.5)
    around = np.repeat(sums[:, None, None, :], count, axis=1).repeat(2, axis=2)
    each = np.arange(count)
    around[each, each, 0] += step
    around[each, each, 1] -= step
    values = statistic(around.reshape(count, -1)).reshape(count, 2, batch)  # all in one call
    return (values[:, 0] - values[:, 1]) / (2 * step)


def _spread(centred: Array) -> float:
    return float((centred**2).sum())


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
