"""Trees and single tokens read a cache with few key heads once, whatever its length."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.core.tree import Tree, TreeShape
from spec_bench.engine.attention import NAME, pack_shared_heads
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.probe import check_model
from spec_bench.engine.tree_pass import run_nodes
from tests.families import ARCHITECTURES, VOCAB, tiny_model, tiny_pair
from tests.simcuda import DEVICE, SimCuda

SHAPE = TreeShape(levels=(2, 2), children=(2, 1))


def tree_on(device):
    tree = Tree(SHAPE, torch.tensor([5], device=device))
    for parents in ([0, 0], [1, 0]):
        ids = torch.tensor([[7, 9]], device=device)
        tree.add_level(
            ids, torch.tensor(parents, device=device), torch.ones_like(ids, dtype=torch.bool), None
        )
    return tree


def test_packed_heads_answer_as_repeated_ones_do():
    target, _ = tiny_pair.__wrapped__("llama", torch.float64)
    logits = []
    for _ in range(2):
        cache = target.allocate(1, 20)
        for block in cache._storage:
            block.copy_(torch.randn(block.shape, generator=torch.Generator().manual_seed(1)))
        logits.append(run_nodes(target, cache, tree_on(target.device), [9], slice(0, 5)).logits)
        pack_shared_heads(target.module)
    assert target.module.config._attn_implementation == NAME
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-12, atol=1e-12)
    check_model(target)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_models_with_fewer_key_heads_change(architecture):
    module = tiny_model(architecture)
    config = module.config
    fewer = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    assert pack_shared_heads(module) == fewer


def test_a_tree_over_32k_slots_repeats_no_keys_and_passes_leave_nothing_behind():
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=33000,
    )
    module = LlamaForCausalLM(config).eval()
    with SimCuda() as sim:
        module = module.to(DEVICE)
        assert pack_shared_heads(module)
        model = HuggingFaceModel(module, VOCAB, DEVICE)
        length = 32000
        cache = model.allocate(1, 32768)
        run_nodes(model, cache, tree_on(DEVICE), [length], slice(0, 5))  # constants stay
        before, peaks, left = sim.allocated, [], []
        for _ in range(3):
            sim.peak = sim.allocated
            run_nodes(model, cache, tree_on(DEVICE), [length], slice(0, 5))
            peaks.append(sim.peak - before)
            left.append(sim.allocated - before)
    assert left == [0, 0, 0]
    assert peaks[0] == peaks[1] == peaks[2]
    assert peaks[0] < cache.bytes  # keys and values for each query head would be four times that
    assert set(sim.attention) == {
        "no mask, torch.float32, grouped",  # the model's own first pass, of one token
        "efficient: no mask, torch.float32",
        "efficient: mask float32 aligned",
    }
