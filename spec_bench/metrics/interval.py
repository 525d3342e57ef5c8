"""A number with its 95% interval; nothing about how one is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval.

    Attributes:
        value: the statistic on the prompts as they are.
        low: lower end, None if there is no interval (a single prompt).
        high: upper end, None if there is no interval.
        by_prompt: what it is the mean of, one number per prompt; empty if it is no such mean.
        parts: each prompt's numbers whose sums determine it, such as BLEU's counts; empty if it is
            a mean, or unknown.
        freedom: degrees of freedom behind the ends, on the scale they were laid out on; None if not
            needed.
    """

    value: float
    low: float | None = None
    high: float | None = None
    by_prompt: tuple[float, ...] = field(default=(), compare=False, repr=False)
    parts: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)
    freedom: float | None = field(default=None, compare=False, repr=False)

    def scaled(self, factor: float) -> Interval:
        """The interval of ``factor`` (positive) times the statistic."""
        assert factor > 0
        return self.mapped(lambda value: value * factor)

    def mapped(self, increasing: Callable[[float], float]) -> Interval:
        """The interval of an increasing function of the statistic; none beyond all numbers."""
        value = increasing(self.value)
        if self.low is None or self.high is None:
            return Interval(value)
        try:
            return Interval(value, increasing(self.low), increasing(self.high))
        except OverflowError:
            return Interval(value)
