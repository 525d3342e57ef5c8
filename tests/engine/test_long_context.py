"""Long prompts with shared key heads: in chunks, over one attention, in memory that stays flat."""

import gc
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.attention import FROM, pack_shared_heads
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.tree_pass import PREFILL_CHUNK
from spec_bench.records.types import Request
from tests.families import decoder_settings
from tests.simcuda import DEVICE, SimCuda

VOCAB = 60


def grouped_model(layers, length, seed):
    """8 key heads, 32 query heads, tiny; on the simulated device."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=length + 64,
    )
    module = LlamaForCausalLM(config).eval().to(DEVICE)
    assert pack_shared_heads(module)
    return HuggingFaceModel(module, VOCAB, DEVICE)


def decoded(sim, name, length):
    """Prefills and decodes some tokens; what was asked for and held meanwhile."""
    target, draft = grouped_model(1, length, 0), grouped_model(1, length, 1)
    drafts = [draft] if name != "ar" else []
    spec = None if name == "ar" else "3x2"
    decoder = build_decoder(
        decoder_settings(name, spec), target, drafts, SamplingSettings(temperature=0)
    )
    draw = random.Random(0)
    request = Request("p", tuple(draw.randrange(VOCAB) for _ in range(length - 24)), 20)
    chunks = []
    forward = target.forward

    def noted(*given, **named):
        if named.get("prefill"):
            chunks.append(given[2].shape[1])
        return forward(*given, **named)

    target.forward = noted  # type: ignore[method-assign]
    with torch.inference_mode():
        (row,) = decoder.begin([request], seed=0)
        sim.attention.clear()
        live, peaks = [], []
        while row.finish is None and len(live) < 5:
            gc.collect()  # tensors held by circles go whenever they are looked for
            sim.peak = before = sim.allocated
            decoder.step([row])
            peaks.append(sim.peak - before)
            gc.collect()
            live.append(sim.allocated)
    sizes = [block.numel() * block.element_size() for block in target.allocate(1, 8)._storage]
    return {
        "chunks": chunks,
        "attention": set(sim.attention),
        "live": live[2:],  # by then every constant is on the device
        "peaks": peaks[2:],
        "cache": sum(sizes) // 8 * length,
    }


def check(length):
    with SimCuda() as sim:
        plain = decoded(sim, "ar", length)
        tree = decoded(sim, "rsd_s", length)
    whole = {"mask float32 aligned"}
    split = {"efficient: no mask, torch.float32", "efficient: mask float32 aligned"}
    assert plain["attention"] == tree["attention"] == (split if length - 25 >= FROM else whole)
    for found in (plain, tree):
        assert sum(found["chunks"]) == length - 25
        assert max(found["chunks"]) <= PREFILL_CHUNK < length
        assert max(found["live"]) - min(found["live"]) <= 0.01 * found["cache"]
        # A pass copies no cache: keys and values for each query head would be four times it.
        assert max(found["peaks"]) < found["cache"]
        assert max(found["peaks"]) <= 1.1 * min(found["peaks"])


SLOW = [pytest.param(length, marks=pytest.mark.slow) for length in (2048, 32768)]


@pytest.mark.parametrize("length", [1100, *SLOW])
def test_a_long_prompt_runs_in_chunks_and_decodes_in_flat_memory(length):
    check(length)
