"""Node rules: pure functions that say with what probability each child is accepted.

A rule sees one node: the target's distribution p, the draft distributions q, and the children in
the order they are tested. It returns the probability of accepting child j given that all earlier
ones were rejected, and the residual distribution from which the token comes when all are rejected.
Nothing is sampled and no argument is written to, so every rule can be checked by enumeration.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] where all children share one draft
distribution, [B, C, V] where each has its own, None where proposals are one-hot.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Verdict(NamedTuple):
    """What a node rule decides.

    Attributes:
        acceptance: [B, C] P(accept child j | children before j rejected); 0 for absent children.
        residual: [B, V] law of the token if every child is rejected.
    """

    acceptance: Tensor
    residual: Tensor


class NodeRule(Protocol):
    """p [B, V], q [B, 1 or C, V] or None, tokens [B, C], valid [B, C] -> Verdict."""

    def __call__(self, p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict: ...


def normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """weights [B, V] scaled to sum to 1; the fallback where they have no mass."""
    total = weights.sum(dim=-1, keepdim=True)
    tiny = torch.finfo(weights.dtype).tiny
    return torch.where(total > tiny, weights / total.clamp(min=tiny), fallback)


def _at(probs: Tensor, token: Tensor) -> Tensor:
    """probs [B, V] at token [B, 1] -> [B, 1]."""
    return probs.gather(-1, token)


def _ratio(p_token: Tensor, q_token: Tensor) -> Tensor:
    """min(1, p/q), 0 where q is 0 (such a token cannot have been drawn)."""
    safe = torch.where(q_token > 0, q_token, 1.0)
    return torch.where(q_token > 0, (p_token / safe).clamp(max=1.0), 0.0)


def recursive_rejection(
    p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor, *, replacement: bool
) -> Verdict:
    """Recursive rejection sampling.

    Without replacement: RSD section 3.1 and Algorithm 1, MCSD Algorithm 2. With replacement:
    SpecInfer's multi-round rejection, MCSD Algorithm 1, with one draft or one per child. After
    child j is rejected p becomes norm(max(0, p - q)); without replacement q loses the rejected
    token and is renormalised, and the *updated* q enters the next ratio.

    Args:
        p: [B, V] the target's distribution.
        q: [B, 1, V] or [B, C, V]; None for one-hot proposals in rank order.
        tokens: [B, C] children in the order drawn.
        valid: [B, C] which of them exist.
        replacement: how the children were drawn.

    Returns:
        The verdict.
    """
    if q is None:
        return ranked_list(p, None, tokens, valid)
    acceptance = []
    current_q = q[:, 0]
    for child in range(tokens.shape[1]):
        token, there = tokens[:, child : child + 1], valid[:, child : child + 1]
        if replacement and q.shape[1] > 1:
            current_q = q[:, child]
        acceptance.append(_ratio(_at(p, token), _at(current_q, token)) * there)
        rejected_p = normalised((p - current_q).clamp(min=0.0), p)
        p = torch.where(there, rejected_p, p)
        if not replacement and child + 1 < tokens.shape[1]:
            without = current_q.scatter(-1, token, 0.0)
            current_q = torch.where(there, normalised(without, without), current_q)
    return Verdict(_columns(acceptance, p), p)


def ranked_list(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Draw y from p and accept iff y is among the children, child by child.

    This is recursive rejection with one-hot proposals (a draft at temperature 0, a fixed list) and
    the naive rule (MCSD section 5, MCNS), which ignores q. A second copy of a token is never
    accepted.

    Args:
        p: [B, V].
        q: ignored.
        tokens: [B, C].
        valid: [B, C].

    Returns:
        The verdict.
    """
    acceptance = []
    for child in range(tokens.shape[1]):
        token, there = tokens[:, child : child + 1], valid[:, child : child + 1]
        acceptance.append(_at(p, token).clamp(max=1.0) * there)
        p = torch.where(there, normalised(p.scatter(-1, token, 0.0), p), p)
    return Verdict(_columns(acceptance, p), p)


def k_seq(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """SpecTr's K-SEQ for K i.i.d. children, with the optimal rho.

    Each child is accepted with min(1, p/(rho q)); the residual is
    norm(p - min(q, p/rho) (1-(1-beta)^K)/beta), beta = sum min(q, p/rho)
    (SpecTr, arXiv 2310.15141, Algorithm 2; RSD Appendix A.2). K is the number of children present.

    Args:
        p: [B, V].
        q: [B, 1, V] (one draft).
        tokens: [B, C] with multiplicity.
        valid: [B, C].

    Returns:
        The verdict.
    """
    assert q is not None and q.shape[1] == 1, "K-SEQ takes one draft distribution per node"
    q = q[:, 0]
    count = valid.sum(dim=-1, keepdim=True).to(p.dtype)
    rho = optimal_rho(p, q, count)
    kept = torch.minimum(q, p / rho)
    beta = kept.sum(dim=-1, keepdim=True)
    factor = (1 - (1 - beta).clamp(min=0.0) ** count) / torch.where(beta > 0, beta, 1.0)
    factor = torch.where(beta > 0, factor, count)
    residual = normalised((p - kept * factor).clamp(min=0.0), p)
    acceptance = _ratio(p.gather(-1, tokens) / rho, q.gather(-1, tokens)) * valid
    return Verdict(acceptance, residual)


def optimal_rho(
    p: Tensor, q: Tensor, count: Tensor, *, rounds: int = 6, points: int = 16
) -> Tensor:
    """The smallest rho that keeps K-SEQ lossless: the root of 1-(1-beta)^K = rho*beta in [1, K].

    Bisection with ``points`` probes a round; the upper end is returned, so a rounding error costs
    acceptance, never correctness. beta = sum min(q, p/rho).

    Args:
        p: [B, V].
        q: [B, V].
        count: [B, 1] K, the number of i.i.d. children.
        rounds: each narrows the bracket by a factor of ``points``.
        points: probes per round.

    Returns:
        [B, 1] rho, 1 where K <= 1.
    """
    low, high = torch.ones_like(count), count.clamp(min=1.0)
    step = torch.linspace(0, 1, points + 1, dtype=p.dtype, device=p.device)
    for _ in range(rounds):
        rho = low + (high - low) * step  # [B, points + 1]
        beta = torch.minimum(q.unsqueeze(1), p.unsqueeze(1) / rho.unsqueeze(-1)).sum(dim=-1)
        too_small = 1 - (1 - beta).clamp(min=0.0) ** count > rho * beta
        index = (too_small[:, :-1].cumprod(dim=-1).sum(dim=-1, keepdim=True)).clamp(max=points)
        low, high = rho.gather(-1, (index - 1).clamp(min=0)), rho.gather(-1, index)
    return high


def _columns(columns: list[Tensor], like: Tensor) -> Tensor:
    """[B, C] from C columns [B, 1]; [B, 0] where there are none."""
    return torch.cat(columns, dim=-1) if columns else like.new_zeros((like.shape[0], 0))
