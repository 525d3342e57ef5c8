"""Every kind of model answers as ``generate`` does, whatever its layers attend to."""

import functools

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from tests.families import decoder_settings
from tests.kinds import CORE, KINDS, generated, long_requests, tiny_module, tiny_pair_of

WINDOWED = [name for name, kind in KINDS.items() if kind.open]
FEW, MANY = long_requests(4, 12), long_requests(8, 24)
WARM = SamplingSettings(temperature=1.5, top_p=0.95, probability_dtype="float64")


@functools.cache
def expected(name, many):
    """Greedy answers of a module that no decoder has touched."""
    return generated(tiny_module(name), MANY if many else FEW)


def answers(name, decoder, batch, many, spec=None, settings=None):
    """What one decoder answers, greedily unless told otherwise."""
    settings = settings or SamplingSettings(temperature=0)
    target, draft = tiny_pair_of(name)
    built = build_decoder(decoder_settings(decoder, spec), target, [draft], settings, rows=batch)
    requests = MANY if many else FEW
    return [
        answer
        for start in range(0, len(requests), batch)
        for answer in built.generate(requests[start : start + batch], seed=0)
    ]


def tokens(generations):
    return [list(generation.tokens) for generation in generations]


@pytest.mark.parametrize(("decoder", "batch"), [("ar", 4), ("rsd_s", 1), ("rsd_s", 4)])
@pytest.mark.parametrize("name", CORE)
def test_models_that_cut_attention_answer_as_generate_does(name, decoder, batch):
    assert tokens(answers(name, decoder, batch, many=False)) == expected(name, many=False)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("decoder", ["ar", "sd", "rsd_c", "rsd_s", "spectr", "mcsd"])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_answers_as_generate_does(name, decoder, batch):
    assert tokens(answers(name, decoder, batch, many=True)) == expected(name, many=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_beam_search_answers_as_generate_does(name):
    module = tiny_module(name)
    for request, answer in zip(
        FEW, answers(name, "beam_search", 4, many=False, spec="3"), strict=True
    ):
        ids = torch.tensor([request.prompt_ids])
        theirs = module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=3,
            max_new_tokens=request.max_new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert list(answer.tokens) == theirs[0, ids.shape[1] :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_beams_keep_their_law_and_do_not_depend_on_the_batch(name):
    """A likelihood is that of a plain pass only if every node saw its own path and window."""
    found = answers(name, "dsbd", 1, many=False, spec="4x2@0.5", settings=WARM)
    module = tiny_module(name)
    for request, answer in zip(FEW, found, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *answer.tokens]])
        with torch.inference_mode():
            log_p = module(input_ids=ids).logits[0].log_softmax(dim=-1)
        at = torch.arange(len(request.prompt_ids) - 1, ids.shape[1] - 1)
        plain = log_p[at, ids[0, len(request.prompt_ids) :]].sum().item()
        assert answer.log_likelihood == pytest.approx(plain, abs=1e-4)
    batched = answers(name, "dsbd", 4, many=False, spec="4x2@0.5", settings=WARM)
    assert tokens(batched) == tokens(found)


@pytest.mark.parametrize("name", CORE)
def test_the_answers_are_not_trivial(name):
    found = expected(name, many=False)
    assert len({tuple(answer) for answer in found}) == len(found)
    assert len({token for answer in found for token in answer}) > 8
    assert not all(len(set(answer)) == 1 for answer in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_no_kinds_answers_are_trivial(name):
    found = expected(name, many=True)
    assert len({tuple(answer) for answer in found}) == len(found)
    assert sum(len(set(answer)) > 3 for answer in found) > len(found) / 2
    steps = [step for answer in answers(name, "rsd_s", 4, many=True) for step in answer.steps]
    # Some tokens are accepted below and beside rejected ones, so caches are really compacted.
    assert {step.accepted for step in steps} >= {0, 1, 2, 3}


@pytest.mark.parametrize("name", [name for name in CORE if name in WINDOWED])
def test_a_window_changes_the_answers(name):
    window = dict(KINDS[name].open or {})
    assert generated(tiny_module(name, **window), FEW) != expected(name, many=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWED)
def test_every_window_changes_most_answers(name):
    window = dict(KINDS[name].open or {})
    whole = generated(tiny_module(name, **window), MANY)
    changed = [a != b for a, b in zip(whole, expected(name, many=True), strict=True)]
    assert sum(changed) > len(changed) / 2
