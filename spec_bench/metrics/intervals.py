"""95% intervals over prompts, and over repeats of a run, of any function of sums over prompts.

Rates and their ratios use the studentised bootstrap (Efron and Tibshirani, An Introduction to the
Bootstrap, section 12.5) of the logarithm: each resample is measured in its own standard error,
which percentiles leave out, so that they come out too narrow where answers' lengths are skewed.
Scores cannot leave their two ends, and are often 0 or 1 on a prompt, or the same on all of a
handful, where resampling sees no spread at all: they have intervals of their own. So have other
numbers of which few prompts differ from the rest (``interval_where_few_differ``). How often the
intervals cover is measured by ``scripts/check/interval_coverage.py`` and
``scripts/check/verdict_null.py``.

A statistic is any function of sums over prompts, so a resample of the prompts is a resample of the
columns of per-prompt numbers, all columns together (paired by prompt). Seed and number of resamples
are fixed, so that two cells with the same prompts in the same order see the same resamples and a
rerun prints the same interval.
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
_FEW_PROMPTS = 8  # fewer have too few different resamples: Student's t is used instead
_NORMAL = 1.959963984540054

# columns that grow with tokens per call, and the one that falls
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
    """A standard error over prompts, and how many of them the interval reaches down and up."""

    error: float | None  # None if some resample has no value, 0 if prompts do not differ
    factor_below: float = 0.0
    factor_above: float = 0.0


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    largest_difference: float = nan,
) -> Interval | None:
    """Interval of a ratio of sums, numerator and denominator paired by prompt.

    Studentised, on the logarithm where every numerator is positive. Each is one number per prompt,
    or (repeats, prompts). A ``interval_where_few_differ`` where few prompts differ.
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
    """Interval of one ratio of sums over another (a speed-up), all paired by prompt, likewise."""
    return ratio_intervals(
        [_stack_columns(numerators, denominators, baseline_numerators, baseline_denominators)]
    )[0]


def ratio_intervals(tables: Sequence[Array]) -> list[Interval | None]:
    """Intervals of several tables (columns, repeats, prompts): of two columns a ratio of sums, of
    four one ratio over another.
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
"""By how many columns it is made of: a ratio, and one ratio over another."""


def _stack_columns(*parts: ArrayLike) -> Array:
    """One cell's columns (columns, repeats, prompts)."""
    return _make_checked_table(np.stack([np.asarray(part, float) for part in parts]))


def _make_same_shape_ratio_intervals(tables: Sequence[Array]) -> list[Interval | None]:
    """Returns intervals of tables of one shape, on the logarithm where all numbers are positive."""
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
    """The median of one number per prompt with the order statistics that enclose it, whatever the
    distribution of the values; fewer than six have no ends.

    The narrowest pair of equal ranks from both ends that covers the distribution's median in at
    least 95% of samples (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.6).
    Raises ValueError: no values.
    """
    from scipy.special import bdtr

    sorted_values = np.sort(np.asarray(values, dtype=np.float64))
    if not sorted_values.size:
        raise ValueError("a median needs at least one value")
    # Leaving out that many at each end misses the median with this probability.
    miss_chances = 2 * bdtr(
        np.arange(sorted_values.size // 2, dtype=np.float64), sorted_values.size, 0.5
    )
    left_out = int((miss_chances <= 1 - LEVEL).sum()) - 1
    median = float(np.median(sorted_values))
    if left_out < 0:
        return Interval(median)
    assert sorted_values.size >= FEWEST, "fewer enclose no median"
    return Interval(median, float(sorted_values[left_out]), float(sorted_values[-1 - left_out]))


# Scores: numbers between two ends that they cannot leave, and differences of two.


def mean_interval(
    scores: Sequence[float], scores_per_prompt: Sequence[float] | None = None
) -> Interval:
    """Interval of a mean score in 0..1 over prompts: ``scores`` are a score per prompt, or sums of
    as many as ``scores_per_prompt`` says. Raises ValueError: no prompts.
    """
    denominators = [1.0] * len(scores) if scores_per_prompt is None else scores_per_prompt
    interval = score_interval(lambda sums: sums[0] / sums[1], [scores, denominators])
    assert interval is not None, "a mean over at least one prompt has a value"
    return interval if scores_per_prompt else replace(interval, by_prompt=tuple(scores))


def score_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """The interval of a score in 0..1: Clopper and Pearson's for as many prompts as its spread is
    worth.

    Korn and Graubard (Survey Methodology 24, 1998): the standard error, here the jackknife's, says
    how many independent right-or-wrong answers would know the score as well, and their number is
    lowered by what Student's t is wider than the normal distribution. Where no prompt differs it is
    theirs. The ``columns`` are (columns, prompts). Ends are empty for fewer than ``FEWEST`` prompts
    or where leaving out a prompt leaves no value; None if the score has no value at all. Raises
    ValueError: no prompts.
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
    """Returns the interval of a difference of scores, paired by prompt, on the same terms.

    Student's t on what each prompt adds (the jackknife's pseudo-values), with two more prompts
    worth half a plus and half a minus each of the largest that any adds, of 1 where none does, or
    of ``largest_difference`` where that is more (after Agresti and Min, Statistics in Medicine 24,
    2005): equal answers on some prompts do not make sure that all are.
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
    """A statistic's value, and those without each prompt; None where one is none, or for fewer than
    ``FEWEST`` prompts.
    """
    data = _make_checked_table(columns)[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(data.sum(axis=1, keepdims=True))[0])
    if not isfinite(value) or data.shape[1] < FEWEST:
        return value if isfinite(value) else None, None
    values = leave_one_out(statistic, data)
    return value, values if np.isfinite(values).all() else None


def pseudo_values(statistic: Statistic, columns: ArrayLike) -> Array:
    """Returns what each prompt adds to a function of sums over prompts: its value where that is a
    mean, else the pseudo-value. Of columns (columns, prompts), two prompts at least, these are
    (prompts,) numbers whose mean is about the statistic.
    """
    data = _make_checked_table(columns)[:, 0]
    prompts = data.shape[1]
    total = statistic(data.sum(axis=1, keepdims=True))[0]
    return np.asarray(prompts * total - (prompts - 1) * leave_one_out(statistic, data))


def sign_flip_p_value(differences: ArrayLike) -> float:
    """Returns the p-value of differences whose signs are a matter of chance, two-sided.

    The randomisation test of paired answers: if both sides draw from one distribution, either could
    have given either answer. Where all that differ do so by the same amount it is the exact test of
    McNemar on the discordant prompts, else signs are drawn ``_DRAWS`` times, from a fixed seed.
    ``differences`` (prompts,) are one side less the other.
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


# Numbers of which most prompts show nothing, such as tokens per call of a look-up that seldom hits.


class UsualNumber(NamedTuple):
    """The number that most prompts have on their own."""

    value: float
    unlike_count: int  # prompts that have another


def find_usual_number(statistic: Statistic, columns: ArrayLike) -> UsualNumber | None:
    """Finds the number that most prompts have on their own; None where five have another, or half
    of them.
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
    """The interval of a number of which few prompts differ from the others; None if more do, or if
    it has repeats, which do.

    It is that of a difference of scores from the usual number, in which ``largest_difference`` is
    how far a prompt can be from it: of five look-ups without a hit the sixth may hit. Exact where
    it is 0, without ends where it is not known.
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
    """Widens a column's interval until its ends are as far, as a share, as those of tokens per call
    where few prompts differ in these: a prompt to come with more of them is as much faster. A
    speed-up's own ends do not count where they are too far apart to say anything: seconds that
    stall are told apart elsewhere.
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
    """Sums prompts whose seconds are shares of one clock, (..., repeats, prompts): they are no more
    independent than its windows. Fewer than five windows are one block, of which only rounds tell
    more; repeats of one prompt do not.
    """
    if len(clocks) < FEWEST:
        return table.sum(axis=-2, keepdims=True) if table.shape[-1] == 1 else table
    _, places = np.unique(clocks, return_inverse=True)
    places = places if places.max() + 1 >= FEWEST else 0 * places
    return np.asarray(table @ np.eye(places.max() + 1)[places])


# Resampling of prompts.


@dataclass(frozen=True)
class SumOfStatistics:
    """A statistic that is a sum of statistics, each of columns of its own.

    A derivative by one column then needs only one term, which keeps a mean over hundreds of
    comparisons cheap.
    """

    # how many columns each takes, in their order, and the term
    terms: tuple[tuple[int, Statistic], ...]

    def __call__(self, sums: Array) -> Array:
        """Sums (columns, batch) -> values (batch,)."""
        return np.sum([term(part) for term, part in self.split_columns(sums)], axis=0)

    def split_columns(self, sums: Array) -> Iterator[tuple[Statistic, Array]]:
        """Every term with its columns."""
        ends = np.cumsum([width for width, _ in self.terms])
        parts = np.split(sums, ends[:-1])
        return zip((term for _, term in self.terms), parts, strict=True)


def bootstrap_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """Studentised bootstrap of a smooth function of sums over prompts.

    Each resample is measured in its own standard error (the delta method's), the interval then laid
    out in the data's own (the jackknife's, safer for few prompts); neither side is shorter than
    Student's t. With repeats the prompts are resampled as blocks, all repeats of one together; the
    difference between whole repeats adds its own variance, and the quantiles widen by the degrees
    of freedom that so few repeats leave (Satterthwaite, Biometrics Bulletin 2, 1946). Of one block
    that was measured in ``FEWEST_ROUNDS`` or more that is Student's t over these.

    The statistic is differentiable, best on a scale where its errors are symmetric (the logarithm
    of a rate); columns are (columns, prompts), or (columns, repeats, prompts). Ends are empty for
    fewer than ``FEWEST`` prompts, if these do not differ or if a resample has no value; None if the
    statistic has no value at all. Raises ValueError: no prompts, or columns of unequal length.
    """
    return bootstrap_intervals(statistic, [_make_checked_table(columns)])[0]


def bootstrap_intervals(statistic: Statistic, tables: Sequence[Array]) -> list[Interval | None]:
    """Computes ``bootstrap_interval`` of several tables (columns, repeats, prompts)."""
    return make_in_groups(
        lambda same: _bootstrap_cells(statistic, np.stack(same, axis=1)),
        tables,
        lambda table: table.shape,
    )


def _bootstrap_cells(statistic: Statistic, data: Array) -> list[Interval | None]:
    """Returns the intervals of several cells, of columns (columns, cells, repeats, prompts)."""
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
    if sqrt(variance) <= 1e-9 * max(
        1.0, abs(value)
    ):  # exact where it is one measurement over itself
        is_itself = abs(value) <= 1e-9
        return Interval(0.0, 0.0, 0.0, degrees_of_freedom=freedom) if is_itself else Interval(value)
    if seed_variance > 0:
        small = seed_variance**2 / (repeats - 1)
        freedom = variance**2 / (small + error**4 / max(prompts - 1, 1))
        wider = t_critical_value(freedom)
        if error > 0:  # the skew of the prompts' quantiles is kept
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
    """Draws t* = (theta* - theta) / se* of resampled prompts; none of fewer than `_FEW_PROMPTS`,
    and None if some resample has no value.
    """
    prompts = cell_blocks.shape[-1]
    few = prompts < _FEW_PROMPTS
    t_values = [np.empty(0)]
    if few and (cell_blocks > 0).all():  # nothing that has no value can be drawn
        return t_values[0]
    for weights in _make_resample_counts(prompts):
        draw_counts = weights.astype(np.float64)
        resampled_values = statistic(cell_blocks @ draw_counts)
        if not np.isfinite(resampled_values).all():
            return None
        if not few:
            errors = _compute_resample_errors(statistic, cell_blocks, draw_counts)
            # A resample of the same prompt throughout has no error of its own and says nothing.
            t_values.append(((resampled_values - value) / errors)[errors > 1e-6 * linear_error])
    return np.concatenate(t_values)


@functools.lru_cache(maxsize=256)
def t_critical_value(degrees_of_freedom: float) -> float:
    """Computes the critical value of Student's t for a two-sided 95% interval."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, _ENDS[1]))


def leave_one_out(statistic: Statistic, blocks: Array) -> Array:
    """The statistic (..., prompts) without each prompt in turn, its sums scaled to as many prompts;
    NaN or infinite where there is none. Blocks are (columns, ..., prompts), two prompts at least.
    """
    prompts = blocks.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        remaining_sums = (blocks.sum(axis=-1, keepdims=True) - blocks) * (prompts / (prompts - 1))
        return statistic(remaining_sums.reshape(len(blocks), -1)).reshape(blocks.shape[1:])


@functools.lru_cache(maxsize=4)
def _make_resample_counts(prompts: int) -> tuple[NDArray[np.uint16], ...]:
    """How often each prompt is drawn: (prompts, batch) arrays that together are all resamples. They
    are the same for every cell of a table.
    """
    batch = max(1, _BATCH_VALUES // prompts)
    rng = np.random.default_rng(SEED)
    equal = np.full(prompts, 1 / prompts)
    sizes = [min(batch, RESAMPLES - start) for start in range(0, RESAMPLES, batch)]
    return tuple(rng.multinomial(prompts, equal, size=size).T.astype(np.uint16) for size in sizes)


def _compute_resample_errors(statistic: Statistic, blocks: Array, resample_counts: Array) -> Array:
    """Standard errors (batch,) of resamples, of ``blocks`` (columns, prompts) and how often each
    prompt was drawn (prompts, batch).
    """
    prompts = blocks.shape[1]
    influence = blocks.T @ _gradient(statistic, blocks @ resample_counts)
    influence -= np.einsum("pb,pb->b", influence, resample_counts) / prompts
    variance = np.einsum("pb,pb,pb->b", influence, influence, resample_counts)
    return np.asarray(np.sqrt(variance * prompts / (prompts - 1)))


def _gradient(statistic: Statistic, sums: Array) -> Array:
    """(columns, batch) derivatives of the statistic by each sum, by central differences."""
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
    """Standard error from the values without one prompt at a time, along the last axis."""
    prompts = values.shape[-1]
    return np.sqrt(_sum_squared_deviations(values) * (prompts - 1) / prompts)


def _sum_squared_deviations(values: Array) -> Array:
    """Returns the sum of squared deviations along the last axis."""
    return np.asarray(((values - values.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1))


def _make_checked_table(columns: ArrayLike) -> Array:
    """(columns, repeats, prompts). Raises ValueError: no prompts, or columns of unequal length."""
    data = np.asarray(columns, dtype=np.float64)
    if data.ndim == 2:
        data = data[:, None, :]
    if data.ndim != 3 or 0 in data.shape:
        raise ValueError(f"an interval needs at least one prompt, got columns {data.shape}")
    return data
