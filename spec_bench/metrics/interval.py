"""A number with its 95% interval.

``intervals`` and ``score_intervals`` compute intervals; ``p_values`` and ``decoder_choice`` draw
conclusions from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isclose
from typing import ClassVar

from spec_bench.settings.former import FormerMembers
from spec_bench.vocabulary.columns import find_column
from spec_bench.vocabulary.numbers import format_interval

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


def clip_or_drop_wide_ends(column_name: str, interval: Interval) -> Interval:
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
