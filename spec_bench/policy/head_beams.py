"""The beams of a recurrent head as a tree: its bounds, for what needs them before it is grown."""

from __future__ import annotations

from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.policy.base import Siblings


class HeadBeams:
    """W beams of L tokens, shared prefixes merged (tree attention) or every beam apart.

    The beams come whole from the head, so nothing is grown level by level here. Given the state
    they are deterministic: exact verification takes them as one-hot proposals in order of rank.

    Args:
        width: W, at least 1.
        depth: L, at least 1.
        merge: whether shared prefixes become one node.
    """

    siblings: Siblings = "deterministic"

    def __init__(self, width: int, depth: int, merge: bool) -> None:
        self.width, self.merge = width, merge
        self.merge_copies = self.fixed_parents = not merge
        self.shape = TreeShape((width,) * depth, (width,) * depth)

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Not grown level by level."""
        raise AssertionError("a head's beams come whole")
