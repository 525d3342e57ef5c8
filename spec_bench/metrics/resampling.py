"""Estimates the error of a statistic by leaving prompts out (jackknife) and by resampling them
(bootstrap).

A statistic is any function of sums over prompts, so resampling the prompts means resampling the
per-prompt numbers of all columns together (paired by prompt). Seed and number of resamples are
fixed: two cells with the same prompts in the same order get the same resamples, and a rerun prints
the same interval.

The bootstrap is the studentised one (Efron and Tibshirani, An Introduction to the Bootstrap,
section 12.5), which divides each resample by its own standard error. The percentile bootstrap does
not, and its intervals are too narrow if the answers' lengths are skewed.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spec_bench.metrics.interval import FEWEST, FEWEST_ROUNDS, LEVEL, Interval
from spec_bench.system.groups import make_in_groups

RESAMPLES = 2000
SEED = 20240214
_BATCH_VALUES = 2_000_000  # numbers resampled at a time, to bound memory on large test sets
_STEP = 1e-5  # relative step of the numerical derivatives
END_QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_FEW_PROMPTS = 8  # with fewer there are too few distinct resamples: Student's t is used instead

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Maps sums over prompts (columns, batch) to values (batch,)."""


class _PromptError(NamedTuple):
    """A standard error over prompts, and the interval's reach below and above in its multiples."""

    error: float | None  # None if a resample has no value, 0 if all prompts are equal
    factor_below: float = 0.0
    factor_above: float = 0.0


def pseudo_values(statistic: Statistic, columns: ArrayLike) -> Array:
    """Computes each prompt's jackknife pseudo-value of a statistic, (prompts,), from columns
    (columns, prompts), two prompts at least; it is the prompt's own value if the statistic is a
    mean.
    """
    data = make_checked_table(columns)[:, 0]
    prompts = data.shape[1]
    total = statistic(data.sum(axis=1, keepdims=True))[0]
    return np.asarray(prompts * total - (prompts - 1) * leave_one_out(statistic, data))


def label_clocks(shares: Array) -> Array:
    """Labels prompts [P] so that those that share a clock in any repeat have the same label.
    ``shares`` [repeats, P] are equal for the prompts that share a clock.
    """
    from scipy.sparse.csgraph import connected_components

    is_shared = (shares[:, :, None] == shares[:, None, :]).any(axis=0)
    return np.asarray(connected_components(is_shared, directed=False)[1], float)


def sum_by_clock(table: Array, clocks: Sequence[float] | Array = ()) -> Array:
    """Sums prompts that share a clock, (..., repeats, prompts) -> (..., repeats, clocks). Fewer
    than ``FEWEST`` clocks become one block. Without clocks, or for fewer than ``FEWEST`` prompts,
    the table is kept, but the repeats of a single prompt are summed.
    """
    if len(clocks) < FEWEST:
        return table.sum(axis=-2, keepdims=True) if table.shape[-1] == 1 else table
    _, places = np.unique(clocks, return_inverse=True)
    places = places if places.max() + 1 >= FEWEST else 0 * places
    return np.asarray(table @ np.eye(places.max() + 1)[places])


@dataclass(frozen=True)
class SumOverColumnGroups:
    """A sum of statistics, each a function of its own columns.

    A derivative by one column then needs only one term, which keeps a mean over hundreds of
    comparisons cheap.
    """

    # each term with its number of columns, in the order of the columns
    terms: tuple[tuple[int, Statistic], ...]

    def __call__(self, sums: Array) -> Array:
        """Maps sums (columns, batch) to values (batch,)."""
        return np.sum([term(part) for term, part in self.split_columns(sums)], axis=0)

    def split_columns(self, sums: Array) -> Iterator[tuple[Statistic, Array]]:
        """Yields each term with its part of the columns."""
        ends = np.cumsum([width for width, _ in self.terms])
        parts = np.split(sums, ends[:-1])
        return zip((term for _, term in self.terms), parts, strict=True)


def bootstrap_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """Computes the studentised bootstrap interval of a smooth function of sums over prompts.

    Each resample is divided by its own standard error (the delta method's); the interval is then
    scaled by the data's (the jackknife's, safer for few prompts), and neither side is shorter than
    Student's t. With repeats, a prompt is resampled together with all its repeats; the differences
    between whole repeats add a variance of their own, and the quantiles widen by the degrees of
    freedom of both variances (Satterthwaite, Biometrics Bulletin 2, 1946). For a single prompt or
    block with at least ``FEWEST_ROUNDS`` repeats, it is Student's t over these.

    The statistic must be differentiable, and is best on a scale where its errors are symmetric (the
    logarithm of a rate). ``columns`` are (columns, prompts) or (columns, repeats, prompts). Without
    ends for fewer than ``FEWEST`` prompts, if no prompts differ, or if a resample has no value;
    None if the statistic has no value. Raises ValueError if there are no prompts, or columns of
    unequal length.
    """
    return bootstrap_intervals(statistic, [make_checked_table(columns)])[0]


def bootstrap_intervals(statistic: Statistic, tables: Sequence[Array]) -> list[Interval | None]:
    """Computes ``bootstrap_interval`` for several tables (columns, repeats, prompts)."""
    return make_in_groups(
        lambda same: _bootstrap_cells(statistic, np.stack(same, axis=1)),
        tables,
        lambda table: table.shape,
    )


def _bootstrap_cells(statistic: Statistic, data: Array) -> list[Interval | None]:
    """Computes the intervals of several cells from columns (columns, cells, repeats, prompts)."""
    repeats, prompts = data.shape[2:]
    blocks = data.sum(axis=2)
    seed_variances = np.zeros(data.shape[1])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        totals = blocks.sum(axis=2)
        values = statistic(totals)
        slopes = _gradient(statistic, totals)
        prompt_errors: Iterable[_PromptError] = [_PromptError(0.0)] * len(values)
        if prompts >= FEWEST:
            prompt_errors = _iter_prompt_errors(statistic, values, slopes, blocks)
        elif prompts > 1 or repeats < FEWEST_ROUNDS:
            return [Interval(value) if isfinite(value) else None for value in values.tolist()]
        if repeats > 1:  # variance of the mean that comes from whole repeats
            seed_variances = (
                _sum_squared_deviations(np.einsum("ck,ckrn->kr", slopes, data))
                * repeats
                / (repeats - 1)
            )
        parts = zip(values.tolist(), seed_variances.tolist(), prompt_errors, strict=True)
        return [_build_interval(*part, repeats, prompts) for part in parts]


def _build_interval(
    value: float,
    seed_variance: float,
    prompt_error: _PromptError,
    repeats: int,
    prompts: int,
) -> Interval | None:
    error, factor_below, factor_above = prompt_error
    if error is None or not isfinite(value):
        return Interval(value) if isfinite(value) else None
    variance = error**2 + seed_variance
    freedom = float(prompts - 1)
    # exact if it is a measurement over itself
    if sqrt(variance) <= 1e-9 * max(1.0, abs(value)):
        is_itself = abs(value) <= 1e-9
        return Interval(0.0, 0.0, 0.0, degrees_of_freedom=freedom) if is_itself else Interval(value)
    if seed_variance > 0:
        seed_term = seed_variance**2 / (repeats - 1)
        freedom = variance**2 / (seed_term + error**4 / max(prompts - 1, 1))
        widening = t_critical_value(freedom)
        if error > 0:  # keep the skew of the prompts' quantiles
            widening /= t_critical_value(prompts - 1)
        else:
            factor_below = 1.0
            factor_above = 1.0
        factor_below *= widening
        factor_above *= widening
    low = value - factor_below * sqrt(variance)
    high = value + factor_above * sqrt(variance)
    return Interval(
        value, low, high, degrees_of_freedom=freedom, between_seeds_share=seed_variance / variance
    )


def _iter_prompt_errors(
    statistic: Statistic,
    values: Array,
    slopes: Array,
    blocks: Array,
) -> Iterator[_PromptError]:
    """Yields each cell's standard error over prompts."""
    prompts = blocks.shape[-1]
    critical_value = t_critical_value(prompts - 1)
    influence = np.einsum("ck,ckp->kp", slopes, blocks)
    linear_errors = np.sqrt(_sum_squared_deviations(influence) * prompts / (prompts - 1))
    jackknife_errors = jackknife_error(leave_one_out(statistic, blocks))
    numbers = (array.tolist() for array in (values, linear_errors, jackknife_errors))
    for place, (value, linear, jackknife) in enumerate(zip(*numbers, strict=True)):
        if linear <= 1e-9 * max(1.0, abs(value)):  # no more than the derivatives' rounding
            yield _PromptError(0.0 if isfinite(jackknife) else None)
            continue
        t_values = _draw_t_values(statistic, blocks[:, place], value, linear)
        if t_values is None:
            yield _PromptError(None)
            continue
        t_low, t_high = (
            np.quantile(t_values, END_QUANTILES)
            if t_values.size
            else (-critical_value, critical_value)
        )
        error = jackknife if jackknife and isfinite(jackknife) else linear
        # Efron and Tibshirani 12.22: the upper quantile gives the lower end, and the reverse.
        yield _PromptError(
            error, max(float(t_high), critical_value), max(float(-t_low), critical_value)
        )


def _draw_t_values(
    statistic: Statistic,
    cell_blocks: Array,
    value: float,
    linear_error: float,
) -> Array | None:
    """Draws t* = (theta* - theta) / se* of resamples; empty if few, None if one has no value."""
    prompts = cell_blocks.shape[-1]
    has_few_prompts = prompts < _FEW_PROMPTS
    t_values = [np.empty(0)]
    if has_few_prompts and (cell_blocks > 0).all():  # every resample has a value
        return t_values[0]
    for weights in _make_resample_counts(prompts):
        draw_counts = weights.astype(np.float64)
        resampled_values = statistic(cell_blocks @ draw_counts)
        if not np.isfinite(resampled_values).all():
            return None
        if not has_few_prompts:
            errors = _compute_resample_errors(statistic, cell_blocks, draw_counts)
            # Resamples of a single repeated prompt have no standard error: left out.
            t_values.append(((resampled_values - value) / errors)[errors > 1e-6 * linear_error])
    return np.concatenate(t_values)


@functools.lru_cache(maxsize=256)
def t_critical_value(degrees_of_freedom: float) -> float:
    """Computes the critical value of Student's t for a two-sided 95% interval."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, END_QUANTILES[1]))


def leave_one_out(statistic: Statistic, blocks: Array) -> Array:
    """Computes the statistic without each prompt in turn, (..., prompts), sums scaled to all
    prompts, from ``blocks`` (columns, ..., prompts), two prompts at least; NaN or infinite if it
    has no value.
    """
    prompts = blocks.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        remaining_sums = (blocks.sum(axis=-1, keepdims=True) - blocks) * (prompts / (prompts - 1))
        return statistic(remaining_sums.reshape(len(blocks), -1)).reshape(blocks.shape[1:])


@functools.lru_cache(maxsize=4)
def _make_resample_counts(prompts: int) -> tuple[NDArray[np.uint16], ...]:
    """Draws how often each prompt is in each resample: (prompts, batch) arrays, ``RESAMPLES`` in
    all.
    """
    batch = max(1, _BATCH_VALUES // prompts)
    rng = np.random.default_rng(SEED)
    equal = np.full(prompts, 1 / prompts)
    sizes = [min(batch, RESAMPLES - start) for start in range(0, RESAMPLES, batch)]
    return tuple(rng.multinomial(prompts, equal, size=size).T.astype(np.uint16) for size in sizes)


def _compute_resample_errors(statistic: Statistic, blocks: Array, resample_counts: Array) -> Array:
    """Computes standard errors (batch,) of resamples drawn ``resample_counts`` (prompts, batch)
    times.
    """
    prompts = blocks.shape[1]
    influence = blocks.T @ _gradient(statistic, blocks @ resample_counts)
    influence -= np.einsum("pb,pb->b", influence, resample_counts) / prompts
    variance = np.einsum("pb,pb,pb->b", influence, influence, resample_counts)
    return np.asarray(np.sqrt(variance * prompts / (prompts - 1)))


def _gradient(statistic: Statistic, sums: Array) -> Array:
    """Computes the derivatives of the statistic by each sum, (columns, batch), by central
    differences.
    """
    if isinstance(statistic, SumOverColumnGroups):
        return np.concatenate(
            [_gradient(term, part) for term, part in statistic.split_columns(sums)]
        )
    count, batch = sums.shape
    step = np.maximum(np.abs(sums) * _STEP, np.finfo(np.float64).tiny ** 0.5)
    around = np.repeat(sums[:, None, None, :], count, axis=1).repeat(2, axis=2)
    indices = np.arange(count)
    around[indices, indices, 0] += step
    around[indices, indices, 1] -= step
    values = statistic(around.reshape(count, -1)).reshape(count, 2, batch)  # all in one call
    return (values[:, 0] - values[:, 1]) / (2 * step)


def jackknife_error(values: Array) -> Array:
    """Computes the jackknife's standard error from ``leave_one_out`` values (last axis)."""
    prompts = values.shape[-1]
    return np.sqrt(_sum_squared_deviations(values) * (prompts - 1) / prompts)


def _sum_squared_deviations(values: Array) -> Array:
    """Sums the squared deviations from the mean along the last axis."""
    return np.asarray(((values - values.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1))


def make_checked_table(columns: ArrayLike) -> Array:
    """Converts to (columns, repeats, prompts). Raises ValueError if empty or of unequal length."""
    data = np.asarray(columns, dtype=np.float64)
    if data.ndim == 2:
        data = data[:, None, :]
    if data.ndim != 3 or 0 in data.shape:
        raise ValueError(f"an interval needs at least one prompt, got columns {data.shape}")
    return data
