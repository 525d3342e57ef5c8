"""95% intervals over prompts, and over repeats of a run, of any function of sums over prompts.

Rates and their ratios use the studentised bootstrap (Efron and Tibshirani, An Introduction to the
Bootstrap, section 12.5) of the logarithm: each resample is divided by its own standard error. The
percentile bootstrap does not do so, and its intervals are too narrow where answers' lengths are
skewed. Scores have intervals of their own: they are bounded, often 0 or 1 on a prompt, and may be
equal on all of a few prompts, where resampling sees no spread. Numbers that differ on few prompts
also have intervals of their own (``interval_where_few_differ``).
``scripts/check/interval_coverage.py`` and ``scripts/check/verdict_null.py`` measure how often the
intervals cover the true value.

A statistic is any function of sums over prompts, so resampling the prompts means resampling the
per-prompt numbers of all columns together (paired by prompt). Seed and number of resamples are
fixed: two cells with the same prompts in the same order get the same resamples, and a rerun prints
the same interval.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spec_bench.metrics.interval import FEWEST, FEWEST_ROUNDS, LEVEL, WIDEST, Interval
from spec_bench.system.groups import make_in_groups

RESAMPLES = 2000
SEED = 20240214
_BATCH_VALUES = 2_000_000  # numbers resampled at a time, to bound memory on large test sets
_STEP = 1e-5  # relative step of the numerical derivatives
_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
_DRAWS = 9_999
_FEW_PROMPTS = 8  # with fewer there are too few distinct resamples: Student's t is used instead
_NORMAL = 1.959963984540054

# Power of tokens per call that a column is proportional to.
AS_TAU = {
    "speedup": 1,
    "speedup_end_to_end": 1,
    "token_rate": 1,
    "token_rate_end_to_end": 1,
    "token_rate_per_request": 1,
    "energy_j_per_token": -1,
}

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Maps sums over prompts (columns, batch) to values (batch,)."""


class _PromptError(NamedTuple):
    """A standard error over prompts, and the interval's reach below and above in its multiples."""

    error: float | None  # None if a resample has no value, 0 if all prompts are equal
    factor_below: float = 0.0
    factor_above: float = 0.0


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
    return _make_checked_table(np.stack([np.asarray(part, float) for part in parts]))


def _make_same_shape_ratio_intervals(tables: Sequence[Array]) -> list[Interval | None]:
    """Computes intervals for tables of one shape, on the logarithm if all numbers are positive."""
    ratio = RATIOS[len(tables[0])]
    data = np.stack(tables, axis=1)
    if not (data > 0).all():
        return _bootstrap_cells(ratio, data)
    values = ratio(data.reshape(*data.shape[:2], -1).sum(axis=2)).tolist()
    log_intervals = zip(
        _bootstrap_cells(lambda sums: np.log(ratio(sums)), data),
        values,
        strict=True,
    )
    return [
        interval and replace(interval.map(exp), value=value) for interval, value in log_intervals
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


# Scores, which are bounded to 0..1, and differences of two scores.


def mean_interval(
    scores: Sequence[float], scores_per_prompt: Sequence[float] | None = None
) -> Interval:
    """Computes the interval of a mean score in 0..1 over prompts. ``scores`` has one score per
    prompt, or the sum of as many scores as ``scores_per_prompt`` has for the prompt. Raises
    ValueError if there are no prompts.
    """
    denominators = [1.0] * len(scores) if scores_per_prompt is None else scores_per_prompt
    interval = score_interval(lambda sums: sums[0] / sums[1], [scores, denominators])
    assert interval is not None, "a mean over at least one prompt has a value"
    return interval if scores_per_prompt else replace(interval, by_prompt=tuple(scores))


def score_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """Computes a score's interval in 0..1: Clopper and Pearson's for an effective number of
    prompts.

    Korn and Graubard (Survey Methodology 24, 1998): the effective number is that of independent
    right-or-wrong answers with the same standard error, here the jackknife's. It is reduced by the
    square of Student's t over the normal quantile. If no prompts differ, it is the number of
    prompts. ``columns`` are (columns, prompts). Without ends for fewer than ``FEWEST`` prompts or
    if the score without some prompt has no value; None if the score itself has no value. Raises
    ValueError if there are no prompts.
    """
    from scipy.special import betaincinv

    value, values = _compute_value_and_jackknife(statistic, columns)
    if value is None or values is None:
        return None if value is None else Interval(value)
    prompts = len(values)
    share = min(max(value, 0.0), 1.0)
    error = float(_jackknife_error(values))
    worth = float(prompts)
    if error > 1e-9:
        wider = t_critical_value(prompts - 1) / _NORMAL
        worth = share * (1 - share) / error**2 / wider**2
    right = share * worth
    wrong = (1 - share) * worth
    low = float(betaincinv(right, wrong + 1, _ENDS[0])) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, _ENDS[1])) if wrong > 0 else 1.0
    return Interval(value, min(low, share), max(high, share), degrees_of_freedom=prompts - 1)


def score_difference_interval(
    statistic: Statistic,
    columns: ArrayLike,
    largest_difference: float | None = None,
) -> Interval | None:
    """Computes the interval of a difference of scores, paired by prompt.

    Student's t on the jackknife's pseudo-values of the prompts and of two artificial prompts, which
    add 0 to their sum and the square of the largest absolute pseudo-value to the sum of their
    squares (after Agresti and Min, Statistics in Medicine 24, 2005): equal answers on some prompts
    do not prove that all answers are equal. That largest value is taken as ``largest_difference``
    if it is smaller; without this argument as 1 if all pseudo-values are 0. Without ends, and None,
    as in ``score_interval``.
    """
    value, values = _compute_value_and_jackknife(statistic, columns)
    if value is None or values is None:
        return None if value is None else Interval(value)
    prompts = len(values)
    pseudo = prompts * value - (prompts - 1) * values
    largest = float(np.abs(pseudo).max())
    largest = max(
        largest, float(largest < 1e-12) if largest_difference is None else largest_difference
    )
    spread = (float(pseudo @ pseudo) + largest**2) / (prompts + 2)
    variance = (spread - (float(pseudo.sum()) / (prompts + 2)) ** 2) / (prompts + 2)
    reach = t_critical_value(prompts - 1) * sqrt(variance)
    return Interval(value, value - reach, value + reach, degrees_of_freedom=prompts - 1)


def _compute_value_and_jackknife(
    statistic: Statistic, columns: ArrayLike
) -> tuple[float | None, Array | None]:
    """Computes a statistic with and without each prompt; None if not finite or, the latter, too
    few.
    """
    data = _make_checked_table(columns)[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(data.sum(axis=1, keepdims=True))[0])
    if not isfinite(value) or data.shape[1] < FEWEST:
        return value if isfinite(value) else None, None
    values = leave_one_out(statistic, data)
    return value, values if np.isfinite(values).all() else None


def pseudo_values(statistic: Statistic, columns: ArrayLike) -> Array:
    """Computes each prompt's jackknife pseudo-value of a statistic, (prompts,), from columns
    (columns, prompts), two prompts at least; it is the prompt's own value if the statistic is a
    mean.
    """
    data = _make_checked_table(columns)[:, 0]
    prompts = data.shape[1]
    total = statistic(data.sum(axis=1, keepdims=True))[0]
    return np.asarray(prompts * total - (prompts - 1) * leave_one_out(statistic, data))


def sign_flip_p_value(differences: ArrayLike) -> float:
    """Computes the two-sided p-value of paired differences (prompts,) if their signs are random.

    The randomisation test of paired answers: if both sides draw from one distribution, their
    answers are interchangeable. If all non-zero differences have the same size, it is McNemar's
    exact test on the discordant prompts; else signs are drawn ``_DRAWS`` times, from a fixed seed.
    """
    from scipy.special import bdtr

    values = np.asarray(differences, dtype=np.float64)
    discordant = values[np.abs(values) > 1e-12]
    if not discordant.size:
        return 1.0
    if np.allclose(np.abs(discordant), abs(discordant[0])):
        count = discordant.size
        fewer = min((discordant > 0).sum(), (discordant < 0).sum())
        return min(1.0, 2 * float(bdtr(fewer, count, 0.5)))
    threshold = abs(discordant.sum()) * (1 - 1e-12)
    as_far = np.abs(_draw_signs(discordant.size) @ discordant) >= threshold
    return float((as_far.sum() + 1) / (_DRAWS + 1))


@functools.lru_cache(maxsize=1)
def _draw_signs(prompts: int) -> Array:
    return np.random.default_rng(SEED).choice((-1.0, 1.0), (_DRAWS, prompts))


# Numbers that are equal on most prompts, such as tokens per call of a look-up that seldom hits.


class UsualNumber(NamedTuple):
    """The value that a statistic has on most single prompts."""

    value: float
    unlike_count: int  # prompts with a different value


def find_usual_number(statistic: Statistic, columns: ArrayLike) -> UsualNumber | None:
    """Finds the value of a statistic on most single prompts; None if ``FEWEST`` or half have
    another.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(_make_checked_table(columns).sum(axis=1))
    finite = values[np.isfinite(values)]
    usual = float(np.median(finite)) if finite.size else 0.0
    unlike = finite.size - int(np.isclose(finite, usual, rtol=1e-9).sum())
    return UsualNumber(usual, unlike) if unlike < FEWEST and 2 * unlike < finite.size else None


def interval_where_few_differ(
    statistic: Statistic, columns: ArrayLike, largest_difference: float
) -> Interval | None:
    """Computes the interval of a statistic that few prompts change; None if many do, or with
    repeats, or for fewer than ``FEWEST`` prompts.

    It is the interval of a difference of scores, taken from the usual value. ``largest_difference``
    is how far a prompt can be from that value: after five look-ups without a hit, the sixth may
    hit. If it is 0 the interval is exact; if it is not known there are no ends.
    """
    table = _make_checked_table(columns)
    data = table.sum(axis=1)
    usual_and_unlike = find_usual_number(statistic, data)
    if usual_and_unlike is None or table.shape[1] > 1 or table.shape[2] < FEWEST:
        return None
    usual, unlike = usual_and_unlike
    interval = score_difference_interval(
        lambda sums: statistic(sums) - usual, data, largest_difference
    )
    interval = interval and interval.map(lambda number: number + usual)
    if interval is None or not isfinite(largest_difference):
        return interval and Interval(interval.value)
    return replace(interval, shrink_power=0.75 if unlike else 1.0)


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


# Resampling of prompts.


@dataclass(frozen=True)
class SumOfStatistics:
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
    return bootstrap_intervals(statistic, [_make_checked_table(columns)])[0]


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
        small = seed_variance**2 / (repeats - 1)
        freedom = variance**2 / (small + error**4 / max(prompts - 1, 1))
        wider = t_critical_value(freedom)
        if error > 0:  # keep the skew of the prompts' quantiles
            wider /= t_critical_value(prompts - 1)
        else:
            factor_below = 1.0
            factor_above = 1.0
        factor_below = factor_below * wider
        factor_above = factor_above * wider
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
    normal = t_critical_value(blocks.shape[-1] - 1)
    influence = np.einsum("ck,ckp->kp", slopes, blocks)
    linears = np.sqrt(_sum_squared_deviations(influence) * prompts / (prompts - 1))
    withouts = _jackknife_error(leave_one_out(statistic, blocks))
    numbers = (array.tolist() for array in (values, linears, withouts))
    for place, (value, linear, jackknife) in enumerate(zip(*numbers, strict=True)):
        if linear <= 1e-9 * max(1.0, abs(value)):  # no more than the derivatives' rounding
            yield _PromptError(0.0 if isfinite(jackknife) else None)
            continue
        t_values = _draw_t_values(statistic, blocks[:, place], value, linear)
        if t_values is None:
            yield _PromptError(None)
            continue
        t_low, t_high = np.quantile(t_values, _ENDS) if t_values.size else (-normal, normal)
        error = jackknife if jackknife and isfinite(jackknife) else linear
        # Efron and Tibshirani 12.22: the upper quantile gives the lower end, and the reverse.
        yield _PromptError(error, max(float(t_high), normal), max(float(-t_low), normal))


def _draw_t_values(
    statistic: Statistic,
    cell_blocks: Array,
    value: float,
    linear_error: float,
) -> Array | None:
    """Draws t* = (theta* - theta) / se* of resamples; empty if few, None if one has no value."""
    prompts = cell_blocks.shape[-1]
    few = prompts < _FEW_PROMPTS
    t_values = [np.empty(0)]
    if few and (cell_blocks > 0).all():  # every resample has a value
        return t_values[0]
    for weights in _make_resample_counts(prompts):
        draw_counts = weights.astype(np.float64)
        resampled_values = statistic(cell_blocks @ draw_counts)
        if not np.isfinite(resampled_values).all():
            return None
        if not few:
            errors = _compute_resample_errors(statistic, cell_blocks, draw_counts)
            # Resamples of a single repeated prompt have no standard error: left out.
            t_values.append(((resampled_values - value) / errors)[errors > 1e-6 * linear_error])
    return np.concatenate(t_values)


@functools.lru_cache(maxsize=256)
def t_critical_value(degrees_of_freedom: float) -> float:
    """Computes the critical value of Student's t for a two-sided 95% interval."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, _ENDS[1]))


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
    if isinstance(statistic, SumOfStatistics):
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


def _jackknife_error(values: Array) -> Array:
    """Computes the jackknife's standard error from ``leave_one_out`` values (last axis)."""
    prompts = values.shape[-1]
    return np.sqrt(_sum_squared_deviations(values) * (prompts - 1) / prompts)


def _sum_squared_deviations(values: Array) -> Array:
    """Sums the squared deviations from the mean along the last axis."""
    return np.asarray(((values - values.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1))


def _make_checked_table(columns: ArrayLike) -> Array:
    """Converts to (columns, repeats, prompts). Raises ValueError if empty or of unequal length."""
    data = np.asarray(columns, dtype=np.float64)
    if data.ndim == 2:
        data = data[:, None, :]
    if data.ndim != 3 or 0 in data.shape:
        raise ValueError(f"an interval needs at least one prompt, got columns {data.shape}")
    return data
