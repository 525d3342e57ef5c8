"""With what chance a decoder passes a position of a text that the target wrote.

Given that the target says x after a prefix, a node rule passes the position if it accepts a child
with token x. Every exact rule delivers x with probability p(x) in all; what it delivers from its
residual is the part that does not pass. So with M(x) = p(x) - E[prod (1 - a_j) residual(x)], the
mean over the children that may be drawn, the chance is M(x) / p(x): for any rule that is exact,
from the very function that decodes. Letters: T positions, C children, V vocabulary, S draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import inverse_cdf
from spec_bench.core.gumbel import gumbel_top_k
from spec_bench.core.tree import Siblings
from spec_bench.verify.verdict import NodeRule


class Children(NamedTuple):
    """One way in which the children of all positions may fall out.

    Attributes:
        tokens: [T, C] in the order drawn.
        valid: [T, C] which of them exist.
        weight: [T] its probability, or 1/S for one of S draws.
    """

    tokens: Tensor
    valid: Tensor
    weight: Tensor


Sets = Callable[[Tensor, int], list[Children]]
"""From the draft's law [T, V] and a number of children to the ways they may fall out."""


def drawn(siblings: Siblings, samples: int, generator: torch.Generator, sampled: int = 1) -> Sets:
    """Children drawn at random, S times; ranked lists once, since nothing about them is random.

    Args:
        siblings: how they are drawn.
        samples: S.
        generator: where randomness comes from.
        sampled: of children some of which are the draft's best: how many are drawn beside them.
    """

    def uniforms(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    def sets(q: Tensor, width: int) -> list[Children]:
        rows, vocab = q.shape
        if siblings == "deterministic":
            tokens = q.topk(min(width, vocab), dim=-1).indices
            return [Children(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.ones(rows))]
        weight = torch.full((rows,), 1 / samples)
        draws = []
        for _ in range(samples):
            if siblings == "iid":
                tokens = inverse_cdf(q, uniforms(rows, width))
                valid = torch.ones_like(tokens, dtype=torch.bool)
            elif siblings == "top_and_sampled":
                tokens, valid = _beside_the_best(q, width, min(sampled, width), uniforms)
            else:
                noise = uniforms(rows, vocab).clamp_(min=1e-300).log_().neg_().log_().neg_()
                tokens, valid = gumbel_top_k(q.double().log(), noise, width)
            draws.append(Children(tokens, valid, weight))
        return draws

    return sets


def _beside_the_best(
    q: Tensor, width: int, sampled: int, uniforms: Callable[..., Tensor]
) -> tuple[Tensor, Tensor]:
    """The draft's best behind children drawn from what they leave: tokens and valid [T, C]."""
    best = q.topk(min(width - sampled, q.shape[1]), dim=-1)
    rest = q.double().scatter(-1, best.indices, 0.0)
    some = rest.sum(dim=-1, keepdim=True) > 0
    law = torch.where(some, rest, 1.0)
    tokens = inverse_cdf(law / law.sum(dim=-1, keepdim=True), uniforms(len(q), sampled))
    valid = torch.cat([some.expand(-1, sampled), best.values > 0], dim=-1)
    return torch.cat([tokens, best.indices], dim=-1), valid


def passing(rule: NodeRule, p: Tensor, q: Tensor, token: Tensor, width: int, sets: Sets) -> Tensor:
    """P(the position is passed | the target wrote ``token`` there).

    Unbiased; exact where ``sets`` gives every way the children may fall out.

    Args:
        rule: an exact node rule.
        p: [T, V] the target's law.
        q: [T, V] the draft's.
        token: [T] what the target wrote.
        width: children of the node.
        sets: children of laws.

    Returns:
        [T] float64; an estimate from few draws may lie outside 0 to 1.
    """
    at = token.unsqueeze(1)
    chance = p.gather(1, at).squeeze(1).double()
    missed = torch.zeros_like(chance)
    for tokens, valid, weight in sets(q, width):
        verdict = rule(p, q.unsqueeze(1), tokens, valid)
        none = (1 - verdict.acceptance.double()).prod(dim=1)
        missed += weight * none * verdict.residual.gather(1, at).squeeze(1).double()
    return 1 - missed / chance


def ranked_passing(rule: NodeRule, p: Tensor, q: Tensor, token: Tensor, width: int) -> Tensor:
    """``passing`` of the draft's ``width`` best tokens as a ranked list; exact."""
    tokens = q.topk(min(width, q.shape[1]), dim=-1).indices
    verdict = rule(p, None, tokens, torch.ones_like(tokens, dtype=torch.bool))
    at = token.unsqueeze(1)
    none = (1 - verdict.acceptance.double()).prod(dim=1)
    missed = none * verdict.residual.gather(1, at).squeeze(1).double()
    return 1 - missed / p.gather(1, at).squeeze(1).double()
