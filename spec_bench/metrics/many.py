"""From intervals to verdicts: p-values that agree with an interval, corrected for their number.

Knows numbers only; nothing about what was compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spec_bench.metrics.interval import LEVEL, Interval


def p_value(interval: Interval, margin: float = 0.0) -> float | None:
    """The probability of an estimate this far from 0 if the truth is within the margin.

    Two-sided, by Student's t on the scale that the interval's own end towards 0 gives: without a
    margin it is below 5% exactly where the 95% interval leaves 0 out.

    Args:
        interval: of a difference, 0 if there is none.
        margin: differences up to this size are as good as none.

    Returns:
        The p-value; None if there is no interval.
    """
    from scipy.special import stdtr, stdtrit

    if interval.low is None or interval.high is None or interval.freedom is None:
        return None
    beyond = abs(interval.value) - margin
    if beyond <= 0:
        return 1.0
    reach = interval.value - interval.low if interval.value > 0 else interval.high - interval.value
    if reach <= 0:
        return 0.0
    usual = float(stdtrit(interval.freedom, (1 + LEVEL) / 2))
    return float(2 * stdtr(interval.freedom, -beyond / reach * usual))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Scandinavian Journal of Statistics 6, 1979).

    The chance that any true null among them comes out below alpha is at most alpha, however they
    depend on each other.

    Args:
        p_values: uncorrected, each in 0..1.

    Returns:
        The corrected ones, in the same order.
    """
    found = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(found, kind="stable")
    stepped = found[order] * np.arange(len(found), 0, -1)
    corrected = np.empty_like(found)
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return corrected.tolist()
