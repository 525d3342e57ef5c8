"""Lists the parents and children of a tree's nodes, and sorts nodes after their descendants.

Letters: R rows, N nodes, n of them above the leaves, F nodes of a level, C children of one node.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.core.host_device import cached_arange, cached_constant
from spec_bench.core.tree import Tree, TreeShape, VariableLevelShape


class ParentNodes(NamedTuple):
    """The nodes of a level that may have children."""

    indices: tuple[Any, Any]  # index of the nodes in [R, N, ...]
    # [R, F] True for nodes that have children; the others are padding; None: all may have some
    exists: Tensor | None


def find_nodes_with_children(tree: Tree, level: int) -> ParentNodes:
    """Finds the nodes of a level that may have children, at most ``shape.max_parents`` if levels
    vary.
    """
    shape = tree.shape
    if not isinstance(shape, VariableLevelShape):
        return ParentNodes((slice(None), shape.level(level)), None)
    child_count = torch.zeros_like(tree.parent).scatter_add(1, tree.parent, tree.valid.long())
    has_children = (tree.depths == level) & (child_count > 0)  # [R, N]
    parents_first = has_children.byte().argsort(dim=1, descending=True, stable=True)  # [R, N]
    width = shape.max_parents if level else 1  # F
    nodes = parents_first[:, :width]
    rows = cached_arange(len(nodes), nodes.device).unsqueeze(1)  # [R, 1]
    return ParentNodes((rows, nodes), has_children.gather(1, nodes))


def list_children(tree: Tree, merge_copies: bool) -> tuple[Tensor, Tensor]:
    """Lists the children [R, n, C] of every node above the leaves in the order drawn, and which of
    them exist. With ``merge_copies`` nodes of equal prefixes share their children.
    """
    shape = tree.shape
    device = tree.tokens.device
    table = _tabulate_children(shape)
    if table is not None and not merge_copies:
        numbers = cached_constant(table[0], device)
        present = cached_constant(table[1], device)
        children = numbers.expand(len(tree.tokens), -1, -1)
        return children, tree.valid[:, numbers] & present
    inner = shape.inner
    size = shape.size
    parent = tree.parent[:, 1:].unsqueeze(1).expand(-1, inner, -1)  # [R, n, N - 1]
    if merge_copies:
        is_child = _compare_prefixes(tree).gather(2, parent)
    else:
        is_child = parent == cached_arange(inner, device).unsqueeze(1)
    # The lowest numbers of existing children, in order, are the largest of ``size - number``.
    from_end = cached_constant(tuple(size - node for node in range(1, size)), device)
    reversed_numbers = torch.where(is_child & tree.valid[:, 1:].unsqueeze(1), from_end, 0)
    best = reversed_numbers.topk(count_max_children(shape), dim=-1).values
    return (size - best).clamp(max=size - 1), best > 0


def _compare_prefixes(tree: Tree) -> Tensor:
    """Marks the pairs of nodes above the leaves that have equal tokens from the
    root on, [R, n, n].
    """
    shape = tree.shape
    device = tree.tokens.device
    inner = shape.inner
    upwards = []
    node = cached_arange(inner, device).expand(len(tree.tokens), -1)
    for _ in range(shape.depth - 1):
        upwards.append(tree.tokens.gather(1, node))
        node = tree.parent.gather(1, node)
    if not upwards:
        return cached_constant(((True,),), device).expand(len(tree.tokens), 1, 1)
    text = torch.stack(upwards, dim=-1)
    depth = shape.node_depths[:inner]
    same_depth = cached_constant(
        tuple(tuple(row_depth == column_depth for column_depth in depth) for row_depth in depth),
        device,
    )
    return (text.unsqueeze(1) == text.unsqueeze(2)).all(dim=-1) & same_depth


@lru_cache(maxsize=256)
def count_max_children(shape: TreeShape) -> int:
    """Returns C, the largest number of children that a node can have."""
    return max(
        min(bound, count) for bound, count in zip(shape.children, shape.levels, strict=False)
    )


Table = tuple[tuple[tuple[int, ...], ...], tuple[tuple[bool, ...], ...]]


@lru_cache(maxsize=256)
def _tabulate_children(shape: TreeShape) -> Table | None:
    """Tabulates the children of every node above the leaves, [n, C], and which of them exist; None
    if the nodes of one level differ in their number of children.
    """
    width = count_max_children(shape)
    numbers = []
    present = []
    for level, (bound, count) in enumerate(zip(shape.children, shape.levels, strict=False)):
        parents = shape.level(level)
        if not shape.has_uniform_children(level):
            return None
        share = min(bound, count)
        first_child = shape.starts[level + 1]
        for place in range(parents.stop - parents.start):
            child_numbers = [first_child + place * share + child for child in range(share)]
            numbers.append(tuple(child_numbers + child_numbers[-1:] * (width - share)))
            present.append((True,) * share + (False,) * (width - share))
    return tuple(numbers), tuple(present)


def sort_post_order(tree: Tree) -> Tensor:
    """Sorts the nodes [R, N] so that each comes after its descendants, siblings in the order drawn.

    A node's place depends only on the nodes that exist; absent ones come after them, the root last.
    """
    size = tree.shape.size
    index = torch.arange(size, device=tree.tokens.device)
    subtree_sizes = (tree.ancestors & tree.valid.unsqueeze(2)).sum(dim=1)
    same_parent = tree.parent.unsqueeze(2) == tree.parent.unsqueeze(1)
    earlier = same_parent & (index < index.unsqueeze(1)) & (index > 0)  # [R, N, N] siblings before
    earlier_sizes = (earlier * subtree_sizes.unsqueeze(1)).sum(dim=2)
    order_key = (tree.ancestors * earlier_sizes.unsqueeze(1)).sum(dim=2) + subtree_sizes
    order_key = torch.where(tree.valid, order_key, size + index)
    order_key = torch.where(index > 0, order_key, 2 * size)
    return order_key.sort(dim=1, stable=True).indices
