"""A grid of trees as a list of cells: the k-configurations that MCSD searches.

A configuration gives every level's number of children; its product is the number of leaf paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Annotated, Any, Literal

from spec_bench.validation import Ge, MinLen, Says, Text, Whole, check, settings

Count = Annotated[Whole, Ge(1)]
Counts = Annotated[tuple[Count, ...], MinLen(1), Says("a list of whole numbers >= 1")]


@settings
class Grid:
    """``{grid: {...}}`` in a list of cells; see ``configurations``."""

    decoder: Text
    factors: Counts
    most: Count
    depths: Counts
    order: Literal["any", "non_increasing"]


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
    if len(item) > 1:
        raise ValueError(f"a grid of cells stands alone, got {', '.join(map(str, item))}")
    grid = check(Grid, item["grid"], "grid")
    trees = configurations(grid.factors, grid.most, grid.depths, grid.order)
    return [f"{grid.decoder}:{'-'.join(map(str, widths))}" for widths in trees]
