"""Trees given node by node: each node is the path of ranks that leads to it.

``(0, 2)`` is the third-best guess of the second head below the best guess of the first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import prod


def greedy_node_list(accuracies: Sequence[Sequence[float]], nodes: int) -> list[tuple[int, ...]]:
    """Medusa's sparse tree: the nodes that add most to the expected accepted length.

    Medusa (arXiv 2401.10774, section 2.3.3): with a_k(n) the accuracy of head k's n-th guess, a
    node is worth the product of the accuracies along its path, as if heads erred independently;
    the node of the largest worth among those whose parent is in the tree is added again and again.

    Args:
        accuracies: per head, per rank from the best on: the share of positions whose right token
            has this rank.
        nodes: how many, without the root.

    Returns:
        Paths of ranks, by depth and then by rank; parents come before their children.

    Raises:
        ValueError: fewer than one node, more than these heads and ranks make, or an accuracy that
            is no probability.
    """
    widths = [len(head) for head in accuracies]
    most = sum(prod(widths[: depth + 1]) for depth in range(len(widths)))
    if not 1 <= nodes <= most:
        raise ValueError(
            f"a tree of {nodes} nodes was asked for; {len(widths)} heads of {widths} ranks make "
            f"trees of 1 to {most}"
        )
    for head in accuracies:
        for accuracy in head:
            if not 0 <= accuracy <= 1:
                raise ValueError(f"accuracies are shares between 0 and 1, got {accuracy}")
    chosen: list[tuple[int, ...]] = []
    # Of equal worth the shallower node is taken, then the better ranked one.
    waiting: list[tuple[float, int, tuple[int, ...]]] = [
        (-accuracy, 1, (rank,)) for rank, accuracy in enumerate(accuracies[0])
    ]
    heapq.heapify(waiting)
    while len(chosen) < nodes:
        worth, depth, path = heapq.heappop(waiting)
        chosen.append(path)
        if depth < len(widths):
            for rank, accuracy in enumerate(accuracies[depth]):
                heapq.heappush(waiting, (worth * accuracy, depth + 1, (*path, rank)))
    return sorted(chosen, key=lambda path: (len(path), path))
