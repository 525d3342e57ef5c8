"""Beams: verification of a layer by enumeration, and beam decoders end to end on a Markov chain.

A layer's W output beams are i.i.d. from the beam law. A case is one layer: the target's beam law
over the parents that stand, the draft's over all its parents, and which of them stand. Every tuple
of drafts and every outcome of the trials is visited. Letters: T drafts, M cells, W output beams.

Of a decoder the joint law of the beams is checked, order included. With threshold 0 a layer's width
is the number of drafts, so that the beams of DSBD must have the law of beam sampling with as many
beams at every layer.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from scipy.stats import chisquare
from torch import Tensor

from spec_bench.audit.decoders import EnumeratedDraws, law_of
from spec_bench.audit.rules import adversarial_pairs
from spec_bench.audit.toys import MarkovModel, random_markov
from spec_bench.core.warp import SamplingSettings, beam_probs, next_token_log_probs
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_step import BeamRow
from spec_bench.decode.config import DecoderConfig
from spec_bench.records.types import Request
from spec_bench.verify.beams import (
    LayerVerdict,
    acceptance_in_a_row,
    accepted_count_law,
    completion,
    layer_width,
    residual_chain,
    verify_layer,
)

THRESHOLDS = (0.0, 0.5, 0.7, 0.9, 1.0)
PROMPT = (1, 0)
Beams = tuple[tuple[int, ...], ...]


class LayerCase(NamedTuple):
    """One layer."""

    p: Tensor  # [M] the target's beam law; no mass below rejected parents
    q: Tensor  # [M] the draft's, over all its parents
    stands: Tensor  # [M] whether the cell's parent stands


class LayerRule(NamedTuple):
    """The parts of beam verification, so that a test can put a broken one in."""

    chain: Callable[[Tensor, Tensor, int], Tensor] = residual_chain  # p' by rejections in a row
    width: Callable[[Tensor, float, int], Tensor] = layer_width  # W from (alpha, t, W_min)
    verify: Callable[..., LayerVerdict] = verify_layer  # the trials


AS_IT_IS = LayerRule()


class ListedTrials:
    """Trials that go as listed, with the probability of going so.

    Args:
        outcomes: [R, T] bool.
    """

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


def output_law(
    case: LayerCase, trials: int, threshold: float, least: int, rule: LayerRule
) -> tuple[Tensor, int]:
    """The joint law of a layer's output beams, [M] * W, accepted ones first in drawing order; and W
    for T trials, threshold t and at least W_min.
    """
    cells_count = case.p.shape[0]
    q = (case.q * case.stands).unsqueeze(0)
    chain = rule.chain(case.p.unsqueeze(0), q, trials)
    width = int(rule.width(acceptance_in_a_row(chain, q), threshold, least))
    drafts = torch.tensor(list(itertools.product(range(cells_count), repeat=trials)))
    hits = torch.tensor(list(itertools.product([False, True], repeat=trials)))
    cells = drafts.repeat_interleave(hits.shape[0], dim=0)
    listed = ListedTrials(hits.repeat(drafts.shape[0], 1))
    rows = cells.shape[0]
    chains, widths = chain.expand(rows, -1, -1), torch.full((rows,), width)
    verdict = rule.verify(chains, q.expand(rows, -1), cells, widths, listed, 0)
    weight = case.q[cells].prod(dim=1) * listed.probability
    laws, wanted = completion(chains, verdict, widths)
    total = torch.zeros([cells_count] * width, dtype=torch.float64)
    for row in weight.nonzero().flatten().tolist():
        kept = cells[row][verdict.accepted[row]].tolist()
        rest = [laws[row, slot] for slot in range(int(wanted[row]))]
        total[tuple(kept)] += weight[row] * _product(rest)
    return total, width


def layer_error(
    case: LayerCase, trials: int, threshold: float, least: int, rule: LayerRule = AS_IT_IS
) -> float:
    """Largest difference between the output beams' joint law and W independent draws."""
    law, width = output_law(case, trials, threshold, least, rule)
    return float((law - _product([case.p] * width)).abs().max())


def count_error(case: LayerCase, trials: int, law: Callable[[Tensor], Tensor]) -> float:
    """Largest error of P(T, k) against the trials themselves, none turned away as surplus."""
    q = (case.q * case.stands).unsqueeze(0)
    chain = residual_chain(case.p.unsqueeze(0), q, trials)
    predicted = law(acceptance_in_a_row(chain, q))[0]
    enumerated = torch.zeros(trials + 1, dtype=torch.float64)
    for drafts in itertools.product(range(case.p.shape[0]), repeat=trials):
        for hits in itertools.product([False, True], repeat=trials):
            listed = ListedTrials(torch.tensor([hits]))
            cells, width = torch.tensor([drafts]), torch.tensor([trials])
            verify_layer(chain, q, cells, width, listed, 0)
            enumerated[sum(hits)] += case.q[list(drafts)].prod() * listed.probability[0]
    return float((enumerated - predicted).abs().max())


def audit_layers(*, seed: int = 0, rule: LayerRule = AS_IT_IS) -> tuple[float, int]:
    """Largest error over all cases, one to three drafts and all thresholds; number of cases."""
    worst, cases = 0.0, 0
    for case in layer_cases(seed):
        for trials, threshold in itertools.product((1, 2, 3), THRESHOLDS):
            worst = max(worst, layer_error(case, trials, threshold, 1, rule))
            cases += 1
    return worst, cases


def audit_counts(
    *, seed: int = 0, law: Callable[[Tensor], Tensor] = accepted_count_law
) -> tuple[float, int]:
    """Largest error of the width recursion over all cases; number of cases."""
    cases = list(itertools.islice(layer_cases(seed), 0, None, 4))
    return max(count_error(case, 3, law) for case in cases), len(cases)


def _product(laws: list[Tensor]) -> Tensor:
    """The joint law of independent draws; 1 for none."""
    joint = torch.ones((), dtype=torch.float64)
    for law in laws:
        joint = joint.unsqueeze(-1) * law
    return joint


class BeamSettings(NamedTuple):
    """Sampling settings for beams."""

    sampling: SamplingSettings  # warps the joint law of all beams
    stop_ids: tuple[int, ...] = ()  # tokens that end a beam
    vocab: int | None = None  # V of the chain; None: the case's


BEAM_SETTINGS = {
    "temperature 1": BeamSettings(SamplingSettings(probability_dtype="float64")),
    "top-k 3, top-p 0.9, a stop token": BeamSettings(
        SamplingSettings(top_k=3, top_p=0.9, probability_dtype="float64"), (2,), 3
    ),
    "temperature 1.5, top-k 2, a stop token": BeamSettings(
        SamplingSettings(1.5, top_k=2, probability_dtype="float64"), (1,), 3
    ),
}


def beam_decoder(
    config: DecoderConfig, settings: SamplingSettings, *, vocab: int, seed: int, rows: int = 1
) -> tuple[BeamDecoder, MarkovModel]:
    """A beam decoder over a random chain, with a draft that resembles it."""
    target = random_markov(vocab, seed)
    draft = MarkovModel(target.logits + random_markov(vocab, 1000 + seed).logits)
    built = config.build(target, [draft] * config.drafts, settings, rows)
    assert isinstance(built, BeamDecoder)
    return built, target


def next_layer(
    target: MarkovModel,
    beams: Beams,
    width: int,
    settings: SamplingSettings,
    stop_ids: tuple[int, ...] = (),
) -> dict[Beams, float]:
    """Beam sampling's law of the next layer: ``width`` beams, i.i.d. from the beam law of
    ``beams``, what each has generated so far, stop tokens repeated.
    """
    ends = [PROMPT[-1] if not beam else beam[-1] for beam in beams]
    position = len(PROMPT) + len(beams[0]) - 1
    stopped = torch.tensor([[bool(beam) and beam[-1] in stop_ids for beam in beams]])
    logits = target.logits[position % 2, torch.tensor(ends)].unsqueeze(0)
    log_p = next_token_log_probs(logits, stopped, torch.tensor([ends]))
    values = [[_log_likelihood(target, beam, stop_ids) for beam in beams]]
    likelihood = torch.tensor(values, dtype=torch.float64)
    law = beam_probs(likelihood, log_p, settings)[0].tolist()
    children: dict[Beams, float] = {(): 1.0}
    for _ in range(width):
        grown: dict[Beams, float] = defaultdict(float)
        for chosen, probability in children.items():
            for cell, chance in enumerate(law):
                if chance:
                    parent, token = divmod(cell, target.vocab_size)
                    grown[(*chosen, (*beams[parent], token))] += probability * chance
        children = grown
    return children


def beam_law(
    target: MarkovModel,
    beams: Beams,
    layers: int,
    width: int,
    settings: SamplingSettings,
    stop_ids: tuple[int, ...] = (),
) -> dict[Beams, float]:
    """The law of the beams after some more layers of beam sampling."""
    law: dict[Beams, float] = {beams: 1.0}
    for _ in range(layers):
        grown: dict[Beams, float] = defaultdict(float)
        for state, probability in law.items():
            for after, chance in next_layer(target, state, width, settings, stop_ids).items():
                grown[after] += probability * chance
        law = grown
    return law


def enumerated_beam_error(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 2,
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    alter: Callable[[BeamDecoder], None] | None = None,
) -> tuple[float, int]:
    """Exact error of one iteration: its beams, then beam sampling up to the deepest layer.

    The decoder has threshold 0 where it drafts, the settings ``probability_dtype`` float64;
    ``alter`` breaks the decoder on purpose, to see the audit catch it.

    Returns:
        The largest |probability - beam sampling's| and the number of outcomes enumerated.
    """
    built, target = beam_decoder(config, settings, vocab=vocab, seed=seed)
    if alter:
        alter(built)
    request = Request("audit", PROMPT, built.depth + 2, stop_ids)

    def iteration(draws: EnumeratedDraws) -> Beams:
        built.make_draws = lambda generators: draws
        rows = built.begin([request], seed=0)
        built.step(rows)
        return beams_of(rows[0])

    law, count = law_of(iteration)
    layers, width = built.depth + 1, built.plan.width
    got: dict[Beams, float] = defaultdict(float)
    for beams, probability in law.items():
        rest = beam_law(target, beams, layers - len(beams[0]), width, settings, stop_ids)
        for after, chance in rest.items():
            got[after] += probability * chance
    expected = beam_law(target, ((),), layers, width, settings, stop_ids)
    assert set(got) <= set(expected), "an outcome that beam sampling cannot have"
    return max(abs(got[beams] - chance) for beams, chance in expected.items()), count


def beam_chi_square(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 2,
    layers: int = 4,
    samples: int = 5000,
    seed: int = 0,
    alter: Callable[[BeamDecoder], None] | None = None,
) -> float:
    """p-value of sampled beams after several iterations in batches, against beam sampling's law; 0
    if beams came out that cannot. A decoder that drafts has threshold 0; ``alter`` breaks it.
    """
    rows = 250
    built, target = beam_decoder(config, settings, vocab=vocab, seed=seed, rows=rows)
    if alter:
        alter(built)
    counts: Counter[Beams] = Counter()
    for start in range(0, samples, rows):
        requests = [Request(f"{start + row}", PROMPT, layers) for row in range(rows)]
        done = built.begin(requests, seed)
        active = list(done)
        while active:
            built.step(active)
            built.retire(active)
        counts.update(beams_of(row) for row in done)
    width = built.plan.width
    law = {b: p for b, p in beam_law(target, ((),), layers, width, settings).items() if p > 0}
    if set(counts) - set(law):
        return 0.0
    observed, expected = _pooled(counts, law, samples)
    return float(chisquare(observed, expected).pvalue) if len(expected) > 1 else 1.0


def beams_of(row: BeamRow) -> Beams:
    """What each beam of a row has generated, in the order of the beams."""
    return tuple(tuple(row.generated(beam)) for beam in range(row.width))


def _pooled(
    counts: Counter[Beams], law: dict[Beams, float], samples: int
) -> tuple[list[float], list[float]]:
    """Observed and expected counts, rare outcomes pooled to at least five expected."""
    observed, expected = [0.0], [0.0]
    for beams, chance in sorted(law.items(), key=lambda item: item[1]):
        if expected[-1] >= 5:
            observed.append(0.0)
            expected.append(0.0)
        observed[-1] += counts[beams]
        expected[-1] += chance * samples
    if len(expected) > 1 and expected[-1] < 5:
        observed[-2] += observed.pop()
        expected[-2] += expected.pop()
    scale = sum(observed) / sum(expected)
    return observed, [value * scale for value in expected]


def _log_likelihood(
    target: MarkovModel, tokens: tuple[int, ...], stop_ids: tuple[int, ...]
) -> float:
    """Of what a beam has generated, raw; repeats of a stop token cost nothing."""
    log_p, last, total = target.logits.log_softmax(dim=-1), PROMPT[-1], 0.0
    for step, token in enumerate(tokens):
        total += float(log_p[(len(PROMPT) + step - 1) % 2, last, token])
        if token in stop_ids:
            break
        last = token
    return total
