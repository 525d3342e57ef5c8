"""The nodes that the draft finds likeliest: EAGLE-2's and OPT-Tree's trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Share
from spec_bench.tree.base import AuditTree, policy
from spec_bench.tree.dynamic import Candidates, DynamicTree, kept


@policy(
    "best_nodes",
    forms=("threshold",),
    takes="WxL@N: frontier W, L levels, N nodes kept, such as 10x6@59",
)
@dataclass(frozen=True)
class BestNodes(DynamicTree):
    """The N nodes of largest path probability under the draft, siblings in order of rank.

    EAGLE-2 (arXiv 2406.16858, section 4): the likeliest W nodes of a level are run, each with its W
    likeliest children; of all W + (L - 1) W^2 candidates the best N are kept. OPT-Tree (arXiv
    2406.17276, Algorithm 1) keeps the same, the tree that would have the most expected accepted
    tokens if the draft were the target, and drafts on only while that number grows.
    Probabilities are those of temperature 1, whatever the text is sampled at. Nothing is drawn:
    the proposals are one-hot, and any choice among them is allowed.

    Attributes:
        width: W; EAGLE-2 takes 10.
        depth: L; 6 there (its "depth" 5 counts the levels after the first).
        total: N; 59 there (its 60 counts the root).
        gain: drafts on only while the last level raised the expected number of accepted tokens by
            more than this (OPT-Tree's threshold); null: always.
    """

    gain: Share | None = None

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "deterministic"

    def children(
        self, tree: Tree, scores: Tensor, above: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        log_q = scores.log_softmax(dim=-1)
        best, tokens = log_q.topk(min(self.width, log_q.shape[-1]), dim=-1)
        score = above + best
        return tokens, score, score, None

    def going(self, levels: Sequence[Candidates]) -> Tensor | None:
        if self.gain is None:
            return None
        if len(levels) == 1:
            return torch.isfinite(levels[0].value[:, 0])
        return expected(levels, self.total) - expected(levels[:-1], self.total) > self.gain

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2, 2, 4)), AuditTree(cls(2, 3, 3, gain=0.2)))


def expected(levels: Sequence[Candidates], total: int) -> Tensor:
    """[R] tokens that the draft's own law would accept of the best ``total`` candidates."""
    sizes = [level.value.shape[1] for level in levels]
    parts = zip(levels, kept(levels, total).split(sizes, dim=1), strict=True)
    return sum(
        (torch.where(keep, level.value.exp(), 0.0).sum(dim=1) for level, keep in parts),
        start=torch.zeros_like(levels[0].value[:, 0]),
    )
