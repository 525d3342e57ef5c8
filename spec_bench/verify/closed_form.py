"""Node rules without a step per child: for devices where every step is a launch.

The numbers equal those of the rules' own loops up to rounding; a CPU uses the loops.
Shapes: B nodes, C children, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_bench.core.transfer import constant
from spec_bench.verify.verdict import Verdict


def ranked(p: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    """Recursive rejection with one-hot proposals, all children at once.

    Child j is met with probability 1 - p(x_1) - ... - p(x_{j-1}), copies counted once. That is
    summed from the other end, as what is left after the last child plus the children from j on, so
    that nothing cancels where the first children have nearly all of the mass.

    Args:
        p: [B, V].
        tokens: [B, C].
        valid: [B, C].

    Returns:
        The verdict.
    """
    count = tokens.shape[1]
    earlier = constant(tuple(tuple(i < j for i in range(count)) for j in range(count)), p.device)
    same = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & earlier & valid.unsqueeze(1)
    counts = valid & ~same.any(dim=-1)
    at_p = p.gather(-1, tokens) * counts
    left = p.scatter_add(-1, tokens, -at_p)  # exactly 0 at the children
    total = left.sum(dim=-1, keepdim=True)
    met = at_p.flip(-1).cumsum(dim=-1).flip(-1) + total
    tiny = torch.finfo(p.dtype).tiny
    acceptance = (at_p / met.clamp(min=tiny)).clamp(max=1.0)
    return Verdict(acceptance, torch.where(total > tiny, left / total, p))


class SharedMass:
    """beta(rho) = sum min(q, p/rho) for any number of rho, from one sort.

    With the tokens in order of p/q, those below rho count p/rho and those above it q; so two
    running sums hold beta at every rho. There are no bins: most tokens would share one.

    Args:
        p: [B, V] float64.
        q: [B, V] float64.
        ratio: [B, V] p/q.
    """

    def __init__(self, p: Tensor, q: Tensor, ratio: Tensor) -> None:
        self._ratio, order = ratio.sort(dim=-1)
        sums = torch.stack([p, q]).gather(-1, order.expand(2, -1, -1)).cumsum(dim=-1)
        self._below = torch.nn.functional.pad(sums, (1, 0))  # [2, B, V + 1]

    def __call__(self, rho: Tensor) -> Tensor:
        """beta at rho [B, P]."""
        first = torch.searchsorted(self._ratio, rho, right=True)
        p_below, q_below = self._below.gather(-1, first.expand(2, -1, -1)).unbind(0)
        return self._below[1, :, -1:] - q_below + p_below / rho
