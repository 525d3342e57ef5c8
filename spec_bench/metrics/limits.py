"""What an interval may say of a column: nothing that the number cannot be, and not everything."""

from __future__ import annotations

from dataclasses import replace

from spec_bench.metrics.interval import WIDEST, Interval
from spec_bench.vocabulary.columns import COLUMNS


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
