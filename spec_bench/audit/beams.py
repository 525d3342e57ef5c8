"""Beams: verification of a layer by enumeration, and beam decoders end to end on a Markov chain.

A layer's W output beams are i.i.d. from the beam law. A case is one layer: the target's beam law
over the parents that stand, the draft's over all its parents, and which of them stand. Every tuple
of drafts and every outcome of the trials is visited. Letters: T drafts, M cells, W output beams.

Of a decoder the joint law of the beams is checked, order included. With threshold 0 a layer's width
is the number of drafts, so that the beams of DSBD must have the law of beam sampling with as many
beams at every layer.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.audit.decoders import PROMPT, enumerate_iteration, markov_decoder, p_value
from spec_bench.audit.rules import adversarial_pairs
from spec_bench.audit.toys import MarkovModel
from spec_bench.core.warp import SamplingSettings, beam_probs, next_token_log_probs
from spec_bench.decode.beam_step import BeamRow
from spec_bench.decode.config import DecoderConfig
from spec_bench.records.types import Request
from spec_bench.verify.beams import (
    LayerVerdict,
    compute_acceptances,
    compute_accepted_count_probs,
    compute_layer_width,
    compute_missing_beams,
    compute_residual_chain,
    verify_layer,
)

THRESHOLDS = (0.0, 0.5, 0.7, 0.9, 1.0)
Beams = tuple[tuple[int, ...], ...]


class LayerCase(NamedTuple):
    """One layer."""

    p: Tensor  # [M] the target's beam law; no mass below rejected parents
    q: Tensor  # [M] the draft's, over all its parents
    stands: Tensor  # [M] whether the cell's parent stands


class ListedTrials:
    """Trials that go as listed, [B, T] bool, with the probability of going so."""

    def __init__(self, outcomes: Tensor) -> None:
        self._outcomes = outcomes
        self.probability = torch.ones(outcomes.shape[0], dtype=torch.float64)

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        hit = self._outcomes[:, index]
        self.probability = self.probability * torch.where(hit, probability, 1 - probability)
        return hit


def layer_cases(seed: int = 0) -> Iterator[LayerCase]:
    """Random and adversarial layers of two parents with two tokens each: both parents standing,
    one of them, and the same laws cut by truncation.
    """
    everywhere = torch.ones(4, dtype=torch.bool)
    first_only = torch.tensor([True, True, False, False])
    for p, drafts in adversarial_pairs(4, seed, random_pairs=24):
        q = drafts[0]
        yield LayerCase(p, q, everywhere)
        kept = p * first_only
        if kept.sum() > 0:
            yield LayerCase(kept / kept.sum(), q, first_only)


def _enumerate_outcomes(
    case: LayerCase, trials: int, width: Callable[[Tensor], int]
) -> tuple[Tensor, Tensor, Tensor, LayerVerdict, Tensor]:
    """Every tuple of drafts with every outcome of their trials, a row each: the chains [B, T + 1,
    M], the drafts [B, T], W [B], the verdict, the probability [B].
    """
    q = (case.q * case.stands).unsqueeze(0)
    chain = compute_residual_chain(case.p.unsqueeze(0), q, trials)
    drafts = torch.tensor(list(itertools.product(range(case.p.shape[0]), repeat=trials)))
    hits = torch.tensor(list(itertools.product([False, True], repeat=trials)))
    cells = drafts.repeat_interleave(hits.shape[0], dim=0)
    listed = ListedTrials(hits.repeat(drafts.shape[0], 1))
    rows = cells.shape[0]
    chains = chain.expand(rows, -1, -1)
    widths = torch.full((rows,), width(compute_acceptances(chain, q)))
    verdict = verify_layer(chains, q.expand(rows, -1), cells, widths, listed, 0)
    return chains, cells, widths, verdict, case.q[cells].prod(dim=1) * listed.probability


def output_law(case: LayerCase, trials: int, threshold: float) -> tuple[Tensor, int]:
    """The joint law of a layer's output beams, [M] * W, accepted ones first in drawing order; and W
    for T trials, threshold t and at least one beam.
    """
    chains, cells, widths, verdict, weight = _enumerate_outcomes(
        case, trials, lambda alpha: int(compute_layer_width(alpha, threshold, 1))
    )
    width = int(widths[0])
    laws, wanted = compute_missing_beams(chains, verdict, widths)
    total = torch.zeros([case.p.shape[0]] * width, dtype=torch.float64)
    for row in weight.nonzero().flatten().tolist():
        kept = cells[row][verdict.accepted[row]].tolist()
        rest = [laws[row, slot] for slot in range(int(wanted[row]))]
        total[tuple(kept)] += weight[row] * _product(rest)
    return total, width


def layer_error(case: LayerCase, trials: int, threshold: float) -> float:
    """Largest difference between the output beams' joint law and W independent draws."""
    law, width = output_law(case, trials, threshold)
    return float((law - _product([case.p] * width)).abs().max())


def count_error(case: LayerCase, trials: int, law: Callable[[Tensor], Tensor]) -> float:
    """Largest error of P(T, k) against the trials themselves, none turned away as surplus."""
    chains, _, _, verdict, weight = _enumerate_outcomes(case, trials, lambda alpha: trials)
    q = (case.q * case.stands).unsqueeze(0)
    predicted = law(compute_acceptances(chains[:1], q))[0]
    enumerated = torch.zeros_like(predicted).index_add(0, verdict.accepted.sum(dim=1), weight)
    return float((enumerated - predicted).abs().max())


def audit_layers(seed: int = 0) -> tuple[float, int]:
    """Largest error over all cases, one to three drafts and all thresholds; number of cases."""
    errors = [
        layer_error(case, trials, threshold)
        for case in layer_cases(seed)
        for trials, threshold in itertools.product((1, 2, 3), THRESHOLDS)
    ]
    return max(errors), len(errors)


def audit_counts(seed: int = 0) -> tuple[float, int]:
    """Largest error of the width recursion over all cases; number of cases."""
    cases = list(itertools.islice(layer_cases(seed), 0, None, 4))
    return max(count_error(case, 3, compute_accepted_count_probs) for case in cases), len(cases)


def _product(laws: list[Tensor]) -> Tensor:
    """Returns the joint law of independent draws; 1 for none."""
    joint = torch.ones((), dtype=torch.float64)
    for law in laws:
        joint = joint.unsqueeze(-1) * law
    return joint


def beam_law(
    target: MarkovModel,
    beams: Beams,
    layers: int,
    width: int,
    settings: SamplingSettings,
    stop_ids: tuple[int, ...] = (),
) -> dict[Beams, float]:
    """The law of the beams after some more layers of beam sampling: ``width`` beams, i.i.d. from
    the beam law of those above. Each is what it has generated so far, stop tokens repeated.
    """
    law: dict[Beams, float] = {beams: 1.0}
    for _ in range(layers):
        grown: dict[Beams, float] = defaultdict(float)
        for above, probability in law.items():
            ends = [beam[-1] if beam else PROMPT[-1] for beam in above]
            position = len(PROMPT) + len(above[0]) - 1
            stopped = torch.tensor([[bool(beam) and beam[-1] in stop_ids for beam in above]])
            logits = target.logits[position % 2, torch.tensor(ends)].unsqueeze(0)
            log_p = next_token_log_probs(logits, stopped, torch.tensor([ends]))
            values = [[_log_likelihood(target, beam, stop_ids) for beam in above]]
            likelihood = torch.tensor(values, dtype=torch.float64)
            chances = beam_probs(likelihood, log_p, settings)[0].tolist()
            children = [
                ((*above[cell // target.vocab_size], cell % target.vocab_size), chance)
                for cell, chance in enumerate(chances)
                if chance
            ]
            for chosen in itertools.product(children, repeat=width):
                below = tuple(beam for beam, _ in chosen)
                grown[below] += probability * prod(chance for _, chance in chosen)
        law = grown
    return law


def _log_likelihood(
    target: MarkovModel, tokens: tuple[int, ...], stop_ids: tuple[int, ...]
) -> float:
    """Of what a beam has generated, raw; repeats of a stop token cost nothing."""
    log_p = target.logits.log_softmax(dim=-1)
    last = PROMPT[-1]
    total = 0.0
    for step, token in enumerate(tokens):
        total += float(log_p[(len(PROMPT) + step - 1) % 2, last, token])
        if token in stop_ids:
            break
        last = token
    return total


def read_beams(row: BeamRow) -> Beams:
    """Returns what each beam of a row has generated, in the order of the beams."""
    return tuple(tuple(row.get_generated_tokens(beam)) for beam in range(row.width))


def enumerate_beam_error(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    stop_ids: tuple[int, ...] = (),
    **given: Any,
) -> tuple[float, int]:
    """Exact error of one iteration: its beams, then beam sampling up to the deepest layer.

    The decoder has threshold 0 where it drafts, the settings ``probability_dtype`` float64; more
    arguments are ``markov_decoder``'s. The largest |probability - beam sampling's| and the number
    of outcomes enumerated.
    """
    built, target = markov_decoder(config, settings, **given)
    layers = built.depth + 1
    width = built.plan.width

    def goes_on(beams: Beams) -> dict[Beams, float]:
        return beam_law(target, beams, layers - len(beams[0]), width, settings, stop_ids)

    request = Request("audit", PROMPT, built.depth + 2, stop_ids)
    got, count = enumerate_iteration(built, request, read_beams, goes_on)
    expected = goes_on(((),))
    assert set(got) <= set(expected), "an outcome that beam sampling cannot have"
    return max(abs(got[beams] - chance) for beams, chance in expected.items()), count


def beam_chi_square(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    samples: int = 5000,
    seed: int = 0,
) -> float:
    """p-value of sampled beams after several iterations in batches, against beam sampling's law. A
    decoder that drafts has threshold 0.
    """
    rows = 250
    layers = 4
    built, target = markov_decoder(config, settings, vocab=2, seed=seed, rows=rows)
    counts: Counter[Beams] = Counter()
    for start in range(0, samples, rows):
        requests = [Request(f"{start + row}", PROMPT, layers) for row in range(rows)]
        done = built.begin(requests, seed)
        active = list(done)
        while active:
            built.step(active)
            built.retire(active)
        counts.update(read_beams(row) for row in done)
    return p_value(counts, beam_law(target, ((),), layers, built.plan.width, settings), least=5)
