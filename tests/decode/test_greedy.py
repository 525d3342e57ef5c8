"""At temperature 0 every decoder emits the tokens of transformers' own greedy generation."""

import functools

import pytest
import torch

from spec_bench.audit.models import first_difference
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from tests.families import (
    ARCHITECTURES,
    NEWER,
    PAPERS,
    VOCAB,
    decoder_settings,
    random_requests,
    tiny_pair,
)

REQUESTS = random_requests(12, 24)
BATCHES = [1, 4]


def asked(batch):
    """All requests in batches; some of all lengths one by one, where a pass is for one row."""
    return REQUESTS if batch > 1 else REQUESTS[::3]


@functools.cache
def generated(architecture):
    """Answers of ``generate`` by prompt id, without a stop token."""
    target, _ = tiny_pair(architecture)
    answers = {}
    for request in REQUESTS:
        ids = torch.tensor([request.prompt_ids])
        output = target.module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=request.max_new_tokens,
            min_new_tokens=request.max_new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers[request.prompt_id] = output[0, ids.shape[1] :].tolist()
    return answers


def differences_from_generate(decoder, architecture, batch):
    """Where a decoder's greedy answers leave those of ``generate``."""
    requests, expected = asked(batch), generated(architecture)
    answers = [
        list(generation.tokens)
        for start in range(0, len(requests), batch)
        for generation in decoder.generate(requests[start : start + batch], seed=0)
    ]
    found = [
        first_difference(decoder.target, request, expected[request.prompt_id], answer)
        for request, answer in zip(requests, answers, strict=True)
    ]
    return [difference for difference in found if difference]


CASES = [("llama", name, batch) for name in PAPERS for batch in BATCHES]
CASES += [("llama", name, 4) for name in NEWER]
CASES += [(architecture, "rsd_s", 4) for architecture in ARCHITECTURES if architecture != "llama"]
OTHERS = [(a, n, b) for a in ARCHITECTURES for n in (*PAPERS, *NEWER) for b in BATCHES]
OTHERS = [case for case in OTHERS if case not in CASES]


@pytest.mark.parametrize(
    ("architecture", "name", "batch"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)],
)
def test_greedy_output_equals_generate(architecture, name, batch):
    check(tiny_pair(architecture), architecture, name, batch)


def check(pair, architecture, name, batch):
    """Holds a decoder's greedy answers against those of ``generate``."""
    target, draft = pair
    greedy = SamplingSettings(temperature=0)
    decoder = build_decoder(decoder_settings(name), target, [draft], greedy, rows=batch)
    differences = differences_from_generate(decoder, architecture, batch)
    # A difference is only excused where a plain pass puts both logits within rounding of each
    # other, and such a thing is rare.
    assert all(difference.near_tie for difference in differences), differences
    assert len(differences) <= 1


@functools.cache
def static_pair(architecture):
    """The same models, run over fixed buffers."""
    target, draft = (
        HuggingFaceModel(model.module, VOCAB, model.device, "static")
        for model in tiny_pair(architecture)
    )
    return target, draft


FAST_STATIC = [("llama", "rsd_s", 4), ("opt", "rsd_s", 4)]


@pytest.mark.parametrize(
    ("architecture", "name", "batch"),
    [
        pytest.param(*case, marks=[] if case in FAST_STATIC else pytest.mark.slow)
        for case in (*CASES, *OTHERS)
    ],
)
def test_greedy_output_equals_generate_through_static_passes(architecture, name, batch):
    pair = static_pair(architecture)
    passes = pair[0].static
    assert passes is not None
    before = passes.counts.static
    check(pair, architecture, name, batch)
    assert passes.counts.static > before
    assert not passes.refusals


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_answers_are_not_trivial(architecture):
    answers = generated(architecture).values()
    assert len({token for answer in answers for token in answer}) > 5
    assert len({tuple(answer) for answer in answers}) >= 9


@pytest.mark.parametrize("name", ["rsd_c", "rsd_s"])
def test_trees_are_accepted_at_temperature_zero(name):
    target, draft = tiny_pair("llama")
    decoder = build_decoder(
        decoder_settings(name), target, [draft], SamplingSettings(temperature=0), rows=4
    )
    steps = [s for g in decoder.generate(REQUESTS[:4], seed=0) for s in g.steps]
    assert sum(step.accepted for step in steps) / len(steps) > 0.5
