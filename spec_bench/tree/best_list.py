"""Which tree of n nodes to list: the most expected accepted tokens for given acceptances.

With positional acceptance (Sequoia, arXiv 2402.12374, Definition 3.1) a node's k-th child is
accepted with probability a[k] once the node is reached, whatever the tokens and the depth. A tree
is then worth the sum over its nodes of the product along each path. Recursive rejection without
replacement fits that: a rank's acceptance does not depend on siblings drawn later.

Knows plain numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from spec_bench.tree.node_list import greedy_node_list

Path = tuple[int, ...]


def expected_accepted(nodes: Sequence[Path], acceptance: Sequence[float]) -> float:
    """E[accepted tokens] of a listed tree in one iteration, by a[k] of rank k."""
    return sum(prod(acceptance[rank] for rank in node) for node in nodes)


def pooled(acceptance: Sequence[float]) -> list[float]:
    """Estimates made to fall with rank, by averaging neighbours that do not (isotonic).

    Where draws are exchangeable, a later sibling cannot truly be worth more than an earlier one;
    an estimate that says so is noise, which taking the best would turn into a promise.
    """
    blocks: list[tuple[float, int]] = []
    for value in acceptance:
        total, count = value, 1
        while blocks and blocks[-1][0] * count < total * blocks[-1][1]:
            before, size = blocks.pop()
            total, count = total + before, count + size
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]


def best_list(acceptance: Sequence[float], nodes: int) -> list[Path]:
    """Sequoia's tree: the best one of that many nodes, however deep.

    Its dynamic programme (section 3.1.2) is not needed: where acceptance falls with rank, no node
    is worth more than its parent or an earlier sibling, so the n nodes of largest worth are a tree.
    The a[k] are pooled first; the root is not counted; paths come by depth and then by rank.

    Raises:
        ValueError: fewer than one node, or an acceptance that is no probability.
    """
    return greedy_node_list([pooled(acceptance)] * max(nodes, 1), nodes)
