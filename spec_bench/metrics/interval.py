"""A number with its 95% interval, and what follows from it: p-values, and which decoder to use.

Nothing about how an interval is made.
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
"""Fewer prompts have no interval: what they differ by says next to nothing of prompts to come."""
WIDEST = 10.0
"""The largest factor between the ends of a rate's interval; one that is wider is left out."""
FEWEST_ROUNDS = 3
"""Fewer rounds of one block have no interval."""
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
    # what it is the mean of, one number per prompt; empty if it is no such mean
    by_prompt: tuple[float, ...] = field(default=(), compare=False, repr=False)
    # each prompt's numbers whose sums determine it, such as BLEU's counts; empty if it is a mean,
    # or unknown
    parts: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)
    # degrees of freedom behind the ends, on the scale they were laid out on; None if not needed
    degrees_of_freedom: float | None = field(default=None, compare=False, repr=False)
    # the share of its variance that only more repeats, such as seeds, make smaller
    between_seeds_share: float = field(default=0.0, compare=False, repr=False)
    # the power of the number of prompts by which it shrinks; more than .5 where few differ
    shrink_power: float = field(default=0.5, compare=False, repr=False)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends; None if there is no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __format__(self, form: str) -> str:
        """``value [low, high]``, each in that form; a point stands alone."""
        point = self.ends is not None and isclose(*self.ends)
        return format_interval(self.value, None if point else self.low, self.high, form)

    def clip(self, lowest: float | None, highest: float | None) -> Interval:
        """Returns the interval with its ends within these bounds, but not past its value."""
        if self.ends is None:
            return self
        low, high = self.ends
        low = low if lowest is None else max(low, min(lowest, self.value))
        high = high if highest is None else min(high, max(highest, self.value))
        return replace(self, low=low, high=high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval of an increasing function of the statistic; none beyond all numbers."""
        value = function(self.value)
        if self.ends is None:
            return Interval(value)
        try:
            low, high = map(function, self.ends)
            return replace(self, value=value, low=low, high=high)
        except OverflowError:
            return Interval(value)


# What an interval may say of a column: nothing that the number cannot be, and not everything.


def clip_or_drop_ends(column_name: str, interval: Interval) -> Interval:
    """Clips an interval to its column's range; drops ends that are too far apart to say much."""
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


# From intervals to p-values, and their correction for their number.


def p_value_above(interval: Interval, bound: float = 0.0) -> float | None:
    """The probability of such an estimate or a larger one if the truth is at most ``bound``.

    By Student's t on the scale that the interval's end towards the bound gives: below 2.5% exactly
    where the 95% interval lies above it. Beyond the end it falls as slowly as with a degree of
    freedom less: of few prompts whose lengths are skewed, large deviations are not so rare.

    Interval and bound are on the scale on which the ends were laid out. None without an interval.
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
    """The probability of such an estimate or a smaller one if the truth is at least ``bound``."""
    if interval.ends is None:
        return None
    low, high = interval.ends
    mirrored_interval = Interval(
        -interval.value, -high, -low, degrees_of_freedom=interval.degrees_of_freedom
    )
    return p_value_above(mirrored_interval, -bound)


def two_sided_p_value(interval: Interval, margin: float = 0.0) -> float | None:
    """The probability of an estimate this far from 0 if the truth is within the margin, two-sided.

    The interval is of a difference; differences up to the margin are as good as none. None if there
    is no interval.
    """
    p_above = p_value_above(interval, margin)
    p_below = p_value_below(interval, -margin)
    return None if p_above is None or p_below is None else min(1.0, 2 * min(p_above, p_below))


def adjust_by_holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p-values by Holm's step-down method (Scandinavian Journal of Statistics 6, 1979).

    The chance that any true null among them comes out below alpha is at most alpha, however they
    depend on each other. The corrected ones are in the same order.
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
    """The ends of a rate's interval if it is one of several that are all to cover (Bonferroni).

    Whichever of them is looked at then, such as the largest, its interval covers.
    ``value_and_ends`` are the rate over so many prompts and the ends of its own 95% interval, all
    positive. None where that is none.
    """
    from scipy.special import stdtrit

    value, low, high = value_and_ends
    if not (np.isfinite(value_and_ends).all() and 0 < low <= value <= high) or prompts < FEWEST:
        return None
    tail = (1 - LEVEL) / 2
    wider = float(stdtrit(prompts - 1, 1 - tail / comparisons) / stdtrit(prompts - 1, 1 - tail))
    return value * (low / value) ** wider, value * (high / value) ** wider


# Which of several decoders to use, by their speed-ups over plain decoding: whatever answer is
# printed, of a table, a page, a category or a search, comes from ``choose_decoder``.


CLOSE = 0.05  # speeds that differ by no more are as good as equal
_MAX_PROMPTS = 10_000  # prompts that are suggested


class DecoderSpeed(NamedTuple):
    """How fast a decoder was."""

    title: str
    speedup: Interval  # over plain decoding
    prompts: float
    doubt: str = ""  # why it decides nothing


class DecoderChoice(NamedTuple):
    """Places of the cells that are surely faster; where none is, the answer and its reason."""

    faster_places: tuple[int, ...] = ()
    answer: str = ""
    why: str = ""


def choose_decoder(speeds: Sequence[DecoderSpeed], unit: str = "prompts") -> DecoderChoice:
    """Chooses the cells that are surely faster than plain decoding.

    The fastest of several is partly luck: that one is faster must hold by intervals that cover all
    at once (Bonferroni). That none is faster needs each of their own 95% intervals at or below 1.

    ``unit`` is what more of may decide, in words.
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
        rerun_advice = "run it again with another --out"  # else the finished cells are only read
        advice = f"; {advice}" * (prompts < FEWEST)
        return DecoderChoice(
            (), "cannot decide yet", f"{open_ones}: {doubt}; {rerun_advice}{advice}"
        )
    looks = f"{title} looks {'faster' if speed.value > 1 else 'slower'}, {speed_text}"
    return DecoderChoice((), "cannot decide yet", f"{open_ones}; {looks}; {advice}")


def _estimate_prompts_to_decide(value: float, ends: tuple[float, float], prompts: float) -> int:
    """Twice the prompts, since the next estimate may be nearer to 1, whose interval would leave out
    1 or lie within ``CLOSE`` of it: its logarithm shrinks with the square root of their number.
    """
    reach = log(value / ends[0]) if value > 1 else log(ends[1] / value)
    prompts_needed = 2 * prompts * (reach / max(abs(log(value)), log(1 + CLOSE))) ** 2
    return min(_MAX_PROMPTS, 10 * ceil(max(prompts_needed, prompts + 1) / 10))
