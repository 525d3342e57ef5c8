"""A difference of two sides with its interval, and the odds of a claim about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np
from scipy.special import ndtr

from spec_bench.metrics.interval import WIDEST, Interval
from spec_bench.metrics.many import p_above, p_below
from spec_bench.report.claims.picks import widened
from spec_bench.report.claims.verdict import Odds
from spec_bench.vocabulary.numbers import with_ends


@dataclass(frozen=True)
class Difference:
    """Left minus right, or for relative metrics left over right minus 1.

    Attributes:
        value: on the prompts as they are; of picked cells on the halves that did not pick them.
        tested: the interval on the scale of the test, for relative metrics the logarithm of left
            over right; None without one.
        relative: whether it is a share.
        why: why there is no interval.
    """

    value: float
    tested: Interval | None
    relative: bool
    why: str = ""

    @property
    def paired(self) -> bool:
        """Whether there is an interval over common prompts."""
        return self.tested is not None and self.tested.low is not None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval's ends as printed."""
        interval = self.tested
        if interval is None or interval.low is None or interval.high is None:
            return None
        if not self.relative:
            return interval.low, interval.high
        return float(np.expm1(interval.low)), float(np.expm1(interval.high))

    @property
    def too_wide(self) -> bool:
        """Whether a share's interval is too wide to print."""
        interval = self.tested
        if not self.relative or interval is None or interval.low is None or interval.high is None:
            return False
        return interval.high - interval.low > log(WIDEST)

    @property
    def of_picks(self) -> Difference:
        """The same where a side was picked on one half of the prompts for the other."""
        return replace(self, tested=widened(self.tested) if self.tested else None)

    def above(self, bound: float = 0.0) -> Odds | None:
        """Odds of a claim that the difference is more than that; None without an interval."""
        if self.tested is None:
            return None
        at = float(np.log1p(bound)) if self.relative else bound
        more, less = p_above(self.tested, at), p_below(self.tested, at)
        return None if more is None or less is None else Odds(more, less)

    def below(self, bound: float = 0.0) -> Odds | None:
        """Odds of a claim that the difference is less than that."""
        odds = self.above(bound)
        return odds.turned if odds else None

    def within(self, room: float) -> Odds | None:
        """Odds of a claim that the difference is at most so large, either way (two tests)."""
        over, under = self.below(room), self.above(-room)
        if over is None or under is None:
            return None
        either = min(over.if_true, under.if_true)
        return Odds(max(over.if_false, under.if_false), min(1.0, 2 * either))

    def __str__(self) -> str:
        form = "+.1%" if self.relative else "+.3f"
        if self.ends is None:
            return f"{self.value:{form}} (no interval: {self.why})"
        return with_ends(self.value, *self.ends, form)


def fisher(r: float, count: int) -> tuple[float, float, Odds]:
    """The 95% interval of a correlation by Fisher's z, and the odds of its being positive."""
    z, error = float(np.arctanh(r)), 1 / sqrt(count - 3)
    low, high = (float(np.tanh(z + sign * 1.96 * error)) for sign in (-1, 1))
    return low, high, Odds(float(ndtr(-z / error)), float(ndtr(z / error)))
