"""The draft tree: nodes in the order drawn, grown level by level, a tree per row.

A tree has a fixed shape (``TreeShape``): the number of nodes of each level, and the largest number
of children of a node. Tokens, parents and the presence of nodes (``valid``) vary: top-p can leave a
node with fewer children than the shape allows. Node 0 is the root, the last committed token.
Duplicate tokens among siblings are kept, because i.i.d. draws need them.

If nodes of different rows are on different levels (dynamic trees), the shape fixes only the number
of nodes (``VariableLevelShape``), and each row stores its nodes' depths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.host_device import cached_arange, cached_constant

Siblings = Literal["iid", "without_replacement", "deterministic", "top_and_sampled"]
"""How the children of one node are drawn: the distribution that a node rule is exact for. Of
``top_and_sampled`` ones the first are drawn from the draft without its best; the best follow."""


@dataclass(frozen=True)
class TreeShape:
    """The part of a tree that never changes."""

    levels: tuple[int, ...]  # nodes per level below the root; empty for a root-only tree
    # for each level l, the most children that one node of level l can have; may be more than the
    # level below holds, where a tree's size varies but its draws must not
    children: tuple[int, ...]
    # whether nodes of one level have unequal numbers of children, however many there are
    ragged: bool = False

    @property
    def depth(self) -> int:
        """Number of levels below the root, which equals that of sequential draft calls."""
        return len(self.levels)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """starts[l] is the first node of level l; the last entry is the number of nodes N."""
        starts = [0, 1]
        for count in self.levels:
            starts.append(starts[-1] + count)
        return tuple(starts)

    @property
    def size(self) -> int:
        """N, number of nodes with the root."""
        return self.starts[-1]

    @property
    def inner(self) -> int:
        """Number of nodes, counted from the first, that may have children."""
        return self.starts[self.depth]

    @cached_property
    def even_parents(self) -> tuple[int, ...]:
        """Parent of every node [N], 0 for the root, if each level's nodes are divided evenly, in
        order, among the nodes of the level above.
        """
        parents = [0]
        for start, (above, count) in zip(self.starts, pairwise((1, *self.levels)), strict=False):
            parents += [start + place * above // count for place in range(count)]
        return tuple(parents)

    @cached_property
    def node_depths(self) -> tuple[int, ...]:
        """Depth of every node [N], 0 for the root."""
        return (0, *(level + 1 for level, count in enumerate(self.levels) for _ in range(count)))

    def level(self, level: int) -> slice:
        """Returns the nodes of a level as a slice."""
        return slice(self.starts[level], self.starts[level + 1])

    def has_uniform_children(self, level: int) -> bool:
        """Returns whether the children of a level's nodes are listed parent by parent, equally many
        for each.
        """
        nodes = self.starts[level + 1] - self.starts[level]
        child_count = self.levels[level]
        return nodes == 1 or (not self.ragged and nodes == child_count / self.children[level])


@dataclass(frozen=True)
class VariableLevelShape(TreeShape):
    """A number of nodes on at most a number of levels; which node is on which varies by row.

    Each level below the root is all nodes: only a node's parent gives its place in the tree.
    """

    ragged: bool = True
    max_parents: int = 1  # the most nodes of one level that have children

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return (0, *(1,) * self.depth, 1 + self.levels[0])

    @property
    def inner(self) -> int:
        return self.size if self.depth > 1 else 1

    @cached_property
    def node_depths(self) -> NoReturn:
        """Raises AssertionError: every tree has its own ``Tree.depths``."""
        raise AssertionError("every row's nodes have depths of their own")

    def level(self, level: int) -> slice:
        return slice(1, self.size) if level else slice(0, 1)

    def has_uniform_children(self, level: int) -> bool:
        return False


class Tree:
    """A batch of trees of the same shape, one per row."""

    row_depths: Tensor | None = None  # [R, N] the depth of every node, for a flat shape
    mask_parts: Any = None  # shared by the passes over this tree (``engine.tree_pass``)

    def __init__(
        self,
        shape: TreeShape,
        root: Tensor,
        siblings: Siblings = "iid",
        parents: tuple[int, ...] | None = None,
    ) -> None:
        """Makes a root per row from token ids [R]. ``parents`` [N] are every node's, if they are
        the same in all trees.
        """
        rows = root.shape[0]
        nodes = shape.size
        device = root.device
        self.shape = shape
        self.siblings = siblings
        self.sampled = 1  # how many of top-and-sampled siblings are drawn; all, if there are fewer
        # a policy's tensors for growing the next level; only the policy reads them
        self.carried: tuple[Tensor, ...] = ()
        self.grown = 0  # levels
        self.rearranged = False  # whether nodes are not where the drafter ran them, or were not run
        self.tokens = root.unsqueeze(1).expand(-1, nodes).clone()  # [R, N]
        # whether parents and ancestors are constants, which must not be written to
        self.has_constant_parents = parents is not None
        # [R, N] index of every node's parent; 0 for the root
        if parents is None:
            self.parent = torch.zeros_like(self.tokens)
        else:
            self.parent = cached_constant(parents, device).expand(rows, -1)
        # [R, N] whether the node is there
        self.valid = torch.ones((rows, nodes), dtype=torch.bool, device=device)
        # [R, N, N] True where the second node lies on the first one's path, itself included: the
        # tree-attention mask
        if nodes == 1:
            self.ancestors = self.valid.unsqueeze(2)
        elif parents is not None:
            self.ancestors = cached_constant(tabulate_ancestors(parents), device).expand(
                rows, -1, -1
            )
        else:
            itself = torch.eye(nodes, dtype=torch.bool, device=device)
            self.ancestors = itself.expand(rows, -1, -1).clone()
        # per level, [R, F, D, V] what each of D drafts proposes below each of the F nodes above; a
        # node's j-th child was drawn from draft j mod D. None where proposals are one-hot
        # (deterministic siblings) or in `log_q`
        self.q: list[Tensor | None] = []
        # per level, [R, F, V] the log of what the one draft proposes: what is left of a sharp
        # distribution once its likeliest tokens are drawn is below float32's 1e-38
        self.log_q: list[Tensor | None] = []
        # [R, ...] the largest of the logits that each level was grown from: if one is not a number,
        # no distribution could be made
        self.largest_logits: list[Tensor] = []

    @classmethod
    def from_nodes(
        cls,
        shape: TreeShape,
        tokens: Tensor,
        parent: Tensor,
        valid: Tensor,
        siblings: Siblings,
    ) -> Tree:
        """Makes a fully grown tree of one-hot proposals from token, parent and presence of every
        node, the root included, each [R, N]; an absent node has another node's parent.
        """
        tree = cls(TreeShape((), ()), tokens[:, 0], siblings)
        tree.shape = shape
        tree.grown = shape.depth
        tree.tokens = tokens
        tree.parent = parent
        tree.valid = valid
        tree.ancestors = ancestor_mask(parent, shape.depth)
        tree.q = tree.log_q = [None] * shape.depth
        return tree

    @property
    def depths(self) -> Tensor:
        """Depth of every node [R or 1, N], 0 for the root."""
        if self.row_depths is not None:
            return self.row_depths
        return cached_constant(self.shape.node_depths, self.tokens.device).unsqueeze(0)

    def list_varying_tensors(self) -> list[Tensor]:
        """Lists the tensors that describe the nodes, [R, N] each, and ``ancestors`` [R, N, N],
        except for constants.
        """
        depths = [] if self.row_depths is None else [self.row_depths]
        parents = [] if self.has_constant_parents else [self.parent, self.ancestors]
        return [self.tokens, self.valid, *parents, *depths]

    def count_nodes_and_levels(self) -> Tensor:
        """Counts the nodes below the root and the levels of each row's tree [R, 2], without absent
        nodes.
        """
        deepest = (self.depths * self.valid).amax(dim=1)
        return torch.stack([self.valid.sum(dim=1) - 1, deepest], dim=1)

    @property
    def frontier(self) -> slice:
        """The nodes of the deepest level grown so far."""
        return self.shape.level(self.grown)

    def make_room_for_level(self, nodes: int) -> None:
        """Makes room for a level of ``nodes`` nodes, in a tree of variable size."""
        shape = self.shape
        self.shape = TreeShape((*shape.levels, nodes), (*shape.children, nodes))
        self.tokens, self.parent = (pad(part, (0, nodes)) for part in (self.tokens, self.parent))
        self.valid = pad(self.valid, (0, nodes), value=True)
        self.ancestors = pad(self.ancestors, (0, nodes, 0, nodes))
        self.ancestors.diagonal(dim1=1, dim2=2)[:, -nodes:] = True

    def add_level(
        self,
        tokens: Tensor,
        parent: Tensor | None,
        valid: Tensor | None,
        q: Tensor | None,
        log_q: Tensor | None = None,
    ) -> None:
        """Grows the next level: tokens [R, n]; parents [R, n] or [n] as positions 0..F-1 within the
        frontier, of no account where they are constants; valid [R, n], where a child of an absent
        node is absent too, None in a tree of which no node is absent; proposals q [R, F, D, V] or,
        for siblings drawn without replacement, log_q [R, F, V], if any.
        """
        frontier = self.frontier
        self.grown += 1
        nodes = self.frontier
        self.tokens[:, nodes] = tokens
        if self.has_constant_parents:
            parent = self.parent[:, nodes]
        else:
            assert parent is not None
            parent = (parent + frontier.start).expand(tokens.shape)
            self.parent[:, nodes] = parent
            index = parent.unsqueeze(-1).expand(-1, -1, self.shape.size)
            self.ancestors[:, nodes].logical_or_(self.ancestors.gather(1, index))
        if valid is not None:
            self.valid[:, nodes] = valid & self.valid.gather(1, parent)
        self.q.append(q)
        self.log_q.append(log_q)


@lru_cache(maxsize=256)
def tabulate_ancestors(parents: tuple[int, ...]) -> tuple[tuple[bool, ...], ...]:
    """Lists [N][N] whether the second node lies on the first one's path, itself included; every
    node but the root comes after its parent.
    """
    nodes = range(len(parents))
    paths = [{0}]
    for node in nodes[1:]:
        paths.append(paths[parents[node]] | {node})
    return tuple(tuple(other in path for other in nodes) for path in paths)


def ancestor_mask(parent: Tensor, depth: int) -> Tensor:
    """Computes [R, N, N] whether the second node lies on the first one's path, itself included. The
    root is its own parent; no node is more than ``depth`` steps from it.
    """
    nodes = cached_arange(parent.shape[1], parent.device)
    on_path = (nodes.unsqueeze(1) == nodes).expand(len(parent), -1, -1)
    # ancestor: the node one step beyond those already on the path
    ancestor = parent
    steps = 0
    while steps < depth:
        on_path = on_path | on_path.gather(1, ancestor.unsqueeze(-1).expand(on_path.shape))
        ancestor = ancestor.gather(1, ancestor)
        steps = 2 * steps + 1
    return on_path
