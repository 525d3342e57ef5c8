"""A number with its 95% interval; nothing about how one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spec_bench.vocabulary.columns import COLUMNS
from spec_bench.vocabulary.numbers import with_ends

LEVEL = 0.95
FEWEST = 5
"""Fewer prompts have no interval: what they differ by says next to nothing of prompts to come."""
WIDEST = 10.0
"""The largest factor between the ends of a rate's interval; one that is wider is left out."""
TOO_FEW = f"fewer than {FEWEST} prompts"


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval."""

    value: float  # the statistic on the prompts as they are
    low: float | None = None  # lower end, None if there is no interval (too few prompts)
    high: float | None = None  # upper end, None if there is no interval
    # what it is the mean of, one number per prompt; empty if it is no such mean
    by_prompt: tuple[float, ...] = field(default=(), compare=False, repr=False)
    # each prompt's numbers whose sums determine it, such as BLEU's counts; empty if it is a mean,
    # or unknown
    parts: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)
    # degrees of freedom behind the ends, on the scale they were laid out on; None if not needed
    freedom: float | None = field(default=None, compare=False, repr=False)

    def __format__(self, form: str) -> str:
        """``value [low, high]``, each in that form; a point stands alone."""
        point = self.low == self.high
        return with_ends(self.value, None if point else self.low, self.high, form)

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` (positive) times the statistic."""
        assert factor > 0
        return self.mapped(lambda value: value * factor)

    def within(self, least: float | None, most: float | None) -> Interval:
        """The interval without what the number cannot be."""
        if self.low is None or self.high is None:
            return self
        low = self.low if least is None else max(self.low, min(least, self.value))
        high = self.high if most is None else min(self.high, max(most, self.value))
        return replace(self, low=low, high=high)

    def mapped(self, increasing: Callable[[float], float]) -> Interval:
        """The interval of an increasing function of the statistic; none beyond all numbers."""
        value = increasing(self.value)
        if self.low is None or self.high is None:
            return Interval(value)
        try:
            return Interval(value, increasing(self.low), increasing(self.high))
        except OverflowError:
            return Interval(value)


# What an interval may say of a column: nothing that the number cannot be, and not everything.


def limited(name: str, interval: Interval, most: float | None = None) -> Interval:
    """The interval within the column's range; without ends that are too far apart to say much."""
    column = next((each for each in COLUMNS if each.name == name), None)
    least, largest = column.limits if column else (None, None)
    inside = interval.within(least, most if largest is None else largest)
    if column is None or largest is not None or inside.low is None or inside.high is None:
        return inside
    if inside.low * WIDEST < inside.high:
        return replace(inside, low=None, high=None)
    return inside
