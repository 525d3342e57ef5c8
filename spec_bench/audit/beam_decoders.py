"""Beam decoders end to end on a Markov chain: the joint law of the beams, order included.

With threshold 0 a layer's width is the number of drafts, so that the beams of DSBD must have the
law of beam sampling with as many beams at every layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.stats import chisquare

from spec_bench.audit.enumeration import EnumeratedDraws, law_of
from spec_bench.audit.markov import MarkovModel, random_markov
from spec_bench.core.beams import beam_probs, next_token_log_probs
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.beam_rows import BeamRow
from spec_bench.decode.config import DecoderConfig
from spec_bench.records.types import Request

PROMPT = (1, 0)
Beams = tuple[tuple[int, ...], ...]


class BeamSettings(NamedTuple):
    """Sampling settings for beams.

    Attributes:
        sampling: warps the joint law of all beams.
        stop_ids: tokens that end a beam.
        vocab: V of the chain; None: the case's.
    """

    sampling: SamplingSettings
    stop_ids: tuple[int, ...] = ()
    vocab: int | None = None


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

    Args:
        config: the decoder, with threshold 0 where it drafts.
        settings: sampling settings with ``probability_dtype`` float64.
        vocab: V of the chain.
        seed: of the chain.
        stop_ids: tokens that end a beam.
        alter: breaks the decoder on purpose, to see the audit catch it.

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
