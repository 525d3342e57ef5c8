"""A captured forward pass is the same model: greedy tokens equal the plain ones."""

import shutil
from copy import deepcopy

import pytest
import torch
from torch._dynamo.utils import counters

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel, capture
from spec_bench.engine.loading import ModelSpec
from spec_bench.engine.model_spec import COMPILE_MODES, COMPILERS
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.said import naming

GREEDY = SamplingSettings(temperature=0)
NEEDS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler"
)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dynamo", pytest.param("inductor", marks=NEEDS_COMPILER)])
def test_captured_tokens_equal_plain_tokens_without_recompiling_as_sequences_grow(how):
    torch._dynamo.reset()
    pair = tiny_pair("llama")
    captured = [HuggingFaceModel(m.module, VOCAB, m.device, how) for m in pair]
    requests = random_requests(6, 16)
    for name, rows in (("ar", 1), ("rsd_s", 1), ("rsd_s", 3)):
        answers = {}
        for label, (target, draft) in (("plain", pair), (how, captured)):
            decoder = build_decoder(decoder_settings(name), target, [draft], GREEDY, rows)
            batches = [requests[i : i + rows] for i in range(0, len(requests), rows)]
            answers[label] = [g.tokens for b in batches for g in decoder.generate(b, 0)]
        assert answers["plain"] == answers[how]
        graphs = counters["stats"]["unique_graphs"]
        decoder.generate(random_requests(rows, 24), 0)
        assert counters["stats"]["unique_graphs"] == graphs > 0


def test_what_was_captured_of_one_model_is_not_found_for_another_of_its_shape():
    torch._dynamo.reset()
    target, _ = tiny_pair("llama")
    other = deepcopy(target.module)
    for part in other.modules():
        if hasattr(part, "act_fn"):
            part.act_fn = torch.nn.ReLU()  # which the graph has for good, as it has no weight
    prompt = torch.arange(6).unsqueeze(0)
    for module in (target.module, other):
        captured = capture(module, "dynamo")
        torch.testing.assert_close(captured(input_ids=prompt).logits, module(prompt).logits)


def test_an_unknown_way_to_compile_is_named_with_the_choices():
    with pytest.raises(ValueError, match=naming(*COMPILE_MODES, "'fast'")):
        ModelSpec("anything", compile="fast")


def test_inductor_without_a_compiler_is_refused_before_loading(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="C\\+\\+ compiler on PATH"):
        ModelSpec("anything", compile="inductor")
