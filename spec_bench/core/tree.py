"""The draft tree: nodes in the order drawn, grown level by level, one tree per row.

A tree has a fixed shape (``TreeShape``): how many nodes a level holds and how many children a node
can have at most. What varies is tokens, parents, and which nodes are really there (``valid``):
top-p can leave a node with fewer children than the shape allows. Node 0 is the root, the last
committed token. Duplicate tokens among siblings are kept: i.i.d. draws need them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

Siblings = Literal["iid", "without_replacement", "deterministic", "top_and_sampled"]
"""How the children of one node are drawn: the law that a node rule is exact for. Of
``top_and_sampled`` ones the first are drawn from what the draft's best leave, and those follow."""


@dataclass(frozen=True)
class TreeShape:
    """The part of a tree that never changes.

    Attributes:
        levels: nodes per level below the root; empty for a root-only tree.
        children: for each level l, the most children that one node of level l can have; may be
            more than the level below holds, where a tree's size varies but its draws must not.
        ragged: whether nodes of one level have unequal numbers of children, however many there are.
    """

    levels: tuple[int, ...]
    children: tuple[int, ...]
    ragged: bool = False

    @property
    def depth(self) -> int:
        """Levels below the root = sequential draft calls."""
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
        """N, the root included."""
        return self.starts[-1]

    @cached_property
    def node_depth(self) -> tuple[int, ...]:
        """[N] depth of every node, the root's is 0."""
        return (0, *(level + 1 for level, count in enumerate(self.levels) for _ in range(count)))

    def level(self, level: int) -> slice:
        """The nodes of one level."""
        return slice(self.starts[level], self.starts[level + 1])

    def in_equal_shares(self, level: int) -> bool:
        """Whether the children of a level's nodes stand parent by parent, equally many each."""
        nodes, below = self.starts[level + 1] - self.starts[level], self.levels[level]
        return nodes == 1 or (not self.ragged and nodes == below / self.children[level])


class Tree:
    """One tree per row, of one shape.

    Attributes:
        shape: the fixed part.
        tokens: [R, N] token of every node.
        parent: [R, N] index of every node's parent; 0 for the root.
        valid: [R, N] whether the node is there.
        ancestors: [R, N, N] True where the second node lies on the first one's path, itself
            included: the tree-attention mask.
        q: per level, [R, F, D, V] what each of D drafts proposes below each of the F nodes above;
            a node's j-th child was drawn from draft j mod D. None where the proposals are one-hot
            (deterministic siblings) or stand in ``log_q``.
        log_q: per level, [R, F, V] the log of what the one draft proposes, in place of ``q``. What
            is left of a sharp law once its likeliest tokens are drawn has no other home: float32
            holds no probability below 1e-38.
        siblings: how the children of a node are drawn.
        sampled: of top-and-sampled siblings how many are drawn, or all where there are fewer.
        lawful: [R] whether all logits that the tree was grown from make a law.
        rearranged: whether its nodes stand elsewhere than the drafter ran them, or were not run.
        carried: what a policy carries from one level to the next; nobody else reads it.
    """

    def __init__(self, shape: TreeShape, root: Tensor, siblings: Siblings = "iid") -> None:
        """Plants a root per row. root: [R] token ids."""
        rows, nodes, device = root.shape[0], shape.size, root.device
        self.shape, self.siblings, self.sampled = shape, siblings, 1
        self.carried: tuple[Tensor, ...] = ()
        self.grown = 0
        self.rearranged = False
        self.tokens = root.unsqueeze(1).expand(-1, nodes).clone()
        self.parent = torch.zeros_like(self.tokens)
        self.valid = torch.ones((rows, nodes), dtype=torch.bool, device=device)
        if nodes == 1:
            self.ancestors = self.valid.unsqueeze(2)
        else:
            own = torch.eye(nodes, dtype=torch.bool, device=device)
            self.ancestors = own.expand(rows, -1, -1).clone()
        self.q: list[Tensor | None] = []
        self.log_q: list[Tensor | None] = []
        self.lawful = torch.ones(rows, dtype=torch.bool, device=device)

    @property
    def frontier(self) -> slice:
        """The nodes of the deepest level grown so far."""
        return self.shape.level(self.grown)

    def add_level(
        self,
        tokens: Tensor,
        parent: Tensor,
        valid: Tensor,
        q: Tensor | None,
        log_q: Tensor | None = None,
    ) -> None:
        """Grows the next level.

        Args:
            tokens: [R, n].
            parent: [R, n] or [n] parents as positions within the frontier, 0..F-1.
            valid: [R, n]; a child of an absent node is absent too.
            q: [R, F, D, V] or None.
            log_q: [R, F, V], for siblings drawn without replacement in place of ``q``.
        """
        frontier = self.frontier
        self.grown += 1
        nodes = self.frontier
        parent = (parent + frontier.start).expand(tokens.shape)
        self.tokens[:, nodes] = tokens
        self.parent[:, nodes] = parent
        self.valid[:, nodes] = valid & self.valid.gather(1, parent)
        index = parent.unsqueeze(-1).expand(-1, -1, self.shape.size)
        self.ancestors[:, nodes].logical_or_(self.ancestors.gather(1, index))
        self.q.append(q)
        self.log_q.append(log_q)
