"""At temperature 0 every decoder emits the tokens of transformers' own greedy generation."""

from __future__ import annotations

import functools

import pytest
import torch

from spec_bench.audit.greedy import first_difference
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from tests.families import ARCHITECTURES, DECODERS, decoder_settings, random_requests, tiny_pair

REQUESTS = random_requests(20, 24)


@functools.cache
def generated(architecture: str) -> list[list[int]]:
    """Answers of ``generate``, without a stop token."""
    target, _ = tiny_pair(architecture)
    answers = []
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
        answers.append(output[0, ids.shape[1] :].tolist())
    return answers


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_equals_generate(architecture: str, name: str, batch: int) -> None:
    target, draft = tiny_pair(architecture)
    greedy = SamplingSettings(temperature=0)
    decoder = build_decoder(decoder_settings(name), target, [draft], greedy, rows=batch)
    answers = [
        list(generation.tokens)
        for start in range(0, len(REQUESTS), batch)
        for generation in decoder.generate(REQUESTS[start : start + batch], seed=0)
    ]
    found = [
        first_difference(target, request, *pair)
        for request, *pair in zip(REQUESTS, generated(architecture), answers, strict=True)
    ]
    differences = [difference for difference in found if difference]
    # A difference is only excused where a plain pass puts both logits within rounding of each
    # other, and such a thing is rare.
    assert all(difference.near_tie for difference in differences), differences
    assert len(differences) <= 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_answers_are_not_trivial(architecture: str) -> None:
    answers = generated(architecture)
    assert len({token for answer in answers for token in answer}) > 5
    assert len({tuple(answer) for answer in answers}) >= 15


@pytest.mark.parametrize("name", ["rsd_c", "rsd_s"])
def test_trees_are_accepted_at_temperature_zero(name: str) -> None:
    target, draft = tiny_pair("llama")
    decoder = build_decoder(
        decoder_settings(name), target, [draft], SamplingSettings(temperature=0), rows=4
    )
    steps = [s for g in decoder.generate(REQUESTS[:4], seed=0) for s in g.steps]
    assert sum(step.accepted for step in steps) / len(steps) > 0.5
