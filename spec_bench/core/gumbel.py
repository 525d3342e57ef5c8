"""Samples without replacement by perturbed log-probabilities.

Pure functions of log-probabilities and Gumbel noise; the caller draws the noise.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from spec_bench.core.host_device import cached_constant


class DistinctTokens(NamedTuple):
    """Tokens drawn without replacement."""

    tokens: Tensor  # [..., k] in the order drawn
    valid: Tensor  # [..., k] False where the support had fewer than k tokens


def gumbel_top_k(log_q: Tensor, gumbel: Tensor, k: int) -> DistinctTokens:
    """Draws k tokens, V at most, without replacement (RSD section 3.2, Gumbel-top-k trick), from
    log-probabilities [..., V], -inf outside the support, and independent standard Gumbel noise
    [..., V].

    Returns tokens [..., k] in the order drawn, by decreasing perturbed value, and valid [..., k],
    False if the support has too few tokens.
    """
    values, tokens = (log_q + gumbel).topk(min(k, log_q.shape[-1]), dim=-1)
    return DistinctTokens(tokens, values > -torch.inf)


def compute_sibling_distributions(log_q: Tensor, tokens: Tensor) -> Tensor:
    """Computes the distributions [B, C, V] that tokens [B, C] were drawn from in that order, each
    without the tokens before it; log_q [B, V] is -inf outside the support. A distribution with no
    token left is undefined.

    In log space: at a temperature of 0.01 the first token's probability may be 1 in float32, and
    all others, which make the distribution of the second, underflow.
    """
    count = tokens.shape[1]
    first_probs = log_q.softmax(dim=-1).unsqueeze(1)
    if count == 1:
        return first_probs
    earlier = tuple(tuple(min(i, j) for i in range(count - 1)) for j in range(count - 1))
    # [B, C - 1, C - 1], repeating the last
    removed_tokens = tokens[:, cached_constant(earlier, tokens.device)]
    # Not -inf: the softmax of nothing but -inf is NaN.
    floor = torch.finfo(log_q.dtype).min
    later = log_q.unsqueeze(1).repeat(1, count - 1, 1).scatter_(-1, removed_tokens, floor)
    return torch.cat([first_probs, later.softmax(dim=-1)], dim=1)


def condition_on_maximum(perturbed: Tensor, maximum: Tensor) -> Tensor:
    """Conditions perturbed log-probabilities [..., V] of one parent's children, -inf allowed, on
    their maximum being ``maximum`` [...], the parent's perturbed value (stochastic beam search).
    Returns [..., V], increasing in ``perturbed``; -inf stays -inf.

    The map T of RSD Appendix B.2 (Kool et al. 2019, arXiv 1903.06059, section 4.2 and its Appendix
    B.3) in the form that stays finite in float32: the textbook ``-log(exp(-bound) - exp(-max) +
    exp(-phi))`` is NaN below about -88.
    """
    gap = perturbed - perturbed.amax(dim=-1, keepdim=True)
    maximum = maximum.unsqueeze(-1)
    # log(1 - exp(gap)); at the maximum itself it is -inf, so v = -inf and psi = bound.
    v = maximum - perturbed + gap.expm1_().neg_().log_()
    psi = maximum - softplus(v, threshold=40)
    # Without a parent, or without its children, infinities were subtracted from each other.
    return psi.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
