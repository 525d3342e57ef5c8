"""A dynamic tree whose siblings are drawn without replacement: DySpec's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.tree import Siblings, Tree
from spec_bench.core.warp import SamplingSettings
from spec_bench.tree.base import AuditTree, distinct, policy
from spec_bench.tree.dynamic import DynamicTree


@policy("best_slots")
@dataclass(frozen=True)
class BestSlots(DynamicTree):
    """The N slots of largest value, each filled with a drawn token.

    DySpec (arXiv 2410.11744, section 4) keeps a heap of open slots (node, next sibling), worth the
    draft's probability of the node's path times its mass not drawn yet; the best slot is taken, a
    token drawn into it, and two slots open: below the new node and beside it. Neither is worth more
    than the slot taken, so the heap's N slots are the N of largest value and can be found level by
    level: below each node W siblings are drawn, and the best of all slots stay.

    A slot is chosen by what was drawn before it, never by its own token, so every rule for siblings
    drawn without replacement is exact. Choosing by the probability of the drawn token is not. If W
    is at least N this is DySpec's own tree; a smaller W draws at most W siblings of a node, and
    only below the W likeliest nodes of a level.

    Attributes:
        width: W.
        depth: L.
        total: N.
    """

    takes = "WxL@N: W siblings and frontier, L levels, N nodes kept, such as 8x6@24"

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return distinct(settings)

    def children(
        self, tree: Tree, scores: Tensor, above: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        log_q = scores.log_softmax(dim=-1)
        deterministic = tree.siblings == "deterministic"
        noise = torch.zeros_like(log_q) if deterministic else draws.gumbel(log_q)
        tokens, there = gumbel_top_k(log_q, noise, self.width)
        drawn = log_q.gather(-1, tokens)
        mass = drawn.exp()
        left = (1 - (mass.cumsum(dim=-1) - mass)).clamp(min=0.0)
        value = torch.where(there, above + left.log(), -torch.inf)
        # By a rounding error a token may have more mass than was left.
        score = torch.minimum(above + drawn, value)
        return tokens, score, value, None if deterministic else log_q

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls(2, 3, 4), vocab=2), AuditTree(cls(2, 2, 3)))
