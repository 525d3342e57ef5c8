"""Intervals of scores: numbers between two ends that they cannot leave, and differences of two.

Scores are often 0 or 1 on a prompt, or the same on all of a handful, where resampling sees no
spread at all. How often the intervals cover is measured by ``scripts/check/verdict_null.py``.
"""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np
from numpy.typing import ArrayLike

from spec_bench.metrics.bootstrap import Array, Statistic, left_out
from spec_bench.metrics.interval import FEWEST, LEVEL, Interval

_TAIL = (1 - LEVEL) / 2
_NORMAL = 1.959963984540054


def score_interval(
    statistic: Statistic, columns: ArrayLike, least: float = 0.0, most: float = 1.0
) -> Interval | None:
    """A score's interval as Clopper and Pearson's for as many prompts as its spread is worth.

    Korn and Graubard (Survey Methodology 24, 1998): the standard error, here the jackknife's, says
    how many independent right-or-wrong answers would know the score as well, and their number is
    lowered by what Student's t is wider than the normal distribution. Where no prompt differs it is
    theirs.

    Args:
        statistic: maps sums over prompts (columns, batch) to values (batch,).
        columns: (columns, prompts).
        least: the smallest value that the score can have.
        most: the largest.

    Returns:
        The interval, with empty ends for fewer than ``FEWEST`` prompts or where leaving out a
        prompt leaves no value; None if the score has no value at all.

    Raises:
        ValueError: no prompts.
    """
    data = _checked(columns)
    value, prompts = _value(statistic, data), data.shape[1]
    if value is None or prompts < FEWEST:
        return None if value is None else Interval(value)
    values = left_out(statistic, data)
    if not np.isfinite(values).all():
        return Interval(value)
    error = sqrt(float(((values - values.mean()) ** 2).sum()) * (prompts - 1) / prompts)
    share, error = (value - least) / (most - least), error / (most - least)
    low, high = share_ends(min(max(share, 0.0), 1.0), error, prompts)
    width = most - least
    return Interval(value, least + low * width, least + high * width, freedom=prompts - 1)


def share_ends(share: float, error: float, prompts: int) -> tuple[float, float]:
    """The ends of a share's 95% interval (``score_interval``).

    Args:
        share: in 0..1.
        error: its standard error, 0 where no prompt differs.
        prompts: how many it is over.
    """
    from scipy.special import betaincinv, stdtrit

    worth = float(prompts)
    if error > 1e-9:
        wider = float(stdtrit(prompts - 1, 1 - _TAIL)) / _NORMAL
        worth = share * (1 - share) / error**2 / wider**2
    right, wrong = share * worth, (1 - share) * worth
    low = float(betaincinv(right, wrong + 1, _TAIL)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, 1 - _TAIL)) if wrong > 0 else 1.0
    return min(low, share), max(high, share)


def score_difference_interval(statistic: Statistic, columns: ArrayLike) -> Interval | None:
    """The interval of a difference of scores, paired by prompt.

    Student's t on what each prompt adds (the jackknife's pseudo-values), with two more prompts
    worth half a plus and half a minus each of the largest that any adds, of 1 where none does
    (after Agresti and Min, Statistics in Medicine 24, 2005): equal answers on some prompts do not
    make sure that all are.

    Args:
        statistic: maps sums over prompts (columns, batch) to the difference (batch,).
        columns: (columns, prompts).

    Returns:
        The interval, on the same terms as ``score_interval``.

    Raises:
        ValueError: no prompts.
    """
    from scipy.special import stdtrit

    data = _checked(columns)
    value, prompts = _value(statistic, data), data.shape[1]
    if value is None or prompts < FEWEST:
        return None if value is None else Interval(value)
    added = added_by_prompt(statistic, data)
    if not np.isfinite(added).all():
        return Interval(value)
    largest = float(np.abs(added).max())
    largest = largest if largest > 1e-12 else 1.0
    spread = (float(added @ added) + largest**2) / (prompts + 2)
    variance = (spread - (float(added.sum()) / (prompts + 2)) ** 2) / (prompts + 2)
    reach = float(stdtrit(prompts - 1, 1 - _TAIL)) * sqrt(variance)
    return Interval(value, value - reach, value + reach, freedom=prompts - 1)


def added_by_prompt(statistic: Statistic, columns: ArrayLike) -> Array:
    """What each prompt adds: its value where the statistic is a mean, else the pseudo-value.

    Args:
        statistic: maps sums over prompts (columns, batch) to values (batch,).
        columns: (columns, prompts), at least two prompts.

    Returns:
        (prompts,) numbers whose mean is about the statistic.
    """
    data = _checked(columns)
    prompts = data.shape[1]
    whole = statistic(data.sum(axis=1, keepdims=True))[0]
    return np.asarray(prompts * whole - (prompts - 1) * left_out(statistic, data))


def sign_flip_p(differences: ArrayLike, draws: int = 9_999) -> float:
    """The p-value of differences whose signs are a matter of chance, two-sided.

    The randomisation test of paired answers: if both sides draw from one distribution, either could
    have given either answer. Where all that differ do so by the same amount it is the exact test of
    McNemar on the discordant prompts, else signs are drawn ``draws`` times.

    Args:
        differences: (prompts,) one side less the other.
        draws: of all signs, from a fixed seed.
    """
    from scipy.stats import binomtest

    values = np.asarray(differences, dtype=np.float64)
    discordant = values[np.abs(values) > 1e-12]
    if not discordant.size:
        return 1.0
    if np.allclose(np.abs(discordant), abs(discordant[0])):
        return float(binomtest(int((discordant > 0).sum()), discordant.size).pvalue)
    signs = np.random.default_rng(20240214).choice((-1.0, 1.0), (draws, discordant.size))
    as_far = np.abs(signs @ discordant) >= abs(discordant.sum()) * (1 - 1e-12)
    return float((as_far.sum() + 1) / (draws + 1))


def _value(statistic: Statistic, data: Array) -> float | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(data.sum(axis=1, keepdims=True))[0])
    return value if isfinite(value) else None


def _checked(columns: ArrayLike) -> Array:
    data = np.asarray(columns, dtype=np.float64)
    if data.ndim != 2 or 0 in data.shape:
        raise ValueError(f"an interval needs at least one prompt, got columns {data.shape}")
    return data
