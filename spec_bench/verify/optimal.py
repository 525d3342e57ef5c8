"""The optimal rule for K i.i.d. children: one candidate is chosen, then tested alone.

For K draws from q no rule accepts more than 1 - max(0, max_i (t_i^K - R_i)), with t and R the
running sums of q and p over the tokens by rising p/q (see ``bound``). The rule here reaches that
less a small eps. First it settles which distribution the chosen candidate should have: p, but at
most mu and at least lambda times q. Then it makes a choice with that law: every token is given a
level, by chance where it falls between two, and the first candidate on the highest occupied level
is chosen. The actual distribution of this choice is a sum over the vocabulary, so the test that
follows, min(1, p/distribution), is exact however roughly levels were found.

Two steps, choose and test, as arXiv 2410.18234 has them; the bound is arXiv 2502.18779's.
Letters: B nodes, C children, V vocabulary, M points of a curve, L levels.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.settings.fields import Count
from spec_bench.verify.base import rule
from spec_bench.verify.rules import naive, normalise, recursive_rejection
from spec_bench.verify.walk import Verdict

LEVELS = 8
"""Most levels that are looked for; six were enough for any distribution that was tried."""

POINTS = 4096
"""A larger vocabulary is not sorted by p/q but put into so many bins of it."""

EPS = 1e-4
"""Given away, in acceptance, so that all levels have room between them."""


class CandidateChoice(NamedTuple):
    """How one candidate of several is chosen."""

    law: Tensor  # [B, V] of the chosen candidate
    level: Tensor  # [B, V] the lower of the two levels that a token may stand on
    upper: Tensor  # [B, V] P(it stands on the one above)


@rule("optimal", siblings=("iid",), mark="exact")
def optimal(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """The optimal rule for i.i.d. children of one draft, tokens with multiplicity; K is the number
    of children present.
    """
    assert q is not None and q.shape[1] == 1, "the optimal rule takes one draft distribution"
    q = q[:, 0]
    count = valid.sum(dim=-1, keepdim=True)
    choice = choose_one(p, q, count.clamp(min=1).to(p.dtype))
    p_token = p.gather(-1, tokens).double()
    law = choice.law.gather(-1, tokens).double()
    stands = torch.where(law > 0, p_token / law, 0.0).clamp(max=1.0)
    taken = _choose(choice, tokens, valid) * stands
    before = taken.cumsum(dim=-1) - taken
    acceptance = (taken / (1 - before).clamp(min=torch.finfo(taken.dtype).tiny)).clamp(max=1.0)
    residual = normalise((p - choice.law).clamp_(min=0.0), p, count > 0)
    return Verdict(acceptance.to(p.dtype), residual)


def _choose(choice: CandidateChoice, tokens: Tensor, valid: Tensor) -> Tensor:
    """P(each child is the one chosen) [B, C], float64."""
    level = choice.level.gather(-1, tokens)
    upper = choice.upper.gather(-1, tokens).double()
    each = torch.arange(LEVELS, device=tokens.device)
    at = level.unsqueeze(-1) == each
    above = level.unsqueeze(-1) + 1 == each
    on = at * (1 - upper).unsqueeze(-1) + above * upper.unsqueeze(-1)  # [B, C, L]
    on = on * valid.unsqueeze(-1)
    no_higher = torch.where(valid.unsqueeze(-1), on.cumsum(dim=-1), 1.0)
    lower = torch.where(valid.unsqueeze(-1), no_higher - on, 1.0)
    ones = torch.ones_like(on[:, :1])
    earlier = torch.cat([ones, lower.cumprod(dim=1)[:, :-1]], dim=1)
    later = torch.cat([no_higher.flip(1).cumprod(dim=1).flip(1)[:, 1:], ones], dim=1)
    return (on * earlier * later).sum(dim=-1)


def choose_one(p: Tensor, q: Tensor, count: Tensor, eps: float = EPS) -> CandidateChoice:
    """Says how to choose one of K = ``count`` [B, 1] candidates drawn from q [B, V] so that its
    distribution overlaps with p [B, V] as far as possible, less ``eps``. The choice's ``law`` is
    exact, whatever else is rough.
    """
    least, most, slopes = plan(p, q, count, eps)
    support = q > 0
    wanted = torch.where(support, p / q, 0.0).clamp_(min=least.to(p), max=most.to(p))
    slopes = slopes.to(p.dtype)
    level = torch.searchsorted(slopes, wanted, right=True).sub_(1).clamp_(0, LEVELS - 2)
    low = slopes.gather(-1, level)
    high = slopes.gather(-1, level + 1)
    upper = ((wanted - low) / (high - low)).clamp_(0.0, 1.0)
    # q's actual mass on each level: from here on nothing is approximate.
    raised = q * upper
    mass = torch.zeros(slopes.shape, dtype=torch.float64, device=p.device)
    mass = mass.scatter_add(-1, level, (q - raised).double())
    mass = mass.scatter_add(-1, level + 1, raised.double())
    mass = mass / mass.sum(dim=-1, keepdim=True)
    factor = _per_mass(mass.cumsum(dim=-1), mass, count.double()).to(p.dtype)
    law = q * torch.lerp(factor.gather(-1, level), factor.gather(-1, level + 1), upper)
    return CandidateChoice(law, level, upper)


def _per_mass(upto: Tensor, mass: Tensor, count: Tensor) -> Tensor:
    """Returns P(a level is the highest occupied) / its mass, (G_l^K - G_{l-1}^K) / (G_l - G_{l-1})
    [B, L], of q's mass ``upto`` each level, G, and of each level.
    """
    highest = upto**count - (upto - mass).clamp(min=0.0) ** count
    # For a level of hardly any mass, the limit K G^(K-1).
    thin = mass < 1e-12
    return torch.where(thin, count * upto ** (count - 1), highest / mass.masked_fill(thin, 1.0))


def plan(p: Tensor, q: Tensor, count: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the bounds of the wanted distribution over q, lambda and mu [B, 1], and the slopes of
    the levels [B, L], rising; float64. Arguments as of ``choose_one``.

    With S the wanted distribution's running sums against t, levels are the edges of a polygon that
    is inscribed in t^K and touches S from below with each edge: an edge's width is its level's
    mass.
    """
    count = count.double()
    dr, dt = (sort_by_ratio if p.shape[-1] <= POINTS else _bin_ratios)(p, q)
    t = dt.cumsum(dim=-1)
    r = dr.cumsum(dim=-1)
    missing = (t**count - r).amax(dim=-1, keepdim=True).clamp(min=0.0) + eps
    tiny = torch.finfo(t.dtype).tiny
    # sum q max(0, lambda - p/q) and sum (p - mu q)+ both equal what is missing.
    least = ((missing + r) / t.clamp(min=tiny)).amin(dim=-1, keepdim=True).clamp(max=1.0)
    # of a token and all after it
    above_t = 1 - t + dt
    above_r = 1 - r + dr
    gap = (above_r - missing) / above_t.clamp(min=1e-15)
    most = gap.masked_fill(above_t <= 1e-15, -torch.inf).amax(dim=-1, keepdim=True).clamp(min=1.0)
    sums = dr.maximum(least * dt).minimum(most * dt).cumsum(dim=-1)
    # The first edge starts at 0 along the least slope; t^K = lambda t ends it.
    slopes = [least]
    start = least ** (1 / (count - 1).clamp(min=tiny))
    for level in range(1, LEVELS):
        done = start >= 1
        if done.is_cpu and done.all():  # elsewhere asking would stall the device
            slopes += [slopes[-1] + place * count for place in range(1, LEVELS + 1 - level)]
            break
        power = start**count
        ahead = t - start
        steep = torch.where(ahead > 1e-12, (sums - power) / ahead, torch.inf)
        last = (1 - power) / (1 - start).clamp(min=tiny)
        steep = steep.amin(dim=-1, keepdim=True).minimum(last)
        end = _find_crossing(start, power, steep, count)
        end = torch.where(end > start, end, 1.0)  # no way forward: the last edge goes to 1
        steep = torch.where(end >= 1, last, steep)
        # After the last edge come levels that nothing reaches.
        slopes.append(torch.where(done, slopes[-1] + count, steep))
        start = torch.where(done, start, end)
    return least, most, torch.cat(slopes, dim=-1)


def _find_crossing(start: Tensor, power: Tensor, slope: Tensor, count: Tensor) -> Tensor:
    """Returns where the line from (a, a^K) with a slope meets t^K again, at most 1, or a itself;
    all [B, 1].
    """
    # t^K less the line falls up to ``lowest`` and rises from there on.
    lowest = (slope / count) ** (1 / (count - 1).clamp(min=1.0))
    low = lowest.maximum(start).clamp(max=1.0)
    at = torch.lerp(low, torch.ones_like(low), _steps(low.device))  # [B, probes]
    over = at**count - power - slope * (at - start)
    high = (over < 0).sum(dim=-1, keepdim=True).clamp(1, at.shape[-1] - 1)
    at_low = at.gather(-1, high - 1)
    at_high = at.gather(-1, high)
    over_low = over.gather(-1, high - 1)
    over_high = over.gather(-1, high)
    # Between two probes t^K is practically straight.
    part = over_low / (over_low - over_high).clamp(max=-torch.finfo(low.dtype).tiny)
    end = torch.lerp(at_low, at_high, part.clamp(0.0, 1.0))
    return torch.where(lowest > start, end, start)


@cache
def _steps(device: torch.device) -> Tensor:
    return torch.linspace(0, 1, 513, dtype=torch.float64, device=device)


def _bin_ratios(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of p and q over bins of p/(p + q), which rises with p/q [B, M], float64."""
    share = p / (p + q).clamp_(min=torch.finfo(p.dtype).tiny)
    index = (share * POINTS).nan_to_num_().clamp_(max=POINTS - 1).long()
    empty = torch.zeros((*p.shape[:-1], POINTS), dtype=torch.float64, device=p.device)
    p = torch.where(q > 0, p, 0.0)
    return empty.scatter_add(-1, index, p.double()), empty.scatter_add(-1, index, q.double())


# Children of which some are drawn and the others are the draft's best; drawn ones tested first.
#
# "Greedy" drafting of arXiv 2502.18779; with two children SpecHub (arXiv 2411.05289), whose pairs
# have the same distribution. With Top the draft's K - S best tokens and w = q without them,
# renormalised, S children are drawn from w and the best follow as one-hot proposals. For S = 1 a
# node accepts p(Top) + sum over the rest of min(p, w), which is the optimum for such candidates.


@rule("top_and_sample", siblings=("top_and_sampled", "deterministic"), mark="exact")
def top_and_sample(
    p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor, *, sampled: Count = 1
) -> Verdict:
    """The drawn children by the optimal rule for i.i.d. ones, then the best as one-hot proposals.

    q is the draft's distribution, or what is left of it beside the best. A drawn child is absent
    where the best are all of q's support. ``sampled``: S; all, if there are fewer children.
    """
    if q is None:
        return naive(p, None, tokens, valid)
    assert q.shape[1] == 1, "the best are those of one draft"
    drawn = tokens[:, :sampled]
    best = tokens[:, sampled:]
    w = remove_best_tokens(q[:, 0], best, valid[:, sampled:]).unsqueeze(1)
    if drawn.shape[1] == 1:
        first = recursive_rejection(p, w, drawn, valid[:, :1], replacement=True)
    else:
        first = optimal(p, w, drawn, valid[:, :sampled])
    then = naive(first.residual, None, best, valid[:, sampled:])
    return Verdict(torch.cat([first.acceptance, then.acceptance], dim=-1), then.residual)


def remove_best_tokens(q: Tensor, best: Tensor, there: Tensor) -> Tensor:
    """Returns w [B, V]: q without its ``best`` tokens that are ``there`` [B, K - S], renormalised;
    all zero where nothing is left.
    """
    gone = torch.zeros_like(q).scatter_add_(-1, best, there.to(q.dtype))
    rest = torch.where(gone > 0, 0.0, q)
    return normalise(rest, torch.zeros_like(rest))


def sort_by_ratio(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """p and q of q's support by rising p/q [B, V], float64; what q leaves out is 0 in both."""
    p = p.double()
    q = q.double()
    order = torch.where(q > 0, p / q, torch.inf).sort(dim=-1).indices
    return torch.where(q > 0, p, 0.0).gather(-1, order), q.gather(-1, order)
