"""From intervals to p-values that agree with them, and their correction for their number.

Knows numbers only; nothing about what was compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spec_bench.metrics.interval import FEWEST, LEVEL, Interval


def p_above(interval: Interval, bound: float = 0.0) -> float | None:
    """The probability of such an estimate or a larger one if the truth is at most ``bound``.

    By Student's t on the scale that the interval's end towards the bound gives: below 2.5% exactly
    where the 95% interval lies above it. Beyond the end it falls as slowly as with a degree of
    freedom less: of few prompts whose lengths are skewed, large deviations are not so rare.

    Interval and bound are on the scale on which the ends were laid out. None without an interval.
    """
    from scipy.special import stdtr, stdtrit

    if interval.low is None or interval.high is None or interval.freedom is None:
        return None
    beyond = interval.value - bound
    reach = interval.value - interval.low if beyond > 0 else interval.high - interval.value
    if reach <= 0:
        return 0.0 if beyond > 0 else 1.0
    freedom = max(interval.freedom - 1, 1.0)
    usual = float(stdtrit(freedom, (1 + LEVEL) / 2))
    return float(stdtr(freedom, -beyond / reach * usual))


def p_below(interval: Interval, bound: float = 0.0) -> float | None:
    """The probability of such an estimate or a smaller one if the truth is at least ``bound``."""
    if interval.low is None or interval.high is None:
        return None
    turned = Interval(-interval.value, -interval.high, -interval.low, freedom=interval.freedom)
    return p_above(turned, -bound)


def at_once(
    ends: tuple[float, float, float], prompts: float, count: int
) -> tuple[float, float] | None:
    """The ends of a rate's interval if it is one of several that are all to cover (Bonferroni).

    Whichever of them is looked at then, such as the largest, its interval covers.

    Args:
        ends: the rate and the ends of its own 95% interval, all positive.
        prompts: how many it is over.
        count: how many there are.

    Returns:
        Both ends; None where the own interval is none.
    """
    from scipy.special import stdtrit

    value, low, high = ends
    if not (np.isfinite(ends).all() and 0 < low <= value <= high) or prompts < FEWEST:
        return None
    tail = (1 - LEVEL) / 2
    wider = float(stdtrit(prompts - 1, 1 - tail / count) / stdtrit(prompts - 1, 1 - tail))
    return value * (low / value) ** wider, value * (high / value) ** wider


def p_value(interval: Interval, margin: float = 0.0) -> float | None:
    """The probability of an estimate this far from 0 if the truth is within the margin, two-sided.

    The interval is of a difference; differences up to the margin are as good as none. None if there
    is no interval.
    """
    above, below = p_above(interval, margin), p_below(interval, -margin)
    return None if above is None or below is None else min(1.0, 2 * min(above, below))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Scandinavian Journal of Statistics 6, 1979).

    The chance that any true null among them comes out below alpha is at most alpha, however they
    depend on each other.

    Args:
        p_values: uncorrected, each in 0..1.

    Returns:
        The corrected ones, in the same order.
    """
    given = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    stepped = given[order] * np.arange(len(given), 0, -1)
    corrected = np.empty_like(given)
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return corrected.tolist()
