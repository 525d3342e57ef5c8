"""The learning rate: linear warm-up, then half a cosine down to zero."""

from __future__ import annotations

import math


def learning_rate(step: int, steps: int, warmup: float, peak: float) -> float:
    """The rate of one step.

    Args:
        step: counted from 0.
        steps: of the whole training.
        warmup: share of the steps over which the rate rises.
        peak: the highest rate.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return peak * (step + 1) / rising
    share = (step - rising) / max(1, steps - rising)
    return peak * 0.5 * (1 + math.cos(math.pi * share))
