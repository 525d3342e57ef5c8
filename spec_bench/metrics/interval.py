"""A number with its 95% interval, and what is derived from it: p-values, the choice of a decoder.

Intervals themselves are computed in ``intervals``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isclose, log
from typing import ClassVar, NamedTuple

import numpy as np

from spec_bench.settings.former import FormerMembers
from spec_bench.vocabulary.columns import find_column
from spec_bench.vocabulary.numbers import format_ends, format_interval

LEVEL = 0.95
FEWEST = 5
"""Fewest prompts for an interval: the spread of fewer says too little about future prompts."""
WIDEST = 10.0
"""Largest ratio between the ends of a rate's interval; a wider interval is dropped."""
FEWEST_ROUNDS = 3
"""Fewest rounds for an interval if all prompts are one block."""
TOO_FEW = f"fewer than {FEWEST} prompts"
FEW_DIFFER = f"{TOO_FEW} differ from the others"
FEW_CLOCKS = f"seconds of fewer than {FEWEST} clocks, compared from {FEWEST_ROUNDS} rounds on"


@dataclass(frozen=True)
class Interval(FormerMembers):
    """A value with its 95% interval."""

    former_members: ClassVar = {
        "freedom": "degrees_of_freedom",
        "between": "between_seeds_share",
        "shrinks": "shrink_power",
    }
    value: float  # the statistic on the prompts as they are
    low: float | None = None  # lower end, None if there is no interval (too few prompts)
    high: float | None = None  # upper end, None if there is no interval
    # the number of each prompt that the value is the mean of; empty if it is not a mean
    by_prompt: tuple[float, ...] = field(default=(), compare=False, repr=False)
    # each prompt's numbers whose sums determine the value, such as BLEU's counts; empty if it is a
    # mean, or if they are not known
    parts: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)
    # degrees of freedom of the ends, on the scale on which these were computed; None if not needed
    degrees_of_freedom: float | None = field(default=None, compare=False, repr=False)
    # share of the variance that only more repeats, such as seeds, reduce
    between_seeds_share: float = field(default=0.0, compare=False, repr=False)
    # the interval's width falls with this power of the number of prompts; over .5 if few differ
    shrink_power: float = field(default=0.5, compare=False, repr=False)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends; None if there is no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __format__(self, form: str) -> str:
        """Formats ``value [low, high]``, each by ``form``; only the value if the ends are equal."""
        point = self.ends is not None and isclose(*self.ends)
        return format_interval(self.value, None if point else self.low, self.high, form)

    def clip(self, lowest: float | None, highest: float | None) -> Interval:
        """Clips the ends to the bounds, but never past the value."""
        if self.ends is None:
            return self
        low, high = self.ends
        low = low if lowest is None else max(low, min(lowest, self.value))
        high = high if highest is None else min(high, max(highest, self.value))
        return replace(self, low=low, high=high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """Maps value and ends by an increasing function; without ends if one would overflow."""
        value = function(self.value)
        if self.ends is None:
            return Interval(value)
        try:
            low, high = map(function, self.ends)
            return replace(self, value=value, low=low, high=high)
        except OverflowError:
            return Interval(value)


# Fitting an interval to its column: values that the column cannot have, ends too far apart.


def clip_or_drop_ends(column_name: str, interval: Interval) -> Interval:
    """Clips an interval to its column's range; drops its ends if the range has no upper bound and
    the ends differ by more than the factor ``WIDEST``.
    """
    column = find_column(column_name)
    smallest, largest = column.limits if column else (None, None)
    clipped_interval = interval.clip(smallest, largest)
    if (
        column
        and largest is None
        and clipped_interval.ends
        and clipped_interval.ends[0] * WIDEST < clipped_interval.ends[1]
    ):
        return replace(clipped_interval, low=None, high=None)
    return clipped_interval


# From intervals to p-values, and the correction of p-values for multiple tests.


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
    beyond = interval.value - bound
    reach = interval.value - low if beyond > 0 else high - interval.value
    if reach <= 0:
        return 0.0 if beyond > 0 else 1.0
    freedom = max(interval.degrees_of_freedom - 1, 1.0)
    usual = float(stdtrit(freedom, (1 + LEVEL) / 2))
    return float(stdtr(freedom, -beyond / reach * usual))


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
    wider = float(stdtrit(prompts - 1, 1 - tail / comparisons) / stdtrit(prompts - 1, 1 - tail))
    return value * (low / value) ** wider, value * (high / value) ** wider


# The choice of a decoder by speed-up over plain decoding. Every printed answer, of a table, a page,
# a category or a search, comes from ``choose_decoder``.


CLOSE = 0.05  # speeds that differ by at most this share count as equal
_MAX_PROMPTS = 10_000  # largest number of prompts that is suggested


class DecoderSpeed(NamedTuple):
    """A decoder's measured speed-up."""

    title: str
    speedup: Interval  # over plain decoding
    prompts: float
    doubt: str = ""  # why the measurement cannot decide anything, or ""


class DecoderChoice(NamedTuple):
    """Indices of the decoders that are surely faster; without any, an answer with its reason."""

    faster_places: tuple[int, ...] = ()
    answer: str = ""
    why: str = ""


def choose_decoder(speeds: Sequence[DecoderSpeed], unit: str = "prompts") -> DecoderChoice:
    """Chooses the decoders that are surely faster than plain decoding.

    The fastest of several is partly luck, so a decoder is faster only by an interval that holds for
    all at once (Bonferroni). That none is faster needs each decoder's own 95% interval at or below
    1.

    ``unit`` is the plural noun for what to measure more of, such as prompts.
    """
    own_ends, wide = (
        [
            None
            if doubt
            else bonferroni_ends((s.value, s.low or 0.0, s.high or 0.0), n, comparisons)
            for _, s, n, doubt in speeds
        ]
        for comparisons in (1, len(speeds))
    )
    if not speeds or (faster := tuple(n for n, ends in enumerate(wide) if ends and ends[0] > 1)):
        return (
            DecoderChoice(faster) if speeds else DecoderChoice((), "AR", "nothing else has a speed")
        )
    maybe = [n for n, ends in enumerate(own_ends) if ends is None or ends[1] > 1]
    ties = {n for n, ends in enumerate(wide) if ends and max(1 / ends[0], ends[1]) <= 1 + CLOSE}
    candidates = {*maybe} - ties or maybe or range(len(own_ends))
    best = max(candidates, key=lambda n: (not speeds[n][3], speeds[n][1].value))
    title, speed, prompts, doubt = speeds[best]
    ends = (wide if maybe else own_ends)[best]
    speed_text = f"{speed.value:.2f}×{format_ends(*ends, '.2f', ' [{} to {}]') if ends else ''}"
    if not maybe:
        return DecoderChoice(
            (), "AR", f"the fastest other one, {title}, reaches {speed_text} of its speed"
        )
    if best in ties:
        return DecoderChoice(
            (), "a tie", f"{title} is as fast as AR within {CLOSE:.0%}, {speed_text}"
        )
    other_text = f", {len(candidates) - 1} other{'s' * (len(candidates) > 2)}" * (
        len(candidates) > 1
    )
    title = title.removesuffix(f", {doubt.partition(':')[0]}")
    open_ones = f"between {title}{other_text} and AR"
    advice = f"more {'seeds' if speed.between_seeds_share > 0.5 else unit} may decide"
    if ends and speed.between_seeds_share <= 0.5:
        advice = (
            f"about {_estimate_prompts_to_decide(speed.value, ends, prompts)} {unit} may decide"
        )
    if doubt:
        # with the same --out the finished cells would only be read
        rerun_advice = "run it again with another --out"
        advice = f"; {advice}" * (prompts < FEWEST)
        return DecoderChoice(
            (), "cannot decide yet", f"{open_ones}: {doubt}; {rerun_advice}{advice}"
        )
    looks = f"{title} looks {'faster' if speed.value > 1 else 'slower'}, {speed_text}"
    return DecoderChoice((), "cannot decide yet", f"{open_ones}; {looks}; {advice}")


def _estimate_prompts_to_decide(value: float, ends: tuple[float, float], prompts: float) -> int:
    """Estimates how many prompts would decide, rounded up to tens.

    Twice as many as are needed for an interval around this value that excludes 1 or lies within
    ``CLOSE`` of it, since the next estimate may be nearer to 1. The interval's width, in
    logarithms, falls with the square root of the number of prompts.
    """
    reach = log(value / ends[0]) if value > 1 else log(ends[1] / value)
    prompts_needed = 2 * prompts * (reach / max(abs(log(value)), log(1 + CLOSE))) ** 2
    return min(_MAX_PROMPTS, 10 * ceil(max(prompts_needed, prompts + 1) / 10))
