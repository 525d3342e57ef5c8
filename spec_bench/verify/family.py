"""Who is whose child in a tree, and an order in which descendants come first.

Letters: R rows, N nodes, n of them above the leaves, F nodes of a level, C children of one node.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.transfer import cached_arange, constant
from spec_bench.core.tree import FlatShape, Tree, TreeShape


class ParentNodes(NamedTuple):
    """The nodes of a level that may have children."""

    at: tuple[Any, Any]  # picks them out of [R, N, ...]
    real: Tensor | None  # [R, F] which of them have children; others are fillers. None: any may.


def find_parents(tree: Tree, level: int) -> ParentNodes:
    """Returns a level's nodes; in a flat tree, as many as may have children."""
    shape = tree.shape
    if not isinstance(shape, FlatShape):
        return ParentNodes((slice(None), shape.level(level)), None)
    child_count = torch.zeros_like(tree.parent).scatter_add(1, tree.parent, tree.valid.long())
    has_children = (tree.depths == level) & (child_count > 0)  # [R, N]
    parents_first = has_children.byte().argsort(dim=1, descending=True, stable=True)  # [R, N]
    width = shape.busy if level else 1  # F
    nodes = parents_first[:, :width]
    rows = cached_arange(len(nodes), nodes.device).unsqueeze(1)  # [R, 1]
    return ParentNodes((rows, nodes), has_children.gather(1, nodes))


def list_children(tree: Tree, merge_copies: bool) -> tuple[Tensor, Tensor]:
    """Numbers [R, n, C] of every node's children in the order drawn, and which exist; with
    ``merge_copies`` nodes of equal prefixes share theirs.
    """
    shape = tree.shape
    device = tree.tokens.device
    table = _table(shape)
    if table is not None and not merge_copies:
        numbers = constant(table[0], device)
        there = constant(table[1], device)
        children = numbers.expand(len(tree.tokens), -1, -1)
        return children, tree.valid[:, numbers] & there
    inner = shape.inner
    size = shape.size
    parent = tree.parent[:, 1:].unsqueeze(1).expand(-1, inner, -1)  # [R, n, N - 1]
    if merge_copies:
        mine = _same_prefix(tree).gather(2, parent)
    else:
        mine = parent == cached_arange(inner, device).unsqueeze(1)
    # Of the nodes that are there the lowest numbers, in order: the largest of ``size - number``.
    from_end = constant(tuple(size - node for node in range(1, size)), device)
    ranked = torch.where(mine & tree.valid[:, 1:].unsqueeze(1), from_end, 0)
    best = ranked.topk(max_children(shape), dim=-1).values
    return (size - best).clamp(max=size - 1), best > 0


def _same_prefix(tree: Tree) -> Tensor:
    """[R, n, n] whether two nodes above the leaves have the same tokens from the root on."""
    shape = tree.shape
    device = tree.tokens.device
    inner = shape.inner
    upwards = []
    node = cached_arange(inner, device).expand(len(tree.tokens), -1)
    for _ in range(shape.depth - 1):
        upwards.append(tree.tokens.gather(1, node))
        node = tree.parent.gather(1, node)
    if not upwards:
        return constant(((True,),), device).expand(len(tree.tokens), 1, 1)
    text = torch.stack(upwards, dim=-1)
    depth = shape.node_depth[:inner]
    level = constant(tuple(tuple(one == other for other in depth) for one in depth), device)
    return (text.unsqueeze(1) == text.unsqueeze(2)).all(dim=-1) & level


@lru_cache(maxsize=256)
def max_children(shape: TreeShape) -> int:
    """C: the most children that a node can really have."""
    return max(min(most, count) for most, count in zip(shape.children, shape.levels, strict=False))


Table = tuple[tuple[tuple[int, ...], ...], tuple[tuple[bool, ...], ...]]


@lru_cache(maxsize=256)
def _table(shape: TreeShape) -> Table | None:
    """Every node's children and which exist; None unless they come parent by parent, equally many
    each.
    """
    width = max_children(shape)
    numbers = []
    there = []
    for level, (most, count) in enumerate(zip(shape.children, shape.levels, strict=False)):
        above = shape.level(level)
        if not shape.has_uniform_children(level):
            return None
        share = min(most, count)
        first = shape.starts[level + 1]
        for place in range(above.stop - above.start):
            mine = [first + place * share + child for child in range(share)]
            numbers.append(tuple(mine + mine[-1:] * (width - share)))
            there.append((True,) * share + (False,) * (width - share))
    return tuple(numbers), tuple(there)


def post_order(tree: Tree) -> Tensor:
    """Nodes [R, N] such that each comes after its descendants, siblings in the order drawn.

    A node's place depends only on the nodes that exist; absent ones come after them, the root last.
    """
    size = tree.shape.size
    index = torch.arange(size, device=tree.tokens.device)
    below = (tree.ancestors & tree.valid.unsqueeze(2)).sum(dim=1)  # nodes of each one's subtree
    same = tree.parent.unsqueeze(2) == tree.parent.unsqueeze(1)
    earlier = same & (index < index.unsqueeze(1)) & (index > 0)  # [R, N, N] siblings before
    before = (earlier * below.unsqueeze(1)).sum(dim=2)
    behind = (tree.ancestors * before.unsqueeze(1)).sum(dim=2) + below
    behind = torch.where(tree.valid, behind, size + index)
    behind = torch.where(index > 0, behind, 2 * size)
    return behind.sort(dim=1, stable=True).indices
