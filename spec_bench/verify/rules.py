"""Node rules: pure functions that compute the probability of accepting each child of a node.

A rule takes the target's distribution p at a node, the draft distributions q, and the children in
the order they are tested. It returns the probability of accepting child j given that all earlier
ones were rejected, and the residual distribution of the token if all are rejected. Nothing is
sampled and no argument is written to, so every rule can be checked by enumeration. ``@rule``
declares for which kinds of siblings a rule is exact; the audit checks each.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] if all children share one draft
distribution, [B, C, V] if each has its own, None if proposals are one-hot.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import threshold

from spec_bench.core.host_device import cached_constant
from spec_bench.verify.base import rule
from spec_bench.verify.walk import Verdict


def normalise_or_fallback(
    weights: Tensor, fallback: Tensor, usable_rows: Tensor | None = None
) -> Tensor:
    """Scales non-negative weights [B, V] to sum to 1; rows without mass, and those where
    ``usable_rows`` [B, 1] is false, take the ``fallback`` [B, V].
    """
    total = weights.sum(dim=-1, keepdim=True)
    has_mass = total > torch.finfo(weights.dtype).tiny
    return torch.where(
        has_mass if usable_rows is None else has_mass & usable_rows, weights / total, fallback
    )


def _normalise_or_zero(weights: Tensor) -> Tensor:
    """Scales weights [B, V] to sum to 1; rows without mass become zero."""
    total = weights.sum(dim=-1, keepdim=True)
    return weights / threshold(total, torch.finfo(weights.dtype).tiny, torch.inf)


def _iter_children(tokens: Tensor, valid: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterates over the children: each one's token [B, 1] and whether it exists [B, 1]."""
    return zip(tokens.unsqueeze(-1).unbind(1), valid.unsqueeze(-1).unbind(1), strict=True)


def _acceptance_ratio(p_token: Tensor, q_token: Tensor) -> Tensor:
    """Computes min(1, p/q), 0 where q is 0 (such a token cannot have been drawn)."""
    return torch.where(q_token > 0, (p_token / q_token).clamp(max=1.0), 0.0)


@rule(
    "recursive_rejection",
    siblings={
        "iid": {"replacement": True},
        "without_replacement": {"replacement": False},
        "deterministic": {"replacement": False},
    },
    several_drafts=True,
)
def recursive_rejection(
    p: Tensor,
    q: Tensor | None,
    tokens: Tensor,
    valid: Tensor,
    *,
    replacement: bool = False,
) -> Verdict:
    """Tests children by recursive rejection sampling.

    Without replacement: RSD section 3.1 and Algorithm 1, MCSD Algorithm 2. With replacement:
    SpecInfer's multi-round rejection, MCSD Algorithm 1, with one draft or one per child. After
    child j is rejected p becomes norm(max(0, p - q)); without replacement q loses the rejected
    token and is renormalised, and the *updated* q enters the next ratio. If each child has its own
    q, it must already lack the earlier children's tokens.
    """
    if q is None:
        return naive(p, None, tokens, valid)
    p_tokens = []
    q_tokens = []
    current_q = q[:, 0]
    last_child = tokens.shape[1] - 1
    per_child = q.shape[1] > 1
    for child, (token, present) in enumerate(_iter_children(tokens, valid)):
        if per_child:
            current_q = q[:, child]
        p_tokens.append(p.gather(-1, token))
        q_tokens.append(current_q.gather(-1, token))
        p = normalise_or_fallback((p - current_q).clamp_(min=0.0), p, present)
        if not per_child and not replacement and child < last_child:
            reduced_q = _normalise_or_zero(current_q.scatter(-1, token, 0.0))
            current_q = torch.where(present, reduced_q, current_q)
    return Verdict(
        _acceptance_ratio(_join_columns(p_tokens, p), _join_columns(q_tokens, p)) * valid, p
    )


@rule(
    "naive",
    siblings=("iid", "without_replacement", "deterministic"),
    several_drafts=True,
)
def naive(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Accepts the child that equals a token y drawn from p, testing child by child.

    This is recursive rejection with one-hot proposals (a draft at temperature 0, a fixed list) and
    the naive rule (MCSD section 5, MCNS), which ignores q. A second copy of a token is never
    accepted.
    """
    if not p.is_cpu:
        return naive_closed_form(p, tokens, valid)
    p_tokens = []
    for token, present in _iter_children(tokens, valid):
        p_tokens.append(p.gather(-1, token))
        p = normalise_or_fallback(p.scatter(-1, token, 0.0), p, present)
    return Verdict(_join_columns(p_tokens, p).clamp(max=1.0) * valid, p)


@rule("k_seq", siblings=("iid",), mark="exact")
def k_seq(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Tests K i.i.d. children by SpecTr's K-SEQ with the optimal rho.

    Each child is accepted with min(1, p/(rho q)); the residual is
    norm(p - min(q, p/rho) (1-(1-beta)^K)/beta), beta = sum min(q, p/rho)
    (SpecTr, arXiv 2310.15141, Algorithm 2; RSD Appendix A.2). K is the number of children present,
    with multiplicity; all have one draft.
    """
    assert q is not None and q.shape[1] == 1, "K-SEQ takes one draft distribution per node"
    q = q[:, 0]
    count = valid.sum(dim=-1, keepdim=True).to(p.dtype)
    rho = find_k_seq_rho(p, q, count)
    overlap = torch.minimum(q, p / rho)
    beta = overlap.sum(dim=-1, keepdim=True)
    # Where beta is 0 the overlap is 0, and any factor will do.
    factor = (1 - (1 - beta).clamp_(min=0.0) ** count) / beta.clamp(min=torch.finfo(p.dtype).tiny)
    residual = normalise_or_fallback((p - overlap * factor).clamp(min=0.0), p)
    acceptance = _acceptance_ratio(p.gather(-1, tokens) / rho, q.gather(-1, tokens)) * valid
    return Verdict(acceptance, residual)


def find_k_seq_rho(
    p: Tensor,
    q: Tensor,
    count: Tensor,
    *,
    rounds: int = 2,
    points: int = 1024,
) -> Tensor:
    """Finds the smallest rho [B, 1] that keeps K-SEQ lossless: the root of 1-(1-beta)^K = rho*beta
    in [1, K], for p and q [B, V] and K = ``count`` [B, 1] i.i.d. children; 1 where K <= 1.

    Each round computes beta = sum min(q, p/rho) at ``points`` values of rho and narrows the bracket
    to the two around the root. Sums are in float64. Returns the upper end of the bracket, so that a
    coarse result lowers acceptance but is still lossless.
    """
    if count.is_cpu and count.max() <= 1:  # on a GPU this would wait for the device
        return torch.ones_like(count)
    dtype = p.dtype
    p = p.double()
    q = q.double()
    count = count.double()
    low = torch.ones_like(count)
    high = count.clamp(min=1.0)
    step = torch.linspace(0, 1, points + 1, dtype=p.dtype, device=p.device)
    # NaN would have no bin; a request with NaN logits fails after the walk.
    ratio = (p / q.clamp(min=torch.finfo(p.dtype).tiny)).nan_to_num_()
    overlap_mass = BinnedKSeqOverlap(p, q, ratio) if p.is_cpu else SortedKSeqOverlap(p, q, ratio)
    for _ in range(rounds):
        rho = torch.lerp(low, high, step)  # [B, points + 1]
        beta = overlap_mass(rho)
        too_small = (1 - beta).clamp_(min=0.0).pow_(count).addcmul_(rho, beta) < 1
        index = too_small.sum(dim=-1, keepdim=True).clamp_(max=points)
        low = rho.gather(-1, (index - 1).clamp_(min=0))
        high = rho.gather(-1, index)
    return high.to(dtype)


class BinnedKSeqOverlap(NamedTuple):
    """The function beta(rho) = sum min(q, p/rho) at evenly spaced rho. ``ratio`` is p/q; all are
    float64 [B, V].

    A token contributes q if p/q > rho, else p/rho. So p and q are summed in bins of p/q between
    neighbouring rho, and running sums over the bins give beta at every rho.
    """

    p: Tensor
    q: Tensor
    ratio: Tensor

    def __call__(self, rho: Tensor) -> Tensor:
        """Computes beta [B, P] at ``rho`` [B, P]."""
        points = rho.shape[1] - 1
        low = rho[:, :1]
        high = rho[:, -1:]
        # Index of the first rho at or above p/q. If p/q equals rho, either bin is right: q = p/rho.
        spaces = points / (high - low).clamp(min=torch.finfo(rho.dtype).eps)
        probe_index = ((self.ratio - low) * spaces).ceil_().clamp_(0, points + 1).long()
        empty = rho.new_zeros((len(rho), points + 2))
        p_below = empty.scatter_add(1, probe_index, self.p).cumsum(dim=-1)[:, :-1]
        q_below = empty.scatter_add(1, probe_index, self.q).cumsum(dim=-1)[:, :-1]
        return self.q.sum(dim=-1, keepdim=True) - q_below + p_below / rho


def _join_columns(columns: list[Tensor], like: Tensor) -> Tensor:
    """Joins C columns [B, 1] to [B, C]; [B, 0] if there are none."""
    if len(columns) == 1:
        return columns[0]
    return torch.cat(columns, dim=-1) if columns else like.new_zeros((like.shape[0], 0))


def naive_closed_form(p: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    """Computes recursive rejection with one-hot proposals for all children at once, on GPUs; the
    numbers equal those of the loop, which a CPU uses, up to rounding.

    Child j is reached with probability 1 - p(x_1) - ... - p(x_{j-1}), copies counted once. If the
    first children have nearly all of the mass, this difference would cancel. It is therefore summed
    from the other end: the mass that no child has, plus that of children j and later.
    """
    count = tokens.shape[1]
    earlier = cached_constant(
        tuple(tuple(i < j for i in range(count)) for j in range(count)), p.device
    )
    earlier_copies = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & earlier & valid.unsqueeze(1)
    is_first = valid & ~earlier_copies.any(dim=-1)
    p_tokens = p.gather(-1, tokens) * is_first
    remainder = p.scatter_add(-1, tokens, -p_tokens)  # exactly 0 at the children
    total = remainder.sum(dim=-1, keepdim=True)
    reach_probs = p_tokens.flip(-1).cumsum(dim=-1).flip(-1) + total
    tiny = torch.finfo(p.dtype).tiny
    acceptance = (p_tokens / reach_probs.clamp(min=tiny)).clamp(max=1.0)
    return Verdict(acceptance, torch.where(total > tiny, remainder / total, p))


class SortedKSeqOverlap:
    """The same function as ``BinnedKSeqOverlap``, but at any rho, from one sort.

    With the tokens sorted by p/q, those below rho contribute p/rho and those above it q, so two
    running sums give beta at every rho. On a GPU bins would be slow, because most tokens would
    share one.
    """

    def __init__(self, p: Tensor, q: Tensor, ratio: Tensor) -> None:
        self._ratio, order = ratio.sort(dim=-1)
        sums = torch.stack([p, q]).gather(-1, order.expand(2, -1, -1)).cumsum(dim=-1)
        self._below = torch.nn.functional.pad(sums, (1, 0))  # [2, B, V + 1]

    def __call__(self, rho: Tensor) -> Tensor:
        """Computes beta [B, P] at ``rho`` [B, P]."""
        count_below = torch.searchsorted(self._ratio, rho, right=True)
        p_below, q_below = self._below.gather(-1, count_below.expand(2, -1, -1)).unbind(0)
        return self._below[1, :, -1:] - q_below + p_below / rho
