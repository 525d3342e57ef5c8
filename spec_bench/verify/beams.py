"""Beam verification: which draft beams of one layer are accepted, and how many are wanted.

DSBD (arXiv 2409.16560), section 3, with its misprints corrected: a draft is accepted with
min(1, p'/q), not the inverse (Algorithm 1, line 16); P(m, 0) and the k = 0 term of eq. 5 are added;
a draft whose parent was rejected counts as one more rejection instead of being dropped.

Pure functions except ``verify_layer``, whose trials come from outside. Letters: R rows, T draft
beams of the layer in the order drawn, M cells (parent, token). Everywhere p [R, M] is the target's
beam distribution; q [R, M] the draft's over *all* its parents, restricted to accepted ones and not
renormalised: its missing mass is the chance of a draft below a rejected parent, where q is 0;
chain [R, T + 1, M] comes from ``residual_chain``, alpha [R, T] from ``acceptance_in_a_row``, and
width [R] is W.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.draws import TrialDraws
from spec_bench.records.types import Lossless
from spec_bench.verify.base import BeamVerifier, rule
from spec_bench.verify.rules import normalise


class LayerVerdict(NamedTuple):
    """The outcome of one layer's trials."""

    accepted: Tensor  # [R, T] which draft beams are accepted
    # [R] rejections since the last acceptance (or the start): which entry of the residual chain the
    # next beam comes from
    rejected_in_a_row: Tensor


def residual_chain(p: Tensor, q: Tensor, trials: int) -> Tensor:
    """Returns p' after 0, 1, ..., T rejections in a row [R, T + 1, M]; an acceptance resets it to
    the first entry, p itself.
    """
    chain = [p]
    for _ in range(trials):
        chain.append(normalise((chain[-1] - q).clamp(min=0.0), chain[-1]))
    return torch.stack(chain, dim=1)


def acceptance_in_a_row(chain: Tensor, q: Tensor) -> Tensor:
    """Returns alpha_j [R, T]: the chance of a draft after j rejections in a row (eq. 4)."""
    return torch.minimum(chain[:, :-1], q.unsqueeze(1)).sum(dim=-1).clamp(max=1.0)


def compute_accepted_count_probs(alpha: Tensor) -> Tensor:
    """Returns P(T, k) [R, T + 1]: how many of T drafts are accepted (eqs. 2 and 3), if none is
    rejected as surplus.

    Follows (rejections in a row, accepted) trial by trial, which is the paper's recursion with its
    base P(m, 0) = prod (1 - alpha_j).
    """
    rows, trials = alpha.shape
    law = alpha.new_zeros((rows, trials + 1, trials + 1))  # [R, in a row, accepted]
    law[:, 0, 0] = 1.0
    accept = torch.nn.functional.pad(alpha, (0, 1)).unsqueeze(-1)
    for _ in range(trials):
        grown = torch.zeros_like(law)
        grown[:, 0, 1:] = (law * accept).sum(dim=1)[:, :-1]
        grown[:, 1:] = (law * (1 - accept))[:, :-1]
        law = grown
    return law.sum(dim=1)


def layer_width(alpha: Tensor, threshold: float, least: int) -> Tensor:
    """Returns W [R]: the largest K with P(at least K accepted) >= t in [0, 1], no less than W_min
    in 1..T (eqs. 5 to 7).

    It depends on p and q alone and must be fixed before any draft of the layer is tested: the
    number that happened to be accepted would be biased.
    """
    at_least = (
        compute_accepted_count_probs(alpha).flip(-1).cumsum(dim=-1).flip(-1)
    )  # [R, T + 1] by K
    # Float32 sums may miss 1 by a rounding error; K = 0 is certain.
    reached = at_least[:, 1:] >= threshold
    return reached.long().cumprod(dim=-1).sum(dim=-1).clamp(min=least)


def verify_layer(
    chain: Tensor, q: Tensor, cells: Tensor, width: Tensor, trials: TrialDraws, first: int
) -> LayerVerdict:
    """Tests a layer's drafts, cells [R, T] in the order drawn, until W are accepted; ``first`` is
    the index of the layer's first trial.
    """
    rows = torch.arange(cells.shape[0], device=cells.device)
    in_a_row = torch.zeros_like(rows)
    standing = torch.zeros_like(rows)
    accepted = []
    for draft in range(cells.shape[1]):
        cell = cells[:, draft]
        drafted = q[rows, cell]
        wanted = chain[rows, in_a_row, cell]
        ratio = (wanted / torch.where(drafted > 0, drafted, 1.0)).clamp(max=1.0)
        open_place = standing < width
        chance = torch.where(open_place & (drafted > 0), ratio, 0.0)
        hit = trials.succeeds(first + draft, chance)
        in_a_row = torch.where(open_place, torch.where(hit, 0, in_a_row + 1), in_a_row)
        standing = standing + hit
        accepted.append(hit)
    return LayerVerdict(torch.stack(accepted, dim=1), in_a_row)


def completion(chain: Tensor, verdict: LayerVerdict, width: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distributions of up to T further beams [R, T, M] that a layer still lacks, one
    from p', the others from p, and how many are wanted [R]; an unwanted one's has all mass on cell
    0.
    """
    trials = verdict.accepted.shape[1]
    rows = torch.arange(width.shape[0], device=width.device)
    wanted = width - verdict.accepted.sum(dim=1)
    laws = chain[:, :1].expand(-1, trials, -1).clone()
    laws[:, 0] = chain[rows, verdict.rejected_in_a_row]
    nothing = torch.zeros_like(laws[:, :1])
    nothing[..., 0] = 1.0
    used = torch.arange(trials, device=width.device) < wanted.unsqueeze(1)
    return torch.where(used.unsqueeze(-1), laws, nothing), wanted


# The rules for several sequences at once; how they decide is in `verify.beams`.


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
    """Deterministic beam search: the likeliest continuations go on."""

    length_penalty: float = 1.0

    policy = "beam_root"
    searches = True


@rule("beam_rejection", mark="exact_beam")
@dataclass(frozen=True)
class BeamRejection(BeamVerifier):
    """Draft beams accepted or rejected layer by layer (DSBD, section 3)."""

    length_penalty: float = 1.0
    one_cache: bool = False  # only the best output beam of an iteration goes on (section 3.4)

    policy = "beams"
    models = 1

    @property
    def mark(self) -> Lossless:
        # With one cache an iteration's beams have the beam distribution given its input beam, but
        # choosing the best of them to go on is not part of that distribution.
        return "approximate" if self.one_cache else self.declared
