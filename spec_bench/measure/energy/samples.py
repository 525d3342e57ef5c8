"""From samples of power to energy: pure functions, no clock and no device.

N below is the number of samples. Times are seconds on one clock, ascending; power is in watts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from spec_bench.measure.energy.window import UnmeteredError


def integral_j(
    times_s: Sequence[float], power_w: Sequence[float], begin_s: float, end_s: float
) -> float:
    """The trapezoid rule over a window whose ends are interpolated between their neighbours.

    Args:
        times_s: N times.
        power_w: N powers.
        begin_s: the window's begin, not before the first sample.
        end_s: its end, not after the last sample.

    Returns:
        Joules.

    Raises:
        UnmeteredError: the samples do not cover the window.
    """
    if not times_s or times_s[0] > begin_s or times_s[-1] < end_s:
        raise UnmeteredError("the samples of power do not reach over the window")
    first, last = bisect_right(times_s, begin_s), bisect_left(times_s, end_s)
    times = [begin_s, *times_s[first:last], end_s]
    power = [
        _at(times_s, power_w, begin_s),
        *power_w[first:last],
        _at(times_s, power_w, end_s),
    ]
    return sum(
        (times[i + 1] - times[i]) * (power[i + 1] + power[i]) / 2 for i in range(len(times) - 1)
    )


def summed_j(
    times_s: Sequence[float], power_w: Sequence[float], begin_s: float, end_s: float
) -> float:
    """Each sample in the window stands for one second, whatever the time to the next one.

    Args:
        times_s: N times.
        power_w: N powers.
        begin_s: the window's begin, in it.
        end_s: its end, not in it.

    Returns:
        Joules.
    """
    return 1.0 * sum(power_w[bisect_left(times_s, begin_s) : bisect_left(times_s, end_s)])


def largest_gap_s(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """The longest time between neighbouring samples that a window touches."""
    first, last = bisect_right(times_s, begin_s) - 1, bisect_left(times_s, end_s)
    touched = times_s[max(first, 0) : last + 1]
    return max((b - a for a, b in pairwise(touched)), default=0.0)


def _at(times_s: Sequence[float], power_w: Sequence[float], moment_s: float) -> float:
    """The power at a moment between the first and the last sample, by linear interpolation."""
    after = bisect_left(times_s, moment_s)
    if times_s[after] == moment_s:
        return power_w[after]
    before = after - 1
    weight = (moment_s - times_s[before]) / (times_s[after] - times_s[before])
    return power_w[before] + weight * (power_w[after] - power_w[before])
