"""Node rules: pure functions that say with what probability each child is accepted.

A rule sees one node: the target's distribution p, the draft distributions q, and the children in
the order they are tested. It returns the probability of accepting child j given that all earlier
ones were rejected, and the residual distribution from which the token comes when all are rejected.
Nothing is sampled and no argument is written to, so every rule can be checked by enumeration.
``@rule`` says for which ways of drawing the children a rule is exact; the audit checks each.

Shapes: B nodes, C children, V vocabulary; ``q`` is [B, 1, V] where all children share one draft
distribution, [B, C, V] where each has its own, None where proposals are one-hot.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import threshold

from spec_bench.core.transfer import constant
from spec_bench.verify.base import rule
from spec_bench.verify.walk import Verdict


def normalise(weights: Tensor, fallback: Tensor, where: Tensor | None = None) -> Tensor:
    """Scales non-negative weights [B, V] to sum to 1. Where they have no mass, and where ``where``
    [B, 1] is false, the ``fallback`` [B, V] is taken.
    """
    total = weights.sum(dim=-1, keepdim=True)
    good = total > torch.finfo(weights.dtype).tiny
    return torch.where(good if where is None else good & where, weights / total, fallback)


def _scale(weights: Tensor) -> Tensor:
    """weights [B, V] scaled to sum to 1, all zero where they have no mass."""
    total = weights.sum(dim=-1, keepdim=True)
    return weights / threshold(total, torch.finfo(weights.dtype).tiny, torch.inf)


def _one_by_one(tokens: Tensor, valid: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Each child's token [B, 1] and whether it exists [B, 1]."""
    return zip(tokens.unsqueeze(-1).unbind(1), valid.unsqueeze(-1).unbind(1), strict=True)


def _ratio(p_token: Tensor, q_token: Tensor) -> Tensor:
    """min(1, p/q), 0 where q is 0 (such a token cannot have been drawn)."""
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
    p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor, *, replacement: bool = False
) -> Verdict:
    """Recursive rejection sampling.

    Without replacement: RSD section 3.1 and Algorithm 1, MCSD Algorithm 2. With replacement:
    SpecInfer's multi-round rejection, MCSD Algorithm 1, with one draft or one per child. After
    child j is rejected p becomes norm(max(0, p - q)); without replacement q loses the rejected
    token and is renormalised, and the *updated* q enters the next ratio. Where each child has its
    own q, without replacement that is what the children before it left.
    """
    if q is None:
        return naive(p, None, tokens, valid)
    at_p = []
    at_q = []
    current_q = q[:, 0]
    last = tokens.shape[1] - 1
    per_child = q.shape[1] > 1
    for child, (token, there) in enumerate(_one_by_one(tokens, valid)):
        if per_child:
            current_q = q[:, child]
        at_p.append(p.gather(-1, token))
        at_q.append(current_q.gather(-1, token))
        p = normalise((p - current_q).clamp_(min=0.0), p, there)
        if not per_child and not replacement and child < last:
            left = _scale(current_q.scatter(-1, token, 0.0))
            current_q = torch.where(there, left, current_q)
    return Verdict(_ratio(_columns(at_p, p), _columns(at_q, p)) * valid, p)


@rule(
    "naive",
    siblings=("iid", "without_replacement", "deterministic"),
    several_drafts=True,
)
def naive(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Draw y from p and accept iff y is among the children, child by child.

    This is recursive rejection with one-hot proposals (a draft at temperature 0, a fixed list) and
    the naive rule (MCSD section 5, MCNS), which ignores q. A second copy of a token is never
    accepted.
    """
    if not p.is_cpu:
        return naive_closed_form(p, tokens, valid)
    at_p = []
    for token, there in _one_by_one(tokens, valid):
        at_p.append(p.gather(-1, token))
        p = normalise(p.scatter(-1, token, 0.0), p, there)
    return Verdict(_columns(at_p, p).clamp(max=1.0) * valid, p)


@rule("k_seq", siblings=("iid",), mark="exact")
def k_seq(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """SpecTr's K-SEQ for K i.i.d. children, with the optimal rho.

    Each child is accepted with min(1, p/(rho q)); the residual is
    norm(p - min(q, p/rho) (1-(1-beta)^K)/beta), beta = sum min(q, p/rho)
    (SpecTr, arXiv 2310.15141, Algorithm 2; RSD Appendix A.2). K is the number of children present,
    with multiplicity; all have one draft.
    """
    assert q is not None and q.shape[1] == 1, "K-SEQ takes one draft distribution per node"
    q = q[:, 0]
    count = valid.sum(dim=-1, keepdim=True).to(p.dtype)
    rho = optimal_rho(p, q, count)
    kept = torch.minimum(q, p / rho)
    beta = kept.sum(dim=-1, keepdim=True)
    # Where beta is 0 nothing is kept, and any factor will do.
    factor = (1 - (1 - beta).clamp_(min=0.0) ** count) / beta.clamp(min=torch.finfo(p.dtype).tiny)
    residual = normalise((p - kept * factor).clamp(min=0.0), p)
    acceptance = _ratio(p.gather(-1, tokens) / rho, q.gather(-1, tokens)) * valid
    return Verdict(acceptance, residual)


def optimal_rho(
    p: Tensor, q: Tensor, count: Tensor, *, rounds: int = 2, points: int = 1024
) -> Tensor:
    """Returns the smallest rho [B, 1] that keeps K-SEQ lossless: the root of 1-(1-beta)^K =
    rho*beta in [1, K], of p and q [B, V] and K = ``count`` [B, 1] i.i.d. children; 1 where K <= 1.

    beta = sum min(q, p/rho) is wanted at many rho at once: each round probes that many ``points``
    and narrows the bracket to the two around the root. Sums are of float64, and the upper end of
    the bracket is returned: what resolution lacks costs acceptance, never correctness.
    """
    if count.is_cpu and count.max() <= 1:  # elsewhere asking would stall the device
        return torch.ones_like(count)
    given = p.dtype
    p = p.double()
    q = q.double()
    count = count.double()
    low = torch.ones_like(count)
    high = count.clamp(min=1.0)
    step = torch.linspace(0, 1, points + 1, dtype=p.dtype, device=p.device)
    # Without a distribution there is no index; such a request ends after the walk.
    ratio = (p / q.clamp(min=torch.finfo(p.dtype).tiny)).nan_to_num_()
    kept = BinnedMass(p, q, ratio) if p.is_cpu else SharedMass(p, q, ratio)
    for _ in range(rounds):
        rho = torch.lerp(low, high, step)  # [B, points + 1]
        beta = kept(rho)
        too_small = (1 - beta).clamp_(min=0.0).pow_(count).addcmul_(rho, beta) < 1
        index = too_small.sum(dim=-1, keepdim=True).clamp_(max=points)
        low = rho.gather(-1, (index - 1).clamp_(min=0))
        high = rho.gather(-1, index)
    return high.to(given)


class BinnedMass(NamedTuple):
    """beta(rho) = sum min(q, p/rho) at evenly spaced rho; of p, q and p/q [B, V] float64.

    A token counts q while p/q > rho and p/rho from there on; so with every token's p and q put into
    the interval between two probes where p/q lies, running sums give beta at all probes.
    """

    p: Tensor
    q: Tensor
    ratio: Tensor

    def __call__(self, rho: Tensor) -> Tensor:
        """Returns beta at rho [B, P], in its shape."""
        points = rho.shape[1] - 1
        low = rho[:, :1]
        high = rho[:, -1:]
        # The first probe at or above p/q. Next to a probe either side will do: there q = p/rho.
        spaces = points / (high - low).clamp(min=torch.finfo(rho.dtype).eps)
        first = ((self.ratio - low) * spaces).ceil_().clamp_(0, points + 1).long()
        empty = rho.new_zeros((len(rho), points + 2))
        p_below = empty.scatter_add(1, first, self.p).cumsum(dim=-1)[:, :-1]
        q_below = empty.scatter_add(1, first, self.q).cumsum(dim=-1)[:, :-1]
        return self.q.sum(dim=-1, keepdim=True) - q_below + p_below / rho


def _columns(columns: list[Tensor], like: Tensor) -> Tensor:
    """[B, C] from C columns [B, 1]; [B, 0] where there are none."""
    if len(columns) == 1:
        return columns[0]
    return torch.cat(columns, dim=-1) if columns else like.new_zeros((like.shape[0], 0))


# Node rules without a step per child: for devices where every step is a launch. The numbers equal
# those of the rules' own loops up to rounding; a CPU uses the loops.


def naive_closed_form(p: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
    """Recursive rejection with one-hot proposals, all children at once.

    Child j is met with probability 1 - p(x_1) - ... - p(x_{j-1}), copies counted once. That is
    summed from the other end, as what is left after the last child plus the children from j on, so
    that nothing cancels where the first children have nearly all of the mass.
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
    """``BinnedMass`` at any rho, from one sort.

    With the tokens in order of p/q, those below rho count p/rho and those above it q; so two
    running sums hold beta at every rho. There are no bins: most tokens would share one.
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
