"""Typical acceptance, which is approximate: a token is accepted if the target finds it likely
enough. Medusa (arXiv 2401.10774, section 2.3.1); also ReDrafter's second method (arXiv 2403.09919,
section 3.3, which prints epsilon and delta swapped). Letters: R rows, N nodes, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.warp import warped_log_probs
from spec_bench.settings.fields import Share
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.walk import ScoredTree, WalkResult


def walk_by_typicality(scored_tree: ScoredTree, rule: TypicalAcceptance) -> WalkResult:
    """Finds the longest path of typical tokens, the best-ranked among equally long ones, and draws
    the token after it from the target.
    """
    tree, logits, settings, draws, _ = scored_tree
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    log_p = warped_log_probs(logits, settings)
    parent_log_p = log_p.gather(1, tree.parent.unsqueeze(-1).expand_as(log_p))
    is_typical = rule.accepts(parent_log_p, tree.tokens) & tree.valid
    is_typical[:, 0] = True
    path_is_typical = ~(tree.ancestors & ~is_typical.unsqueeze(1)).any(dim=-1)
    depth = tree.depths
    path_depths = torch.where(path_is_typical, depth, -1)
    last_node = path_depths.argmax(dim=1)  # argmax takes the first of equals
    accepted_count = path_depths[rows, last_node]
    on_path = tree.ancestors[rows, last_node]  # [R, N]
    path = [
        (on_path & (depth == level)).byte().argmax(dim=1) for level in range(tree.shape.depth + 1)
    ]
    token = draws.verdict(tree.shape.children).token(log_p[rows, last_node].exp())
    return WalkResult(torch.stack(path, dim=1), accepted_count, token)


@rule("typical", siblings=("deterministic",), mark="approximate")
@dataclass(frozen=True)
class TypicalAcceptance(TreeVerifier):
    """Accepts x if p(x) > min(epsilon, delta exp(-H(p))), H in nats."""

    epsilon: Share = 0.09  # hard threshold; Medusa's value is 0.09
    delta: Share = 0.3  # entropy-dependent threshold; Medusa's value is its square root, 0.3

    walk = staticmethod(walk_by_typicality)

    def judge(self, depth: int) -> TypicalAcceptance:
        return self

    def accepts(self, log_p: Tensor, token: Tensor) -> Tensor:
        """Returns whether tokens [...] are typical given the target's warped log-probabilities
        [..., V].
        """
        p = log_p.exp()
        entropy = -torch.where(p > 0, p * log_p, 0.0).sum(dim=-1)
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
        return p.gather(-1, token.unsqueeze(-1)).squeeze(-1) > threshold
