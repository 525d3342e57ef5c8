"""The optimal rule for K i.i.d. children: chooses one candidate, then tests it alone.

For K draws from q no rule accepts more than 1 - max(0, max_i (t_i^K - R_i)), with t and R the
running sums of q and p over the tokens by rising p/q (``scripts/check/acceptance_bound.py``). The
rule in this module reaches that bound less a small eps. First it finds the distribution that the
chosen candidate should have: p, but at most mu and at least lambda times q. Then it chooses by this
distribution: every token gets a level, at random if it falls between two, and the first candidate
on the highest occupied level is chosen. The actual distribution of this choice is a sum over the
vocabulary, so the test that follows, min(1, p/distribution), is exact even if levels are rough.

The two steps, choose and test, are those of arXiv 2410.18234; the bound is that of arXiv
2502.18779. Letters: B nodes, C children, V vocabulary, M points of a curve, L levels.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.settings.fields import Count
from spec_bench.verify.base import rule
from spec_bench.verify.rules import naive, normalise_or_fallback, recursive_rejection
from spec_bench.verify.walk import Verdict

LEVELS = 8
"""Maximum number of levels; six were enough for every distribution tried."""

POINTS = 4096
"""Number of bins of p/q if the vocabulary is larger than this; a smaller one is sorted."""

EPS = 1e-4
"""Acceptance given up to keep the levels apart."""


class CandidateChoice(NamedTuple):
    """Levels by which one of several candidates is chosen."""

    distribution: Tensor  # [B, V] of the chosen candidate
    lower_level: Tensor  # [B, V] the lower of a token's two possible levels
    upper_prob: Tensor  # [B, V] P(the token is on the upper level)


@rule("optimal", siblings=("iid",), mark="exact")
def optimal(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
    """Tests i.i.d. children of one draft by the optimal rule; K is the number of children present,
    with multiplicity.
    """
    assert q is not None and q.shape[1] == 1, "the optimal rule takes one draft distribution"
    q = q[:, 0]
    count = valid.sum(dim=-1, keepdim=True)
    choice = plan_candidate_choice(p, q, count.clamp(min=1).to(p.dtype))
    p_token = p.gather(-1, tokens).double()
    choice_probs = choice.distribution.gather(-1, tokens).double()
    test_probs = torch.where(choice_probs > 0, p_token / choice_probs, 0.0).clamp(max=1.0)
    accept_probs = _compute_choice_probs(choice, tokens, valid) * test_probs
    earlier_probs = accept_probs.cumsum(dim=-1) - accept_probs
    acceptance = (
        accept_probs / (1 - earlier_probs).clamp(min=torch.finfo(accept_probs.dtype).tiny)
    ).clamp(max=1.0)
    residual = normalise_or_fallback((p - choice.distribution).clamp_(min=0.0), p, count > 0)
    return Verdict(acceptance.to(p.dtype), residual)


def _compute_choice_probs(choice: CandidateChoice, tokens: Tensor, valid: Tensor) -> Tensor:
    """Computes the probability that each child is the chosen one, [B, C], float64."""
    level = choice.lower_level.gather(-1, tokens)
    upper = choice.upper_prob.gather(-1, tokens).double()
    levels = torch.arange(LEVELS, device=tokens.device)
    on_lower = level.unsqueeze(-1) == levels
    on_upper = level.unsqueeze(-1) + 1 == levels
    level_probs = on_lower * (1 - upper).unsqueeze(-1) + on_upper * upper.unsqueeze(-1)  # [B, C, L]
    level_probs = level_probs * valid.unsqueeze(-1)
    no_higher = torch.where(valid.unsqueeze(-1), level_probs.cumsum(dim=-1), 1.0)
    lower = torch.where(valid.unsqueeze(-1), no_higher - level_probs, 1.0)
    certain = torch.ones_like(level_probs[:, :1])
    earlier = torch.cat([certain, lower.cumprod(dim=1)[:, :-1]], dim=1)
    later = torch.cat([no_higher.flip(1).cumprod(dim=1).flip(1)[:, 1:], certain], dim=1)
    return (level_probs * earlier * later).sum(dim=-1)


def plan_candidate_choice(p: Tensor, q: Tensor, count: Tensor, eps: float = EPS) -> CandidateChoice:
    """Plans the choice of one of K = ``count`` [B, 1] candidates drawn from q [B, V], so that its
    distribution overlaps with p [B, V] as far as possible, less ``eps``. The ``distribution`` of
    the choice is exact even if the levels are rough.
    """
    min_ratio, max_ratio, slopes = compute_ratio_bounds_and_slopes(p, q, count, eps)
    support = q > 0
    target_ratio = torch.where(support, p / q, 0.0).clamp_(min=min_ratio.to(p), max=max_ratio.to(p))
    slopes = slopes.to(p.dtype)
    level = torch.searchsorted(slopes, target_ratio, right=True).sub_(1).clamp_(0, LEVELS - 2)
    low = slopes.gather(-1, level)
    high = slopes.gather(-1, level + 1)
    upper = ((target_ratio - low) / (high - low)).clamp_(0.0, 1.0)
    # q's actual mass on each level: everything from here on is exact.
    upper_mass = q * upper
    mass = torch.zeros(slopes.shape, dtype=torch.float64, device=p.device)
    mass = mass.scatter_add(-1, level, (q - upper_mass).double())
    mass = mass.scatter_add(-1, level + 1, upper_mass.double())
    mass = mass / mass.sum(dim=-1, keepdim=True)
    factor = _divide_top_level_prob_by_mass(mass.cumsum(dim=-1), mass, count.double()).to(p.dtype)
    distribution = q * torch.lerp(factor.gather(-1, level), factor.gather(-1, level + 1), upper)
    return CandidateChoice(distribution, level, upper)


def _divide_top_level_prob_by_mass(mass_up_to: Tensor, mass: Tensor, count: Tensor) -> Tensor:
    """Computes P(a level is the highest occupied) divided by the level's mass, [B, L]:
    ``(G_l^K - G_{l-1}^K) / (G_l - G_{l-1})``. ``mass`` is q's mass on each level; ``mass_up_to``,
    G, is q's mass on all levels up to it.
    """
    highest = mass_up_to**count - (mass_up_to - mass).clamp(min=0.0) ** count
    # For a level of hardly any mass, the limit K G^(K-1).
    thin = mass < 1e-12
    return torch.where(
        thin, count * mass_up_to ** (count - 1), highest / mass.masked_fill(thin, 1.0)
    )


def compute_ratio_bounds_and_slopes(
    p: Tensor, q: Tensor, count: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the bounds lambda and mu [B, 1] of the target distribution divided by q, and the
    slopes of the levels [B, L], rising; float64. The arguments are those of
    ``plan_candidate_choice``.

    Let S be the target distribution's running sums, as a function of t. Levels are the edges of a
    polygon that is inscribed in t^K and touches S from below with each edge. The width of an edge
    is the mass of its level.
    """
    count = count.double()
    dr, dt = (sort_by_rising_p_over_q if p.shape[-1] <= POINTS else _bin_by_ratio)(p, q)
    t = dt.cumsum(dim=-1)
    r = dr.cumsum(dim=-1)
    missing_mass = (t**count - r).amax(dim=-1, keepdim=True).clamp(min=0.0) + eps
    tiny = torch.finfo(t.dtype).tiny
    # sum q max(0, lambda - p/q) and sum (p - mu q)+ both equal ``missing_mass``.
    min_ratio = ((missing_mass + r) / t.clamp(min=tiny)).amin(dim=-1, keepdim=True).clamp(max=1.0)
    # sums over a token and all later ones
    tail_t = 1 - t + dt
    tail_r = 1 - r + dr
    gap = (tail_r - missing_mass) / tail_t.clamp(min=1e-15)
    max_ratio = (
        gap.masked_fill(tail_t <= 1e-15, -torch.inf).amax(dim=-1, keepdim=True).clamp(min=1.0)
    )
    sums = dr.maximum(min_ratio * dt).minimum(max_ratio * dt).cumsum(dim=-1)
    # The first edge starts at 0, with the smallest slope, lambda, and ends where t^K = lambda t.
    slopes = [min_ratio]
    start = min_ratio ** (1 / (count - 1).clamp(min=tiny))
    for level in range(1, LEVELS):
        at_end = start >= 1
        if at_end.is_cpu and at_end.all():  # on a GPU this would wait for the device
            slopes += [slopes[-1] + step * count for step in range(1, LEVELS + 1 - level)]
            break
        power = start**count
        distance = t - start
        slope = torch.where(distance > 1e-12, (sums - power) / distance, torch.inf)
        last_slope = (1 - power) / (1 - start).clamp(min=tiny)
        slope = slope.amin(dim=-1, keepdim=True).minimum(last_slope)
        end = _find_polygon_edge_end(start, power, slope, count)
        end = torch.where(end > start, end, 1.0)  # no progress: the last edge goes to 1
        slope = torch.where(end >= 1, last_slope, slope)
        # Levels after the last edge stay empty.
        slopes.append(torch.where(at_end, slopes[-1] + count, slope))
        start = torch.where(at_end, start, end)
    return min_ratio, max_ratio, torch.cat(slopes, dim=-1)


def _find_polygon_edge_end(start: Tensor, power: Tensor, slope: Tensor, count: Tensor) -> Tensor:
    """Finds the t <= 1 at which the line from (a, a^K) with the given slope meets t^K again, or a
    if it does not; all [B, 1]. ``start`` is a and ``power`` is a^K.
    """
    # t^K less the line falls up to ``lowest`` and rises from there on.
    lowest = (slope / count) ** (1 / (count - 1).clamp(min=1.0))
    low = lowest.maximum(start).clamp(max=1.0)
    probes = torch.lerp(low, torch.ones_like(low), _make_unit_linspace(low.device))  # [B, probes]
    excess = probes**count - power - slope * (probes - start)
    high = (excess < 0).sum(dim=-1, keepdim=True).clamp(1, probes.shape[-1] - 1)
    probe_low = probes.gather(-1, high - 1)
    probe_high = probes.gather(-1, high)
    excess_low = excess.gather(-1, high - 1)
    excess_high = excess.gather(-1, high)
    # Between two probes t^K is practically straight.
    fraction = excess_low / (excess_low - excess_high).clamp(max=-torch.finfo(low.dtype).tiny)
    end = torch.lerp(probe_low, probe_high, fraction.clamp(0.0, 1.0))
    return torch.where(lowest > start, end, start)


@cache
def _make_unit_linspace(device: torch.device) -> Tensor:
    return torch.linspace(0, 1, 513, dtype=torch.float64, device=device)


def _bin_by_ratio(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Sums p and q over bins of p/(p + q), which rises with p/q; [B, M], float64."""
    share = p / (p + q).clamp_(min=torch.finfo(p.dtype).tiny)
    index = (share * POINTS).nan_to_num_().clamp_(max=POINTS - 1).long()
    empty = torch.zeros((*p.shape[:-1], POINTS), dtype=torch.float64, device=p.device)
    p = torch.where(q > 0, p, 0.0)
    return empty.scatter_add(-1, index, p.double()), empty.scatter_add(-1, index, q.double())


@rule("top_and_sample", siblings=("top_and_sampled", "deterministic"), mark="exact")
def top_and_sample(
    p: Tensor,
    q: Tensor | None,
    tokens: Tensor,
    valid: Tensor,
    *,
    sampled: Count = 1,
) -> Verdict:
    """Tests the drawn children by the optimal rule, then the best ones as one-hot proposals.

    This is the "greedy" drafting of arXiv 2502.18779; with two children it is SpecHub (arXiv
    2411.05289), which draws pairs of the same distribution. Let Top be the draft's K - S best
    tokens, and w be q without them, renormalised. S children are drawn from w, then the tokens of
    Top follow as one-hot proposals. For S = 1 a node accepts with p(Top) + sum over the rest of
    min(p, w), which is the optimum for such candidates.

    q is the draft's distribution, with or without the best tokens. Drawn children are absent if the
    best tokens are all of q's support. ``sampled`` is S; all children are drawn if there are fewer.
    """
    if q is None:
        return naive(p, None, tokens, valid)
    assert q.shape[1] == 1, "the best are those of one draft"
    drawn_tokens = tokens[:, :sampled]
    best_tokens = tokens[:, sampled:]
    w = remove_best_tokens(q[:, 0], best_tokens, valid[:, sampled:]).unsqueeze(1)
    if drawn_tokens.shape[1] == 1:
        drawn_verdict = recursive_rejection(p, w, drawn_tokens, valid[:, :1], replacement=True)
    else:
        drawn_verdict = optimal(p, w, drawn_tokens, valid[:, :sampled])
    best_verdict = naive(drawn_verdict.residual, None, best_tokens, valid[:, sampled:])
    return Verdict(
        torch.cat([drawn_verdict.acceptance, best_verdict.acceptance], dim=-1),
        best_verdict.residual,
    )


def remove_best_tokens(q: Tensor, best: Tensor, present: Tensor) -> Tensor:
    """Computes w [B, V]: q without those ``best`` tokens that are ``present`` [B, K - S],
    renormalised; zero if nothing remains.
    """
    best_counts = torch.zeros_like(q).scatter_add_(-1, best, present.to(q.dtype))
    remainder = torch.where(best_counts > 0, 0.0, q)
    return normalise_or_fallback(remainder, torch.zeros_like(remainder))


def sort_by_rising_p_over_q(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts p and q [B, V] by rising p/q, in float64; p is set to 0 outside of q's support."""
    p = p.double()
    q = q.double()
    order = torch.where(q > 0, p / q, torch.inf).sort(dim=-1).indices
    return torch.where(q > 0, p, 0.0).gather(-1, order), q.gather(-1, order)
