"""Beam verification: accepts draft beams layer by layer, and computes how many beams a layer needs.

DSBD (arXiv 2409.16560), section 3, with its misprints corrected: a draft is accepted with
min(1, p'/q), not the inverse (Algorithm 1, line 16); P(m, 0) and the k = 0 term of eq. 5 are added;
a draft whose parent was rejected counts as one more rejection instead of being dropped.

All functions are pure except ``verify_layer``, which draws trials. Letters: R rows, T draft beams
of the layer in the order drawn, M cells (parent, token), W the width. p [R, M] is the target's beam
distribution; q [R, M] is the draft's over *all* its parents, 0 below rejected ones and not
renormalised: its missing mass is the probability of a draft below a rejected parent. ``chain``
[R, T + 1, M] comes from ``compute_residual_chain``, ``alpha`` [R, T] from
``compute_acceptances_after_rejections``.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import TrialDraws
from spec_bench.records.types import Lossless
from spec_bench.verify.base import BeamVerifier, rule
from spec_bench.verify.rules import normalise_or_fallback


class LayerVerdict(NamedTuple):
    """Result of one layer's trials."""

    accepted: Tensor  # [R, T] whether each draft beam is accepted
    # [R] rejections since the last acceptance (or the start), the index into the residual chain
    # from which the next beam is drawn
    rejected_in_a_row: Tensor


def compute_residual_chain(p: Tensor, q: Tensor, trials: int) -> Tensor:
    """Computes p' after 0, 1, ..., T rejections in a row, [R, T + 1, M]. An acceptance resets p' to
    the first entry, p itself.
    """
    chain = [p]
    for _ in range(trials):
        chain.append(normalise_or_fallback((chain[-1] - q).clamp(min=0.0), chain[-1]))
    return torch.stack(chain, dim=1)


def compute_acceptances_after_rejections(chain: Tensor, q: Tensor) -> Tensor:
    """Computes alpha_j [R, T], the acceptance of a draft after j rejections in a row (eq. 4)."""
    return torch.minimum(chain[:, :-1], q.unsqueeze(1)).sum(dim=-1).clamp(max=1.0)


def compute_accepted_count_probs(alpha: Tensor) -> Tensor:
    """Computes P(T, k) [R, T + 1], the probability that k of T drafts are accepted (eqs. 2 and 3)
    if none is rejected as surplus.

    Steps the state (rejections in a row, accepted) trial by trial, which is the paper's recursion
    with its base P(m, 0) = prod (1 - alpha_j).
    """
    rows, trials = alpha.shape
    state_probs = alpha.new_zeros((rows, trials + 1, trials + 1))  # [R, in a row, accepted]
    state_probs[:, 0, 0] = 1.0
    accept = torch.nn.functional.pad(alpha, (0, 1)).unsqueeze(-1)
    for _ in range(trials):
        next_probs = torch.zeros_like(state_probs)
        next_probs[:, 0, 1:] = (state_probs * accept).sum(dim=1)[:, :-1]
        next_probs[:, 1:] = (state_probs * (1 - accept))[:, :-1]
        state_probs = next_probs
    return state_probs.sum(dim=1)


def compute_layer_width(alpha: Tensor, threshold: float, min_width: int) -> Tensor:
    """Computes W [R]: the largest K with P(at least K accepted) >= t, at least W_min (eqs. 5 to 7).

    W depends on p and q alone and must be fixed before any draft of the layer is tested: a width
    that depends on the number accepted would bias the beams.
    """
    # [R, T + 1] P(at least K accepted)
    at_least = compute_accepted_count_probs(alpha).flip(-1).cumsum(dim=-1).flip(-1)
    # Float32 sums may miss 1 by rounding; K = 0 is certain.
    is_reached = at_least[:, 1:] >= threshold
    return is_reached.long().cumprod(dim=-1).sum(dim=-1).clamp(min=min_width)


def verify_layer(
    chain: Tensor,
    q: Tensor,
    cells: Tensor,
    width: Tensor,
    trials: TrialDraws,
    first_trial: int,
) -> LayerVerdict:
    """Tests a layer's draft cells [R, T] in the order drawn until W are accepted. ``first_trial``
    is the index of the layer's first trial.
    """
    rows = torch.arange(cells.shape[0], device=cells.device)
    in_a_row = torch.zeros_like(rows)
    accepted_count = torch.zeros_like(rows)
    hits = []
    for draft in range(cells.shape[1]):
        cell = cells[:, draft]
        q_cell = q[rows, cell]
        p_cell = chain[rows, in_a_row, cell]
        ratio = (p_cell / torch.where(q_cell > 0, q_cell, 1.0)).clamp(max=1.0)
        open_place = accepted_count < width
        chance = torch.where(open_place & (q_cell > 0), ratio, 0.0)
        hit = trials.succeeds(first_trial + draft, chance)
        in_a_row = torch.where(open_place, torch.where(hit, 0, in_a_row + 1), in_a_row)
        accepted_count = accepted_count + hit
        hits.append(hit)
    return LayerVerdict(torch.stack(hits, dim=1), in_a_row)


def compute_missing_beam_probs_and_counts(
    chain: Tensor,
    verdict: LayerVerdict,
    width: Tensor,
) -> tuple[Tensor, Tensor]:
    """Computes the distributions [R, T, M] of the beams that a layer still needs, and their number
    [R]. The first beam's is p', the others' is p; unused entries have all mass on cell 0.
    """
    trials = verdict.accepted.shape[1]
    rows = torch.arange(width.shape[0], device=width.device)
    missing_count = width - verdict.accepted.sum(dim=1)
    distributions = chain[:, :1].expand(-1, trials, -1).clone()
    distributions[:, 0] = chain[rows, verdict.rejected_in_a_row]
    unused_beam = torch.zeros_like(distributions[:, :1])
    unused_beam[..., 0] = 1.0
    is_used = torch.arange(trials, device=width.device) < missing_count.unsqueeze(1)
    return torch.where(is_used.unsqueeze(-1), distributions, unused_beam), missing_count


@rule("beam_sampling", mark="exact_beam")
@dataclass(frozen=True)
class BeamSampling(BeamVerifier):
    """Beams drawn i.i.d. from the warped joint distribution of all beams (DSBD, arXiv 2409.16560,
    eq. 1).
    """

    length_penalty: float = 1.0

    policy = "beam_root"


@rule("beam_search", mark="exact_beam")
@dataclass(frozen=True)
class LikeliestBeams(BeamVerifier):
    """Deterministic beam search: keeps the likeliest continuations."""

    length_penalty: float = 1.0

    policy = "beam_root"
    searches = True


@rule("beam_rejection", mark="exact_beam")
@dataclass(frozen=True)
class BeamRejection(BeamVerifier):
    """Accepts or rejects draft beams layer by layer (DSBD, section 3)."""

    length_penalty: float = 1.0
    one_cache: bool = False  # only the best output beam of an iteration continues (section 3.4)

    policy = "beams"
    models = 1

    @property
    def mark(self) -> Lossless:
        # With one cache an iteration's beams follow the beam distribution given its input beam, but
        # continuing with the best of them is not part of that distribution.
        return "approximate" if self.one_cache else self.declared
