"""A rule that looks at the first child alone, as if the others had not been drawn."""

import torch
from torch import Tensor

from spec_bench.verify.base import rule
from spec_bench.verify.walk import Verdict


@rule("first_only", siblings=("iid", "without_replacement"), mark="exact")
def first_only(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Speculative sampling (arXiv 2211.17192) of the first child, which is a draw from q.

    Args:
        p: [B, V] the target's distribution.
        q: [B, 1, V] the draft's.
        tokens: [B, C] children in the order drawn.
        valid: [B, C] which of them exist.

    Returns:
        min(1, p/q) for the first child, 0 for the others; the residual is norm(max(0, p - q)).
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
