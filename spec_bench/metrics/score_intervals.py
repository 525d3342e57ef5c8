"""95% intervals of scores and of differences of scores.

A score lies between 0 and 1, is often 0 or 1 on a single prompt, and may be equal on all of a few
prompts. Resampling then shows no spread, so the intervals come from the jackknife and from
distributions of right and wrong answers.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, sqrt

import numpy as np
from numpy.typing import ArrayLike

from spec_bench.metrics.interval import FEWEST, Interval
from spec_bench.metrics.resampling import (
    END_QUANTILES,
    Array,
    Statistic,
    jackknife_error,
    leave_one_out,
    make_checked_table,
    t_critical_value,
)

_NORMAL = 1.959963984540054


def mean_interval(
    scores: Sequence[float], scores_per_prompt: Sequence[float] | None = None
) -> Interval:
    """Computes the interval of a mean score in 0..1 over prompts. ``scores`` has one score per
    prompt, or the sum of as many scores as ``scores_per_prompt`` has for the prompt. Raises
    ValueError if there are no prompts.
    """
    denominators = [1.0] * len(scores) if scores_per_prompt is None else scores_per_prompt
    interval = bounded_score_interval(lambda sums: sums[0] / sums[1], [scores, denominators])
    assert interval is not None, "a mean over at least one prompt has a value"
    return interval if scores_per_prompt else replace(interval, by_prompt=tuple(scores))


def bounded_score_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
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
    error = float(jackknife_error(values))
    effective_count = float(prompts)
    if error > 1e-9:
        widening = t_critical_value(prompts - 1) / _NORMAL
        effective_count = share * (1 - share) / error**2 / widening**2
    right = share * effective_count
    wrong = (1 - share) * effective_count
    low = float(betaincinv(right, wrong + 1, END_QUANTILES[0])) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, END_QUANTILES[1])) if wrong > 0 else 1.0
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
    as in ``bounded_score_interval``.
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
    half_width = t_critical_value(prompts - 1) * sqrt(variance)
    return Interval(value, value - half_width, value + half_width, degrees_of_freedom=prompts - 1)


def _compute_value_and_jackknife(
    statistic: Statistic, columns: ArrayLike
) -> tuple[float | None, Array | None]:
    """Computes a statistic with and without each prompt; None if not finite or, the latter, too
    few.
    """
    data = make_checked_table(columns)[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(data.sum(axis=1, keepdims=True))[0])
    if not isfinite(value) or data.shape[1] < FEWEST:
        return value if isfinite(value) else None, None
    values = leave_one_out(statistic, data)
    return value, values if np.isfinite(values).all() else None
