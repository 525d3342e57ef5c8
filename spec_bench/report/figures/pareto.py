"""The Pareto front of points in a plane."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float, float]], *, higher_x: bool, higher_y: bool) -> list[int]:
    """The points that no other beats: at least as good in both directions and better in one.

    Args:
        points: (x, y) each, no NaN.
        higher_x: whether a higher x is better.
        higher_y: whether a higher y is better.

    Returns:
        Their indices, x ascending; of equal points the first.
    """
    better_x, better_y = (1 if higher_x else -1), (1 if higher_y else -1)
    worth = [(better_x * x, better_y * y) for x, y in points]
    order = sorted(range(len(points)), key=lambda i: (*worth[i], -i), reverse=True)
    found: list[int] = []
    for index in order:  # the best x first: a point is on the front if its y is a new best
        if not found or worth[index][1] > worth[found[-1]][1]:
            found.append(index)
    return found[::-1] if higher_x else found
