"""What every tree policy is: a shape, a declaration of how siblings are drawn, one growth step."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree, TreeShape

Siblings = Literal["iid", "without_replacement", "deterministic"]


class Policy(Protocol):
    """Grows a tree one level at a time.

    Attributes:
        shape: the tree's fixed shape.
        siblings: how the children of one node are drawn. A chain has no siblings; it declares the
            law its single child fits, and any rule for sampled children accepts it.
        merge_copies: whether nodes with equal prefixes count as one node when the tree is walked
            (K independent paths), or each node stands for itself.
        fixed_parents: whether a node's parent follows from the shape alone.
    """

    shape: TreeShape
    siblings: Siblings
    merge_copies: bool
    fixed_parents: bool

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Adds one level below the tree's frontier.

        Args:
            tree: grown up to its frontier of F nodes.
            scores: [R, F, D, V]: for each frontier node and each of D drafts the log-probabilities
                after warping; for deterministic policies the logits, their maximum shifted to 0.
            draws: where randomness comes from.
        """
        ...
