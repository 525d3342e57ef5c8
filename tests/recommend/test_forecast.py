"""A forecast is the decoder's own mean: every text and every draw enumerated."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from spec_bench.audit.decoders import PROMPT, markov_decoder
from spec_bench.audit.enumeration import EnumeratedDraws, outcomes
from spec_bench.audit.markov import MarkovModel
from spec_bench.core.tree import Siblings
from spec_bench.core.warp import SamplingSettings, probs
from spec_bench.decode.config import DecoderConfig, read_decoder
from spec_bench.recommend.calls import (
    at_least_by_block,
    at_least_by_level,
    drafted_on,
    expected_calls,
)
from spec_bench.recommend.decoders import Known, Text, calls_for, why_not
from spec_bench.recommend.passing import Children, drawn, passing
from spec_bench.records.types import Request
from spec_bench.tree.base import GrownTree
from spec_bench.verify.rules import k_seq, recursive_rejection
from spec_bench.verify.top_and_sample import top_and_sample
from tests.families import decoder_settings

WARM = SamplingSettings(probability_dtype="float64")
LENGTH = 5


def every_set(siblings: Siblings):
    """Every way that children may fall out, with its probability."""

    def sets(q: Tensor, width: int) -> list[Children]:
        vocab = q.shape[1]
        if siblings == "top_and_sampled":
            return beside_the_best(q, width)
        found = []
        distinct = siblings == "without_replacement"
        ways = itertools.permutations if distinct else lambda v, w: itertools.product(v, repeat=w)
        for tokens in ways(range(vocab), min(width, vocab)):
            weight, left = torch.ones(len(q), dtype=q.dtype), torch.ones(len(q), dtype=q.dtype)
            for token in tokens:
                weight = weight * q[:, token] / left
                left = left - q[:, token] if distinct else left
            index = torch.tensor(tokens).expand(len(q), -1)
            found.append(Children(index, torch.ones_like(index, dtype=torch.bool), weight))
        return found

    return sets


def beside_the_best(q: Tensor, width: int) -> list[Children]:
    """Every token that may be drawn beside the ``width - 1`` best."""
    best = q.topk(width - 1).indices
    rest = q.scatter(1, best, 0.0)
    law = rest / rest.sum(dim=1, keepdim=True)
    found = []
    for token in range(q.shape[1]):
        tokens = torch.cat([torch.full((len(q), 1), token), best], dim=1)
        found.append(Children(tokens, torch.ones_like(tokens, dtype=torch.bool), law[:, token]))
    return found


def teacher_forced(model: MarkovModel, tokens: Sequence[int]) -> Tensor:
    """Laws [T, V] at each position of a text behind the prompt."""
    said = torch.tensor([PROMPT[-1], *tokens[:-1]])
    positions = torch.arange(len(PROMPT) - 1, len(PROMPT) - 1 + len(tokens))
    return probs(model.logits[positions % 2, said], WARM)


def forecast(config: DecoderConfig, vocab: int, length: int) -> float:
    """Mean calls, over every text."""
    built, target = markov_decoder(config, WARM, vocab=vocab)
    (draft,) = built.drafts
    assert isinstance(config.tree, GrownTree)
    sets = every_set(config.tree.siblings(WARM))
    total = 0.0
    for tokens, chance in target.law(PROMPT, length, WARM).items():
        laws = [teacher_forced(model, tokens) for model in (target, draft)]
        at = torch.tensor(tokens).unsqueeze(1)
        text = Text(torch.tensor(tokens), *laws, laws[1].gather(1, at).squeeze(1))
        total += chance * calls_for(config, text, WARM, torch.Generator(), sets=sets)
    return total


def enumerated(config: DecoderConfig, vocab: int, length: int) -> float:
    """Mean calls of the decoder itself, over every outcome of its draws."""
    built, _ = markov_decoder(config, WARM, vocab=vocab)

    def calls(draws: EnumeratedDraws) -> int:
        built.make_draws = lambda generators: draws
        rows = built.begin([Request("forecast", PROMPT, length)], seed=0)
        while rows[0].finish is None:
            built.step(rows)
        return len(rows[0].steps)

    return sum(chance * count for chance, count in outcomes(calls))


@pytest.mark.parametrize(
    ("name", "spec", "vocab", "length"),
    [
        *[("sd", "2", 2, 3), ("block", "2", 2, 3), ("rsd_c", "2", 3, 2), ("rsd_c", "1-2", 2, 2)],
        *[("specinfer", "2-1", 2, 2), ("mcns", "2", 3, 2)],
        *[("top_and_sample", "2", 3, 2), ("top_and_sample", "1-2", 3, 2)],
    ],
)
def test_the_forecast_is_the_mean_of_the_decoder_itself(
    name: str, spec: str, vocab: int, length: int
) -> None:
    config = read_decoder(decoder_settings(name, spec), WARM)
    wanted = enumerated(config, vocab, length)
    assert 1 < wanted < length
    assert forecast(config, vocab, length) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("verifier", "confidence", "path"),
    [("recursive_rejection", 0.5, None), ("traversal", 0.0, 0.5)],
)
def test_a_chain_that_stops_is_forecast_by_where_it_stops_on_the_text(
    verifier: str, confidence: float, path: float | None
) -> None:
    chain = {"policy": "dynamic_chain", "depth": 2, "confidence": confidence, "path": path}
    settings = {**decoder_settings("sd_dynamic", "2"), "tree": chain}
    config = read_decoder({**settings, "verifier": {"rule": verifier}}, WARM)
    wanted = enumerated(config, 2, 3)
    assert forecast(config, 2, 3) == pytest.approx(wanted, abs=1e-12)
    on = {**chain, "confidence": 0.0, "path": None}
    never = read_decoder({**settings, "tree": on, "verifier": {"rule": verifier}}, WARM)
    assert wanted - forecast(never, 2, 3) > 1e-3  # it does stop


def test_the_product_of_mean_chances_would_be_off() -> None:
    """Chances of neighbouring positions hang together, which is why the text is kept."""
    config = read_decoder(decoder_settings("sd", "2"), WARM)
    built, target = markov_decoder(config, WARM, vocab=3)
    (draft,) = built.drafts
    mean, weight = torch.zeros(LENGTH, dtype=torch.float64), 0.0
    for tokens, chance in target.law(PROMPT, LENGTH, WARM).items():
        p, q = (teacher_forced(model, tokens) for model in (target, draft))
        at = torch.tensor(tokens).unsqueeze(1)
        mean += chance * (q.gather(1, at) / p.gather(1, at)).clamp(max=1).squeeze(1)
        weight += chance
    assert weight == pytest.approx(1)
    averaged = expected_calls(at_least_by_level(mean.expand(2, -1)))
    assert abs(averaged - forecast(config, 3, LENGTH)) > 1e-3


@pytest.mark.parametrize("siblings", ["iid", "without_replacement", "top_and_sampled"])
def test_draws_estimate_what_enumeration_gives(siblings: Siblings) -> None:
    torch.manual_seed(0)
    p, q = (torch.randn(4, 4, dtype=torch.float64).softmax(-1) for _ in range(2))
    token = (p / q).argmax(dim=1)  # which the draft drafts too rarely
    generator = torch.Generator().manual_seed(1)
    others = {"iid": k_seq, "top_and_sampled": top_and_sample}
    rule = others.get(siblings, recursive_rejection)
    exact = passing(rule, p, q, token, 2, every_set(siblings))
    estimate = passing(rule, p, q, token, 2, drawn(siblings, 3000, generator))
    assert ((exact > 0) & (exact < 1)).all()
    said = p.gather(1, token.unsqueeze(1)).squeeze(1)
    assert ((estimate - exact) * said).abs().max() < 0.02  # of the mass that passes


def test_levels_have_draws_of_their_own_and_decoders_share_them() -> None:
    """A product of estimates from the same draws would be biased."""
    torch.manual_seed(0)
    laws = [torch.randn(6, 8, dtype=torch.float64).softmax(-1) for _ in range(2)]
    text, known = Text(torch.arange(6), *laws, torch.ones(6)), Known()
    generator = torch.Generator().manual_seed(1)
    deep, wide = (read_decoder(decoder_settings("rsd_c", spec), WARM) for spec in ("2-2", "2-3"))
    first = calls_for(deep, text, WARM, generator, 4, known=known)
    one, two = known.values()
    assert not torch.equal(one, two)
    assert calls_for(deep, text, WARM, generator, 4, known=known) == first
    calls_for(wide, text, WARM, generator, 4, known=known)
    assert len(known) == 3


def test_calls_by_hand() -> None:
    sure, never = torch.ones(2, 6), torch.zeros(2, 6)
    assert expected_calls(at_least_by_level(sure)) == 2  # 3 tokens a call
    assert expected_calls(at_least_by_level(never)) == 6
    assert expected_calls(torch.zeros(0, 6)) == 6  # plain decoding
    # One level passed with chance 1/2 at the first of two positions: one call or two.
    assert expected_calls(at_least_by_level(torch.tensor([[0.5, 0.9]]))) == 1.5


def test_a_chain_drafts_on_behind_what_it_was_sure_of() -> None:
    sure = torch.tensor([0.9, 0.3, 0.8, 0.7])
    assert drafted_on(sure, 3, 0.4, None).tolist() == [[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 0]]
    assert drafted_on(sure, 3, 0.0, 0.6)[2].tolist() == [0, 0, 0, 0]
    assert drafted_on(sure, 3, 0.0, 0.5)[2].tolist() == [0, 0, 1, 0]


def test_block_keeps_the_least_ratio_so_far() -> None:
    ratio = torch.tensor([2.0, 0.25, 4.0])
    assert at_least_by_block(ratio, 3)[:, 0].tolist() == [1.0, 0.5, 0.5]
    assert at_least_by_block(ratio, 3)[:, 2].tolist() == [1.0, 0.0, 0.0]


def test_what_cannot_be_forecast_says_why() -> None:
    config = read_decoder(decoder_settings("rsd_s", "2x2"), WARM)
    assert "'stochastic_beam'" in (why_not(config) or "")
    with pytest.raises(ValueError, match="decoder 'rsd_s': a 'stochastic_beam' tree"):
        calls_for(config, Text(*torch.zeros(4, 1, 1).unbind()), WARM, torch.Generator())
    for name, spec in (("opt_tree", "2x2@3"), ("dyspec", "2x2@3"), ("spectr", "2x2")):
        assert why_not(read_decoder(decoder_settings(name, spec), WARM))
