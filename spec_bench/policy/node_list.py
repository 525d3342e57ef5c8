"""A tree given as a list of nodes, each a path of ranks: Medusa's sparse tree, and its making."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
import yaml
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.policy.base import Siblings

_FILE = Path(__file__).with_name("node_lists.yaml")


@functools.cache
def node_lists() -> dict[str, tuple[tuple[int, ...], ...]]:
    """The named lists that ship: published ones and those built for the embedded heads."""
    named = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: tuple(tuple(node) for node in nodes) for name, nodes in named.items()}


class NodeList:
    """The same nodes in every iteration; node (1, 0) is the best child of the second-best child.

    Args:
        nodes: paths of ranks, counted from 0; every node's parent is a node too.

    Raises:
        ValueError: an empty list, a node twice, or one without its parent.
    """

    siblings: Siblings = "deterministic"
    merge_copies = False
    fixed_parents = False  # not laid out by equal shares, which running paths one by one assumes

    def __init__(self, nodes: Sequence[Sequence[int]]) -> None:
        paths = sorted({tuple(node) for node in nodes}, key=lambda node: (len(node), node))
        if not paths or len(paths) < len(nodes):
            raise ValueError(f"a node list needs distinct nodes, got {len(nodes)} of {len(paths)}")
        known = {(), *paths}
        for node in paths:
            if not node or node[:-1] not in known:
                raise ValueError(f"node {list(node)} has no parent {list(node[:-1])} in the list")
        depth = len(paths[-1])
        levels = [[node for node in paths if len(node) == size + 1] for size in range(depth)]
        above: list[list[tuple[int, ...]]] = [[()], *levels]
        self._ranks = [[node[-1] for node in level] for level in levels]
        self._parents = [
            [above[size].index(node[:-1]) for node in level] for size, level in enumerate(levels)
        ]
        most = [max(map(parents.count, parents)) for parents in self._parents]
        self.shape = TreeShape(tuple(len(level) for level in levels), tuple(most))

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        device = scores.device
        ranks = torch.tensor(self._ranks[tree.grown], device=device)
        parent = torch.tensor(self._parents[tree.grown], device=device)
        best = scores[:, :, 0].topk(int(ranks.max()) + 1, dim=-1).indices  # [R, F, ranks]
        tokens = best[:, parent, ranks]
        tree.add_level(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), None)


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
