"""Statistics that figures and claims need: pure functions of numbers."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd


def front(points: Sequence[tuple[float, float]], *, higher_x: bool, higher_y: bool) -> list[int]:
    """The Pareto front of points (x, y) without NaN: those that no other beats, being as good in
    both and better in one; their indices, x ascending, of equal points the first.
    """
    better_x, better_y = (1 if higher_x else -1), (1 if higher_y else -1)
    worth = [(better_x * x, better_y * y) for x, y in points]
    order = sorted(range(len(points)), key=lambda i: (*worth[i], -i), reverse=True)
    chosen: list[int] = []
    for index in order:  # the best x first: a point is on the front if its y is a new best
        if not chosen or worth[index][1] > worth[chosen[-1]][1]:
            chosen.append(index)
    return chosen[::-1] if higher_x else chosen


def correlation(x: pd.Series, y: pd.Series) -> float | None:
    """Pearson's r; None for fewer than three points, or where one of both does not vary."""
    known = x.notna() & y.notna()
    x, y = x[known].astype(float), y[known].astype(float)
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def error_bars(points: Iterable[tuple[float, float, float]]) -> list[list[float]]:
    """Two rows of lengths from (value, low, high); 0 where an end is unknown."""
    below, above = [], []
    for value, low, high in points:
        below.append(0.0 if pd.isna(low) else max(0.0, value - low))
        above.append(0.0 if pd.isna(high) else max(0.0, high - value))
    return [below, above]
