"""The beams of a recurrent head as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.prefixes import beams_apart, merge_prefixes
from spec_bench.core.transfer import Committed
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import Drafting
from spec_bench.tree.base import AuditTree, Policy, policy
from spec_bench.tree.sizes import Rectangle


@policy("head_beams", forms=("product",), takes="WxL: W beams of L tokens, such as 8x5")
@dataclass(frozen=True)
class HeadBeams(Rectangle):
    """W beams of L tokens, shared prefixes merged (tree attention) or every beam apart.

    The head gives whole beams, so nothing is grown level by level here. Given the state
    they are deterministic: exact verification takes them as one-hot proposals in order of rank.

    Attributes:
        width: W.
        depth: L.
        merge: whether shared prefixes become one node; the shape is then the largest there can be.
    """

    merge: bool = field(default=True, metadata={"setting": False})

    drafters = ("redrafter",)

    @property
    def merge_copies(self) -> bool:  # type: ignore[override]
        return not self.merge

    def under(self, tree_attention: bool) -> Policy:
        return replace(self, merge=tree_attention)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
        """Not grown level by level."""
        raise AssertionError("a head's beams come whole")

    def plant(
        self,
        drafting: Drafting,
        committed: Committed,
        device: torch.device,
        settings: SamplingSettings,
        draws: Draws,
    ) -> Tree:
        beams = drafting.beams(committed.roots, self.width, self.depth)
        grow = merge_prefixes if self.merge else beams_apart
        return grow(committed.roots.on(device), beams.to(device))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2, 2)),)
