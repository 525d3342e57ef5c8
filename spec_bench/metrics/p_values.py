"""p-values of differences, and corrections of p-values and intervals for multiple comparisons."""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from spec_bench.metrics.interval import FEWEST, LEVEL, Interval
from spec_bench.metrics.resampling import SEED, Array

_SIGN_DRAWS = 9_999


def p_value_above(interval: Interval, bound: float = 0.0) -> float | None:
    """Returns the probability of an estimate at least this large if the truth is at most ``bound``.

    By Student's t, with the standard error taken from the interval's end towards the bound: the
    p-value is below 2.5% exactly where the 95% interval lies above the bound. Beyond the end it
    falls as slowly as with one degree of freedom less, because with few prompts of skewed lengths
    large deviations are not so rare.

    Interval and bound are on the scale on which the ends were computed. None without an interval.
    """
    from scipy.special import stdtr, stdtrit

    if interval.ends is None or interval.degrees_of_freedom is None:
        return None
    low, high = interval.ends
    distance_beyond = interval.value - bound
    distance_to_end = interval.value - low if distance_beyond > 0 else high - interval.value
    if distance_to_end <= 0:
        return 0.0 if distance_beyond > 0 else 1.0
    degrees_of_freedom = max(interval.degrees_of_freedom - 1, 1.0)
    critical_value = float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2))
    return float(stdtr(degrees_of_freedom, -distance_beyond / distance_to_end * critical_value))


def p_value_below(interval: Interval, bound: float = 0.0) -> float | None:
    """Returns the probability of an estimate at most this large if the truth is at least ``bound``;
    None without an interval.
    """
    if interval.ends is None:
        return None
    low, high = interval.ends
    mirrored_interval = Interval(
        -interval.value, -high, -low, degrees_of_freedom=interval.degrees_of_freedom
    )
    return p_value_above(mirrored_interval, -bound)


def two_sided_p_value(interval: Interval, margin: float = 0.0) -> float | None:
    """Returns the two-sided p-value of a difference if the truth lies within ``margin`` of 0.

    The interval is that of the difference. None without an interval.
    """
    p_above = p_value_above(interval, margin)
    p_below = p_value_below(interval, -margin)
    return None if p_above is None or p_below is None else min(1.0, 2 * min(p_above, p_below))


def adjust_by_holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values by Holm's step-down method (Scandinavian Journal of Statistics 6, 1979).

    The chance that any true null hypothesis among them has a corrected p-value below alpha is at
    most alpha, however they depend on each other. The order is kept.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    scaled_p_values = raw[order] * np.arange(len(raw), 0, -1)
    adjusted_p_values = np.empty_like(raw)
    adjusted_p_values[order] = np.minimum(np.maximum.accumulate(scaled_p_values), 1.0)
    return adjusted_p_values.tolist()


def bonferroni_ends(
    value_and_ends: tuple[float, float, float],
    prompts: float,
    comparisons: int,
) -> tuple[float, float] | None:
    """Widens a rate's 95% interval so that ``comparisons`` such intervals hold jointly
    (Bonferroni).

    The widened interval of any of them, such as the largest rate, then covers with 95%.
    ``value_and_ends`` are the rate over ``prompts`` prompts and the ends of its own 95% interval,
    all positive. None if the rate has no such interval, or too few prompts.
    """
    from scipy.special import stdtrit

    value, low, high = value_and_ends
    if not (np.isfinite(value_and_ends).all() and 0 < low <= value <= high) or prompts < FEWEST:
        return None
    tail = (1 - LEVEL) / 2
    widening = float(stdtrit(prompts - 1, 1 - tail / comparisons) / stdtrit(prompts - 1, 1 - tail))
    return value * (low / value) ** widening, value * (high / value) ** widening


def sign_flip_p_value(differences: ArrayLike) -> float:
    """Computes the two-sided p-value of paired differences (prompts,) if their signs are random.

    The randomisation test of paired answers: if both sides draw from one distribution, their
    answers are interchangeable. If all non-zero differences have the same size, it is McNemar's
    exact test on the discordant prompts; else signs are drawn ``_SIGN_DRAWS`` times, from a fixed
    seed.
    """
    from scipy.special import bdtr

    values = np.asarray(differences, dtype=np.float64)
    discordant = values[np.abs(values) > 1e-12]
    if not discordant.size:
        return 1.0
    if np.allclose(np.abs(discordant), abs(discordant[0])):
        fewer = min((discordant > 0).sum(), (discordant < 0).sum())
        return min(1.0, 2 * float(bdtr(fewer, discordant.size, 0.5)))
    threshold = abs(discordant.sum()) * (1 - 1e-12)
    as_far = np.abs(_draw_signs(discordant.size) @ discordant) >= threshold
    return float((as_far.sum() + 1) / (_SIGN_DRAWS + 1))


@functools.lru_cache(maxsize=1)
def _draw_signs(prompts: int) -> Array:
    return np.random.default_rng(SEED).choice((-1.0, 1.0), (_SIGN_DRAWS, prompts))
