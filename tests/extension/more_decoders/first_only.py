"""A rule that looks at the first child alone, as if the others had not been drawn."""

import torch
from torch import Tensor

from spec_bench.verify.base import rule
from spec_bench.verify.walk import Verdict


@rule("first_only", siblings=("iid", "without_replacement"), mark="exact")
def first_only(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Speculative sampling (arXiv 2211.17192) of the first child, which is a draw from q.

    The target's distribution p is [B, V], the draft's q [B, 1 or C, V]; children in the order
    drawn, and which of them exist, are [B, C]. Accepts min(1, p/q) of the first child, 0 of the
    others; the residual is norm(max(0, p - q)).
    """
    assert q is not None
    q, first = q[:, 0], tokens[:, :1]
    q_first = q.gather(-1, first)
    ratio = torch.where(q_first > 0, p.gather(-1, first) / q_first, 0.0).clamp(max=1.0)
    acceptance = torch.zeros(tokens.shape, dtype=p.dtype, device=p.device)
    acceptance[:, :1] = ratio * valid[:, :1]
    left = (p - q).clamp(min=0.0)
    mass = left.sum(dim=-1, keepdim=True)
    return Verdict(acceptance, torch.where((mass > 0) & valid[:, :1], left / mass, p))
