"""Audits beams: the verification of a layer, and beam decoders end to end on a Markov chain.

A layer's W output beams must be i.i.d. from the beam law. A case is a layer: the target's beam law
over the accepted parents, the draft's beam law over all its parents, and a mask of the accepted
parents. Every tuple of drafts and every outcome of the trials is enumerated. Letters: T drafts, M
cells, W output beams.

For a decoder the joint law of the beams is checked, order included. With threshold 0 every layer is
as wide as the number of drafts, so the beams of DSBD must have the law of beam sampling with that
many beams at every layer.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.audit.decoders import (
    PROMPT,
    compute_chi_square_p_value,
    enumerate_iteration_law,
    make_markov_decoder,
)
from spec_bench.audit.rules import EnumeratedError, iter_random_and_adversarial_pairs
from spec_bench.audit.toys import MarkovModel
from spec_bench.core.warp import SamplingSettings, raw_next_log_probs, warped_beam_probs
from spec_bench.decode.beam_step import BeamRow
from spec_bench.decode.config import DecoderConfig
from spec_bench.records.types import Request
from spec_bench.verify.beams import (
    LayerVerdict,
    compute_acceptances_after_rejections,
    compute_accepted_count_probs,
    compute_layer_width,
    compute_missing_beam_probs_and_counts,
    compute_residual_chain,
    verify_layer,
)

THRESHOLDS = (0.0, 0.5, 0.7, 0.9, 1.0)
Beams = tuple[tuple[int, ...], ...]


class BeamLayerCase(NamedTuple):
    """Beam laws of one layer."""

    p: Tensor  # [M] the target's beam law; no mass below rejected parents
    q: Tensor  # [M] the draft's beam law, over all its parents
    has_accepted_parent: Tensor  # [M] whether the cell's parent is accepted


class EnumeratedTrialOutcomes:
    """Trials with given outcomes [B, T]; collects the outcomes' ``probability`` [B]."""

    def __init__(self, outcomes: Tensor) -> None:
        self._outcomes = outcomes
        self.probability = torch.ones(outcomes.shape[0], dtype=torch.float64)

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        hit = self._outcomes[:, index]
        self.probability = self.probability * torch.where(hit, probability, 1 - probability)
        return hit


def iter_layer_cases(seed: int = 0) -> Iterator[BeamLayerCase]:
    """Yields random and adversarial layers of two parents with two tokens each. Both parents are
    accepted, or only the first.
    """
    everywhere = torch.ones(4, dtype=torch.bool)
    first_only = torch.tensor([True, True, False, False])
    for p, drafts in iter_random_and_adversarial_pairs(4, seed, random_pairs=24):
        q = drafts[0]
        yield BeamLayerCase(p, q, everywhere)
        first_p = p * first_only
        if first_p.sum() > 0:
            yield BeamLayerCase(first_p / first_p.sum(), q, first_only)


class LayerOutcomes(NamedTuple):
    """All combinations of drafts and trial outcomes of a layer, a row each."""

    residual_chains: Tensor  # [B, T + 1, M]
    drafted_cells: Tensor  # [B, T] the drafts
    widths: Tensor  # [B]
    verdict: LayerVerdict
    probability: Tensor  # [B]


def _enumerate_layer_outcomes(
    case: BeamLayerCase,
    trials: int,
    width: Callable[[Tensor], int],
) -> LayerOutcomes:
    """Enumerates every tuple of drafts with every outcome of the trials; ``width`` computes W from
    the acceptances of the trials.
    """
    q = (case.q * case.has_accepted_parent).unsqueeze(0)
    chain = compute_residual_chain(case.p.unsqueeze(0), q, trials)
    drafts = torch.tensor(list(itertools.product(range(case.p.shape[0]), repeat=trials)))
    hits = torch.tensor(list(itertools.product([False, True], repeat=trials)))
    cells = drafts.repeat_interleave(hits.shape[0], dim=0)
    listed_trials = EnumeratedTrialOutcomes(hits.repeat(drafts.shape[0], 1))
    rows = cells.shape[0]
    chains = chain.expand(rows, -1, -1)
    widths = torch.full((rows,), width(compute_acceptances_after_rejections(chain, q)))
    verdict = verify_layer(chains, q.expand(rows, -1), cells, widths, listed_trials, 0)
    probability = case.q[cells].prod(dim=1) * listed_trials.probability
    return LayerOutcomes(chains, cells, widths, verdict, probability)


def enumerate_layer_law_and_width(
    case: BeamLayerCase, trials: int, threshold: float
) -> tuple[Tensor, int]:
    """Enumerates the joint law of a layer's output beams, [M] * W: accepted beams in drawing order,
    then the others. Returns the law and W, which is at least 1.
    """
    chains, cells, widths, verdict, weight = _enumerate_layer_outcomes(
        case, trials, lambda alpha: int(compute_layer_width(alpha, threshold, 1))
    )
    width = int(widths[0])
    laws, missing_count = compute_missing_beam_probs_and_counts(chains, verdict, widths)
    total = torch.zeros([case.p.shape[0]] * width, dtype=torch.float64)
    for row in weight.nonzero().flatten().tolist():
        accepted_cells = cells[row][verdict.accepted[row]].tolist()
        missing_laws = [laws[row, slot] for slot in range(int(missing_count[row]))]
        total[tuple(accepted_cells)] += weight[row] * _compute_joint_law(missing_laws)
    return total, width


def compute_layer_error(case: BeamLayerCase, trials: int, threshold: float) -> float:
    """Computes the largest difference between the joint law of the output beams and that of W
    independent draws.
    """
    law, width = enumerate_layer_law_and_width(case, trials, threshold)
    return float((law - _compute_joint_law([case.p] * width)).abs().max())


def compute_accepted_count_error(
    case: BeamLayerCase, trials: int, law: Callable[[Tensor], Tensor]
) -> float:
    """Computes the largest error of P(T, k), the probabilities of k accepted beams that ``law``
    computes, against enumerated trials.
    """
    chains, _, _, verdict, weight = _enumerate_layer_outcomes(case, trials, lambda alpha: trials)
    q = (case.q * case.has_accepted_parent).unsqueeze(0)
    predicted_probs = law(compute_acceptances_after_rejections(chains[:1], q))[0]
    enumerated_probs = torch.zeros_like(predicted_probs).index_add(
        0, verdict.accepted.sum(dim=1), weight
    )
    return float((enumerated_probs - predicted_probs).abs().max())


def enumerate_beam_layers_error(seed: int = 0) -> EnumeratedError:
    """Computes the largest ``compute_layer_error`` over all cases, 1 to 3 drafts and all
    thresholds, and counts the cases.
    """
    errors = [
        compute_layer_error(case, trials, threshold)
        for case in iter_layer_cases(seed)
        for trials, threshold in itertools.product((1, 2, 3), THRESHOLDS)
    ]
    return EnumeratedError(max(errors), len(errors))


def enumerate_accepted_counts_error(seed: int = 0) -> EnumeratedError:
    """Computes the largest error of the width recursion over every fourth case, and counts the
    cases.
    """
    cases = list(itertools.islice(iter_layer_cases(seed), 0, None, 4))
    errors = [compute_accepted_count_error(case, 3, compute_accepted_count_probs) for case in cases]
    return EnumeratedError(max(errors), len(errors))


def _compute_joint_law(laws: list[Tensor]) -> Tensor:
    """Computes the joint law of independent draws; 1 if there are none."""
    joint = torch.ones((), dtype=torch.float64)
    for law in laws:
        joint = joint.unsqueeze(-1) * law
    return joint


def compute_exact_beam_law(
    target: MarkovModel,
    beams: Beams,
    layers: int,
    width: int,
    settings: SamplingSettings,
    stop_ids: tuple[int, ...] = (),
) -> dict[Beams, float]:
    """Computes the law of the beams after ``layers`` more layers of beam sampling: ``width`` beams,
    i.i.d. from the beam law of their parents. A beam is the tuple of its generated tokens; after a
    stop token that token is repeated.
    """
    law: dict[Beams, float] = {beams: 1.0}
    for _ in range(layers):
        next_law: dict[Beams, float] = defaultdict(float)
        for parents, probability in law.items():
            ends = [beam[-1] if beam else PROMPT[-1] for beam in parents]
            position = len(PROMPT) + len(parents[0]) - 1
            has_stopped = torch.tensor([[bool(beam) and beam[-1] in stop_ids for beam in parents]])
            logits = target.logits[position % 2, torch.tensor(ends)].unsqueeze(0)
            log_p = raw_next_log_probs(logits, has_stopped, torch.tensor([ends]))
            values = [[_compute_log_likelihood(target, beam, stop_ids) for beam in parents]]
            likelihood = torch.tensor(values, dtype=torch.float64)
            chances = warped_beam_probs(likelihood, log_p, settings)[0].tolist()
            children = [
                ((*parents[cell // target.vocab_size], cell % target.vocab_size), chance)
                for cell, chance in enumerate(chances)
                if chance
            ]
            for drawn_children in itertools.product(children, repeat=width):
                new_beams = tuple(beam for beam, _ in drawn_children)
                next_law[new_beams] += probability * prod(chance for _, chance in drawn_children)
        law = next_law
    return law


def _compute_log_likelihood(
    target: MarkovModel,
    tokens: tuple[int, ...],
    stop_ids: tuple[int, ...],
) -> float:
    """Computes the raw log-likelihood of a beam's tokens up to its first stop token."""
    log_p = target.logits.log_softmax(dim=-1)
    previous = PROMPT[-1]
    total = 0.0
    for step, token in enumerate(tokens):
        total += float(log_p[(len(PROMPT) + step - 1) % 2, previous, token])
        if token in stop_ids:
            break
        previous = token
    return total


def read_beam_tokens(row: BeamRow) -> Beams:
    """Reads the generated tokens of each beam of a row, in order."""
    return tuple(tuple(row.get_generated_tokens(beam)) for beam in range(row.width))


def enumerate_beam_error(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    stop_ids: tuple[int, ...] = (),
    **options: Any,
) -> EnumeratedError:
    """Enumerates one iteration, continued by beam sampling to the deepest layer.

    ``settings`` need a ``probability_dtype`` of float64, and a decoder that drafts needs threshold
    0. ``options`` are those of ``make_markov_decoder``. Returns the largest difference from beam
    sampling's probabilities, and the number of outcomes.
    """
    decoder, target = make_markov_decoder(config, settings, **options)
    layers = decoder.depth + 1
    width = decoder.plan.width

    def continue_beams(beams: Beams) -> dict[Beams, float]:
        return compute_exact_beam_law(
            target, beams, layers - len(beams[0]), width, settings, stop_ids
        )

    request = Request("audit", PROMPT, decoder.depth + 2, stop_ids)
    outcome_law, count = enumerate_iteration_law(decoder, request, read_beam_tokens, continue_beams)
    expected_law = continue_beams(((),))
    assert set(outcome_law) <= set(expected_law), "an outcome that beam sampling cannot have"
    errors = (abs(outcome_law[beams] - chance) for beams, chance in expected_law.items())
    return EnumeratedError(max(errors), count)


def sample_beam_p_value(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    samples: int = 5000,
    seed: int = 0,
) -> float:
    """Samples beams over several iterations in batches; returns their p-value under the law of beam
    sampling. A decoder that drafts must have threshold 0.
    """
    rows = 250
    layers = 4
    decoder, target = make_markov_decoder(config, settings, vocab=2, seed=seed, rows=rows)
    counts: Counter[Beams] = Counter()
    for start in range(0, samples, rows):
        requests = [Request(f"{start + row}", PROMPT, layers) for row in range(rows)]
        batch_rows = decoder.prefill_requests(requests, seed)
        active = list(batch_rows)
        while active:
            decoder.step(active)
            decoder.drop_finished_rows(active)
        counts.update(read_beam_tokens(row) for row in batch_rows)
    return compute_chi_square_p_value(
        counts,
        compute_exact_beam_law(target, ((),), layers, decoder.plan.width, settings),
        min_expected=5,
    )
