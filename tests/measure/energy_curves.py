"""Power as a function of absolute time, with its exact energy. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Watts over seconds since an origin.

    Attributes:
        kind: ``steady`` (low), ``ramp`` (low plus ``slope`` W/s), ``square`` (low, then high, each
            for half a period).
    """

    kind: str
    low_w: float = 100.0
    high_w: float = 300.0
    slope_w_per_s: float = 20.0
    period_s: float = 1.0
    origin_s: float = 0.0

    def power_w(self, moment_s):
        since_s = moment_s - self.origin_s
        if self.kind == "ramp":
            return self.low_w + self.slope_w_per_s * since_s
        high = self.kind == "square" and since_s % self.period_s >= self.period_s / 2
        return self.high_w if high else self.low_w

    def energy_j(self, begin_s, end_s):
        return self._until_j(end_s - self.origin_s) - self._until_j(begin_s - self.origin_s)

    def _until_j(self, since_s):
        """The energy from the origin on."""
        if self.kind == "ramp":
            return since_s * (self.low_w + self.slope_w_per_s * since_s / 2)
        if self.kind == "steady":
            return since_s * self.low_w
        periods = math.floor(since_s / self.period_s)
        high_s = periods * self.period_s / 2 + max(
            0.0, since_s - periods * self.period_s - self.period_s / 2
        )
        return since_s * self.low_w + high_s * (self.high_w - self.low_w)
