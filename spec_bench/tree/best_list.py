"""Which tree of n nodes to list: the most expected accepted tokens for given acceptances.

With positional acceptance (Sequoia, arXiv 2402.12374, Definition 3.1) a node's k-th child at depth
d is accepted with probability a[d][k] once the node is reached, whatever the tokens. A tree is then
worth the sum over its nodes of the product along each path. Recursive rejection without replacement
fits that: a rank's acceptance does not depend on siblings drawn later.

Imports no torch; acceptances are plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

Path = tuple[int, ...]
Acceptance = Sequence[Sequence[float]]


class BestList(NamedTuple):
    """A tree and what it is worth.

    Attributes:
        nodes: paths of ranks, by depth and then by rank.
        accepted: expected accepted tokens of one iteration.
    """

    nodes: tuple[Path, ...]
    accepted: float


def expected_accepted(nodes: Sequence[Path], acceptance: Acceptance) -> float:
    """E[accepted tokens] of a listed tree.

    Args:
        nodes: paths of ranks.
        acceptance: a[d][k] of rank k below a node at depth d, reached.
    """
    return sum(prod(acceptance[depth][rank] for depth, rank in enumerate(node)) for node in nodes)


def pooled(acceptance: Acceptance) -> list[list[float]]:
    """Estimates made to fall with rank, by averaging neighbours that do not (isotonic).

    Where draws are exchangeable, a later sibling cannot truly be worth more than an earlier one;
    an estimate that says so is noise, which taking the best would turn into a promise.
    """
    made = []
    for ranks in acceptance:
        blocks: list[tuple[float, int]] = []
        for value in ranks:
            total, count = value, 1
            while blocks and blocks[-1][0] * count < total * blocks[-1][1]:
                before, size = blocks.pop()
                total, count = total + before, count + size
            blocks.append((total, count))
        made.append([total / count for total, count in blocks for _ in range(count)])
    return made


def best_list(acceptance: Acceptance, nodes: int) -> BestList:
    """Sequoia's dynamic programme (section 3.1.2): the best tree of at most that many nodes.

    Args:
        acceptance: a[d][k]; as deep as the tree may be, each level as wide as it may be.
        nodes: how many, the root not counted.

    Returns:
        The tree; ties go to the fewer nodes below the earlier sibling.
    """

    @cache
    def below(left: int, depth: int, rank: int) -> tuple[float, tuple[Path, ...]]:
        """The best trees from this rank on below one node, as value and paths from there."""
        if left == 0 or depth == len(acceptance) or rank == len(acceptance[depth]):
            return 0.0, ()
        best: tuple[float, tuple[Path, ...]] = (0.0, ())
        for share in range(1, left + 1):
            deeper, paths = below(share - 1, depth + 1, 0)
            beside, others = below(left - share, depth, rank + 1)
            value = acceptance[depth][rank] * (1 + deeper) + beside
            if value > best[0]:
                mine = ((rank,), *((rank, *path) for path in paths))
                best = (value, mine + others)
        return best

    value, found = below(nodes, 0, 0)
    return BestList(tuple(sorted(found, key=lambda path: (len(path), path))), value)


def best_size(
    acceptance: Acceptance,
    sizes: Sequence[int],
    iteration_s: Callable[[Sequence[int]], float],
) -> BestList:
    """The tree that delivers most tokens per second.

    Args:
        acceptance: a[d][k]; the deepest level is the deepest tree tried.
        sizes: numbers of nodes to try.
        iteration_s: measured seconds of one iteration, given the nodes on each level.

    Returns:
        The best of the best trees of each size and depth.
    """
    tried = (
        best_list(acceptance[:depth], size)
        for depth in range(1, len(acceptance) + 1)
        for size in sizes
    )
    return max(tried, key=lambda tree: (1 + tree.accepted) / iteration_s(_levels(tree.nodes)))


def _levels(nodes: Sequence[Path]) -> list[int]:
    """Nodes on each level below the root."""
    depth = max(map(len, nodes), default=0)
    return [sum(len(node) == level for node in nodes) for level in range(1, depth + 1)]
