"""Same seed, same tokens: whatever the batch, the order of prompts, or the decoder's other name."""

import itertools
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.records.types import Request
from tests.families import DECODERS, VOCAB, decoder_settings, random_requests, tiny_pair

REQUESTS = random_requests(7, 16)
SETTINGS = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")


def answers(name, requests, batch, spec=None, seed=3):
    # float64 leaves no room for the rounding differences between shapes of matrix products.
    target, draft = tiny_pair("llama", torch.float64)
    decoder = build_decoder(decoder_settings(name, spec), target, [draft], SETTINGS, rows=batch)
    return {
        generation.prompt_id: generation.tokens
        for start in range(0, len(requests), batch)
        for generation in decoder.generate(requests[start : start + batch], seed)
    }


@pytest.mark.parametrize("name", DECODERS)
def test_tokens_do_not_depend_on_the_batch_or_the_order(name):
    alone = answers(name, REQUESTS, 1)
    assert answers(name, REQUESTS, 4) == alone
    shuffled = [REQUESTS[i] for i in (2, 6, 0, 4, 1, 3, 5)]
    assert answers(name, shuffled, 3) == alone


def test_another_seed_gives_other_tokens():
    assert answers("rsd_s", REQUESTS, 1, seed=3) != answers("rsd_s", REQUESTS, 1, seed=4)


@pytest.mark.parametrize("spec", ["2-2-1", "4-1-1", "3"])
def test_mcsd_without_replacement_and_rsd_c_are_the_same_decoder(spec):
    assert answers("mcsd_wor", REQUESTS, 4, spec) == answers("rsd_c", REQUESTS, 4, spec)


@pytest.mark.parametrize("name", ["sd", "spectr", "rsd_c", "rsd_s"])
def test_sampled_continuations_follow_the_targets_law_through_the_cache(name):
    """Three tokens over two or more target calls, against the exact law from plain passes."""
    target, draft = tiny_pair("llama", torch.float64)
    settings = SamplingSettings(temperature=1.0, top_k=2, probability_dtype="float64")
    decoder = build_decoder(
        decoder_settings(name, {"sd": "1", "rsd_c": "2"}.get(name, "2x1")),
        target,
        [draft],
        settings,
        rows=200,
    )
    prompt, length, samples = (5,), 3, 4000  # a longer one would be prefilled for every sample
    counts = Counter()
    for start in range(0, samples, 200):
        requests = [Request(f"{start + row}", prompt, length) for row in range(200)]
        counts.update(g.tokens for g in decoder.generate(requests, seed=0))
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*tokens, token): chance * prob
            for tokens, chance in law.items()
            for token, prob in enumerate(top_two(target.module, [*prompt, *tokens]))
            if prob > 0
        }
    assert len(law) == 8
    assert set(counts) <= set(law)
    expected = [chance * samples for chance in law.values()]
    assert chisquare([counts[tokens] for tokens in law], expected).pvalue > 1e-6


def top_two(module, tokens):
    with torch.inference_mode():
        logits = module(torch.tensor([tokens])).logits[0, -1]
    kept = torch.full_like(logits, -torch.inf)
    best = logits.topk(2)
    kept[best.indices] = best.values
    return kept.softmax(-1).tolist()


def test_stop_tokens_and_limits_end_an_answer_where_autoregressive_decoding_does():
    target, draft = tiny_pair("llama")
    greedy = SamplingSettings(temperature=0)
    request = REQUESTS[3]
    ar = build_decoder(decoder_settings("ar"), target, [], greedy)
    full = ar.generate([request], 0)[0]
    assert full.finish == "length"
    assert len(full.tokens) == request.max_new_tokens
    stop = full.tokens[7]
    first = full.tokens.index(stop)
    stopping = Request(request.prompt_id, request.prompt_ids, request.max_new_tokens, (stop,))
    for name in ("ar", "sd", "rsd_s"):
        decoder = build_decoder(decoder_settings(name), target, [draft], greedy)
        generation = decoder.generate([stopping], 0)[0]
        assert generation.finish == "stop"
        assert generation.tokens == full.tokens[: first + 1]


def test_records_add_up():
    target, draft = tiny_pair("llama")
    decoder = build_decoder(decoder_settings("rsd_s", "3x2"), target, [draft], SETTINGS, rows=4)
    for generation in decoder.generate(REQUESTS[:4], 0):
        assert sum(step.delivered for step in generation.steps) == len(generation.tokens)
        for step in generation.steps:
            assert step.nodes == 6
            assert step.depth == 2
            assert 0 <= step.accepted <= 2
            assert 1 <= step.delivered <= step.accepted + 1
        assert 0 < generation.draft_s + generation.target_s < generation.decode_s


def test_autoregressive_block_efficiency_is_exactly_one():
    target, _ = tiny_pair("llama")
    decoder = build_decoder(decoder_settings("ar"), target, [], SETTINGS)
    steps = decoder.generate(REQUESTS[:1], 0)[0].steps
    assert [step.accepted for step in steps] == [0] * REQUESTS[0].max_new_tokens


def test_widths_beyond_the_vocabulary_are_cut_to_the_support():
    target, draft = tiny_pair("llama")
    settings = SamplingSettings(temperature=1.0, top_k=3)
    for name, spec in itertools.product(("rsd_c", "rsd_s"), (f"{VOCAB + 5}", f"{VOCAB + 5}x2")):
        if (name == "rsd_s") == ("x" in spec):
            decoder = build_decoder(decoder_settings(name, spec), target, [draft], settings)
            assert len(decoder.generate(REQUESTS[:1], 0)[0].tokens) == REQUESTS[0].max_new_tokens
