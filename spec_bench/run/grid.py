"""A grid of trees as a list of cells: the k-configurations that MCSD searches.

A configuration gives every level's number of children; its product is the number of leaf paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

_KEYS = ("decoder", "factors", "most", "depths", "order")
_ORDERS = ("any", "non_increasing")


def configurations(
    factors: Sequence[int], most: int, depths: Sequence[int], order: str
) -> list[tuple[int, ...]]:
    """All trees of the grid, shallow ones first.

    Args:
        factors: children a level may have.
        most: the largest number of leaf paths.
        depths: numbers of levels.
        order: ``any``, or ``non_increasing``: no level branches more than the one above, MCSD's
            monotone rule (arXiv 2401.06706, section 4), which prunes the grid.
    """
    return [
        widths
        for depth in depths
        for widths in product(sorted(set(factors)), repeat=depth)
        if prod(widths) <= most and (order == "any" or all(a >= b for a, b in pairwise(widths)))
    ]


def expand_grid(item: Any) -> list[Any]:
    """``{grid: {...}}`` as its cells; any other cell as it is.

    Raises:
        ValueError: an unknown or missing key, or a value that cannot be right, naming it.
    """
    if not isinstance(item, Mapping) or "grid" not in item:
        return [item]
    grid = item["grid"]
    if set(item) != {"grid"} or not isinstance(grid, Mapping) or set(grid) != set(_KEYS):
        raise ValueError(f"a grid of cells is {{grid: {{{', '.join(_KEYS)}}}}}, got {dict(item)!r}")
    for key in ("factors", "depths"):
        values = grid[key]
        if not isinstance(values, list) or not values or not all(map(_counts, values)):
            raise ValueError(f"grid.{key} must be a list of whole numbers >= 1, got {values!r}")
    if not _counts(grid["most"]):
        raise ValueError(f"grid.most must be a whole number >= 1, got {grid['most']!r}")
    if grid["order"] not in _ORDERS:
        raise ValueError(f"grid.order must be one of {', '.join(_ORDERS)}, got {grid['order']!r}")
    trees = configurations(grid["factors"], grid["most"], grid["depths"], grid["order"])
    return [f"{grid['decoder']}:{'-'.join(map(str, widths))}" for widths in trees]


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
