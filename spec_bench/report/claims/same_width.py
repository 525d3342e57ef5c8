"""DSBD against beam sampling that is as wide: between its measured widths by linear interpolation.

The average accepted width of a setting is taken as known: its own interval does not enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pandas as pd

from spec_bench.report.claims.contrast import Contrast
from spec_bench.report.load import Row

_BEYOND = 0.25  # so far outside the measured widths the nearest one stands in


def at_same_width(settings: Sequence[Row], beams: Sequence[Row]) -> tuple[list[Contrast], str]:
    """Each setting against beam sampling at its average accepted width.

    Args:
        settings: DSBD's cells.
        beams: beam sampling's cells, their widths as spec.

    Returns:
        The contrasts, and the rule with how many settings it left out, for the evidence. A setting
        wider or narrower than all beam sampling by more than a quarter of a beam is left out.
    """
    ordered = sorted(beams, key=lambda row: int(row["spec"]))
    contrasts = []
    for row in settings:
        width = row.get("beam_width")
        found = None if width is None or pd.isna(width) else _around(float(width), ordered)
        if found is not None:
            contrasts.append(Contrast((row,), *found))
    left_out = len(settings) - len(contrasts)
    rule = f"mean of {len(contrasts)} settings, beam sampling interpolated linearly in its width"
    if left_out:
        rule += f", {left_out} settings outside its widths left out"
    return contrasts, rule


def _around(width: float, beams: Sequence[Row]) -> tuple[tuple[Row, ...], tuple[float, ...]] | None:
    """The cells on both sides of a width with their weights."""
    for lower, upper in pairwise(beams):
        low, high = int(lower["spec"]), int(upper["spec"])
        if low <= width <= high:
            share = (width - low) / (high - low)
            return (lower, upper), (1 - share, share)
    for end in (*beams[:1], *beams[-1:]):
        if abs(int(end["spec"]) - width) <= _BEYOND:
            return (end,), (1.0,)
    return None
