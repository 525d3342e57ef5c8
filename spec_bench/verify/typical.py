"""Typical acceptance: a token is accepted if the target finds it likely enough. Approximate.

Medusa (arXiv 2401.10774, section 2.3.1); also ReDrafter's second way (arXiv 2403.09919, section
3.3, which prints epsilon and delta swapped). Letters: R rows, N nodes, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.settings.fields import Share
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.walk import WalkResult


def typical_walk(
    tree: Tree,
    logits: Tensor,
    settings: SamplingSettings,
    rule: TypicalAcceptance,
    draws: Draws,
    *,
    merge_copies: bool = False,
) -> WalkResult:
    """The longest path of typical tokens, then one token of the target's.

    Among equally long paths the first in the tree's order is taken, which is the best-ranked.

    Args:
        tree: fully grown, N nodes.
        logits: [R, N, V] the target's logits at every node.
        settings: the target's sampling settings.
        rule: the thresholds.
        draws: randomness.
        merge_copies: makes no difference: nodes with equal prefixes are all accepted or none.

    Returns:
        The path, its length and the last token.
    """
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    log_p = log_probs(logits, settings)
    at_parent = log_p.gather(1, tree.parent.unsqueeze(-1).expand_as(log_p))
    stands = rule.accepts(at_parent, tree.tokens) & tree.valid
    stands[:, 0] = True
    path_stands = ~(tree.ancestors & ~stands.unsqueeze(1)).any(dim=-1)
    depth = tree.depths
    reached = torch.where(path_stands, depth, -1)
    last = reached.argmax(dim=1)  # argmax takes the first of equals
    accepted = reached[rows, last]
    on_path = tree.ancestors[rows, last]  # [R, N]
    path = [
        (on_path & (depth == level)).byte().argmax(dim=1) for level in range(tree.shape.depth + 1)
    ]
    token = draws.verdict(tree.shape.children).token(log_p[rows, last].exp())
    return WalkResult(torch.stack(path, dim=1), accepted, token)


@rule("typical", siblings=("deterministic",), mark="approximate")
@dataclass(frozen=True)
class TypicalAcceptance(TreeVerifier):
    """Accept x where p(x) > min(epsilon, delta exp(-H(p))), H in nats.

    Attributes:
        epsilon: hard threshold; Medusa's value is 0.09.
        delta: entropy-dependent threshold; Medusa's value is its square root, 0.3.
    """

    epsilon: Share = 0.09
    delta: Share = 0.3

    walk = staticmethod(typical_walk)

    def judge(self, depth: int) -> TypicalAcceptance:
        return self

    def accepts(self, log_p: Tensor, token: Tensor) -> Tensor:
        """Whether tokens are typical.

        Args:
            log_p: [..., V] the target's warped log-probabilities.
            token: [...].

        Returns:
            [...] bool.
        """
        p = log_p.exp()
        entropy = -torch.where(p > 0, p * log_p, 0.0).sum(dim=-1)
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
        return p.gather(-1, token.unsqueeze(-1)).squeeze(-1) > threshold
