"""The most that any lossless rule can accept of given candidates.

For candidates of a known distribution the optimum over all rules is 1 + min_H (p(H) - P(all in H))
over token sets H (arXiv 2502.18779). For K draws from q, with or without replacement, the minimum
is at a prefix of the tokens sorted by rising p/q; tokens outside q's support are in none.
Letters: B nodes, V vocabulary, T points in time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_bench.verify.optimal import by_ratio

STEP = 0.1
"""Of log time; with 0.5 the error is still below 1e-6, at a fifth of the work."""

_REACH = 45.0  # log time on either side of 0


def bound_iid(p: Tensor, q: Tensor, count: int, beside: Tensor | float = 0.0) -> Tensor:
    """Returns the most for K = ``count`` i.i.d. candidates drawn from q [B, V], [B] float64:
    1 - max(0, max_i (t_i^K - R_i) - beside), t and R the running sums of q and p.

    ``beside`` [B] is p's mass on tokens that are candidates whatever is drawn; q has none there.
    All candidates are in H only where these are, so they cost their mass in any set that counts.
    """
    own_p, own_q = by_ratio(p, q)
    missing = own_q.cumsum(dim=-1) ** count - own_p.cumsum(dim=-1)
    return 1 - (missing.amax(dim=-1) - beside).clamp(min=0.0)


def bound_without_replacement(p: Tensor, q: Tensor, count: int, step: float = STEP) -> Tensor:
    """Returns the most, [B] float64, for K = ``count`` candidates drawn from q [B, V] without
    replacement, or all of q's support if it has fewer.

    P(the first K draws fall into H): let a clock ring at rate q(x) for every token x of H, one at
    rate r = 1 - q(H) for all others together; K of H's must ring before it. This is the integral
    of r exp(-r t) P(at least K of H's rang by t), taken over log t with even steps, whose error is
    below 1e-12; the distribution of min(rang, K) is carried along while H grows.
    """
    own_p, own_q = by_ratio(p, q)
    support = (own_q > 0).sum(dim=-1, keepdim=True)
    wanted = support.clamp(max=count)  # [B, 1]
    most = int(support.max())  # tokens outside the support come last
    own_p, own_q = own_p[:, :most], own_q[:, :most]
    steps = round(_REACH / step)
    time = torch.arange(-steps, steps + 1, dtype=torch.float64, device=p.device).mul(step).exp()
    rang = own_q.new_zeros((p.shape[0], time.shape[0], count + 1))
    rang[..., 0] = 1.0  # [B, T, K + 1] distribution of how many of H's rang, K or more being one
    # What is outside H, summed from the far end: 1 - q(H) would lose a small rest.
    outside = own_q.flip(-1).cumsum(dim=-1).flip(-1) - own_q
    inside_p = own_p.cumsum(dim=-1)
    worst = torch.zeros_like(inside_p[:, 0])
    each = torch.arange(count + 1, device=p.device)
    for token in range(own_q.shape[1]):
        chance = -torch.expm1(-own_q[:, token, None] * time).unsqueeze(-1)  # [B, T, 1]
        moved = rang * chance
        rang = rang - moved
        rang[..., 1:] += moved[..., :-1]
        rang[..., -1] += moved[..., -1]
        enough = (rang * (each >= wanted.unsqueeze(-1))).sum(dim=-1)  # [B, T]
        rate = outside[:, token, None] * time
        inside = step * (rate * (-rate).exp() * enough).sum(dim=-1)
        inside = torch.where(outside[:, token] > 0, inside, 1.0)
        worst = worst.minimum(inside_p[:, token] - inside)
    return 1 + worst
