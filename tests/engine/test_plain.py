"""Llama's family run plainly: its modules' numbers in fewer kernels, or the modules themselves."""

import logging

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.engine import probe
from spec_bench.engine.attention import install_grouped_attention
from spec_bench.engine.fused_linear import fuse_linear_groups
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.plain import PlainModel
from spec_bench.engine.tree_pass import run_causal_tokens
from tests.simcuda import DEVICE, SimCuda

VOCAB = 60
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
FAMILIES = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama without shared heads": {"num_key_value_heads": 4},
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {"head_dim": 16, "attention_bias": True},
    "llama of Llama 3's rope": {"rope_parameters": LLAMA3},
}


def module_of(family, **changes):
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 128,
    }  # fmt: skip
    config = AutoConfig.for_model(family.split()[0], **shape | FAMILIES[family] | changes)
    module = AutoModelForCausalLM.from_config(config)
    for name, weight in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)
    return module.eval()


def wrapped(module):
    return HuggingFaceModel(module, VOCAB, module.device)


def tree_logits(model):
    """[N, V] logits of two rows: of pending tokens, and of the nodes of two trees."""
    with torch.inference_mode():
        return torch.stack([node.logits for node in probe._decode_probe_trees(model, (17, 14))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_run_plainly_has_its_modules_logits(family, joined, dtype):
    model = wrapped(module_of(family).to(dtype))
    if joined:
        assert fuse_linear_groups(model.module) == 6
        model.plain = PlainModel(model.module)
    assert model.plain is not None
    plain = tree_logits(model)
    model.plain = None
    rounding = {"rtol": 1e-5, "atol": 1e-6} if joined and dtype == torch.float32 else {}
    exact = {"rtol": 0, "atol": 0} if not joined else rounding
    torch.testing.assert_close(plain, tree_logits(model), **exact)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_hidden_states_and_kept_logits_are_the_modules(keep):
    model = wrapped(module_of("qwen3"))

    def passed():
        cache, tokens = model.allocate(1, 8), torch.tensor([[5, 4, 3, 2]])
        places = (0, 2, -1)
        with torch.inference_mode():
            return run_causal_tokens(
                model, cache, [0], tokens, logits_to_keep=keep, needs_hidden=places
            )

    plain = passed()
    model.plain = None
    assert plain.logits.shape[1] == (keep or 4)
    for ours, modules in zip(plain, passed(), strict=True):
        assert torch.equal(ours, modules)


def test_on_a_gpu_hidden_states_are_those_before_a_layer_adds_to_them():
    module = module_of("llama")

    def passed(device):
        model = wrapped(module.to(device))
        cache, tokens = model.allocate(1, 8), torch.tensor([[5, 4, 3, 2]], device=device)
        with torch.inference_mode():
            return run_causal_tokens(model, cache, [0], tokens, needs_hidden=(0, 1, 2, -1)).hidden

    expected = passed("cpu")
    with SimCuda():
        found = passed(DEVICE).cpu()
    torch.testing.assert_close(found, expected)


class Adapted(nn.Linear):
    """A layer that computes more than its weights say, as an adapter's does."""

    def forward(self, input):
        return super().forward(input) + 1


def with_relu(module):
    module.model.layers[1].mlp.act_fn = nn.ReLU()


def with_an_adapter(module):
    module.model.layers[1].self_attn.q_proj.__class__ = Adapted


def with_its_own_forward(module):
    part = module.model.layers[1].mlp
    part.forward = lambda x: 2 * x


@pytest.mark.parametrize("change", [with_relu, with_an_adapter, with_its_own_forward])
def test_a_model_with_a_part_that_is_not_known_is_run_by_its_modules(change):
    module = module_of("llama")
    change(module)
    model = wrapped(module)
    assert model.plain is None
    probe.check_cached_answers(model)


def test_a_hook_that_is_set_later_is_met():
    model = wrapped(module_of("llama"))
    seen = []
    hook = model.module.model.layers[2].mlp.register_forward_hook(lambda *_: seen.append(1))
    tree_logits(model)
    assert seen
    hook.remove()
    seen.clear()
    tree_logits(model)
    assert not seen


def test_blocks_that_answer_otherwise_than_their_modules_are_not_used(caplog):
    model = wrapped(module_of("llama"))
    block = model.plain._blocks[1]
    block.input_norm = block.mlp_norm  # whose weights are another's, once they differ
    nn.init.normal_(model.module.model.layers[1].post_attention_layernorm.weight)
    with caplog.at_level(logging.WARNING):
        probe.check_cached_answers(model)
    assert model.plain is None
    assert "its modules are called" in caplog.text


@pytest.mark.parametrize(
    ("family", "tokens", "most"),
    [("llama", 1, 14), ("llama", 4, 16), ("llama without shared heads", 4, 15), ("qwen3", 1, 18)],
)
def test_a_layer_of_a_gpus_pass_is_few_kernels(family, tokens, most):
    kernels = []
    for layers in (2, 3):
        with SimCuda() as sim, torch.inference_mode():
            module = module_of(family, num_hidden_layers=layers).to(DEVICE)
            install_grouped_attention(module)
            assert fuse_linear_groups(module) == 2 * layers
            model = wrapped(module)
            ids = torch.zeros((2, tokens), dtype=torch.long, device=DEVICE)
            cache = model.allocate(2, 24)
            for _ in range(2):  # the first makes constants
                sim.reset()
                run_causal_tokens(model, cache, [8, 9], ids)
            kernels.append(sum(sim.ops.values()))
    assert kernels[1] - kernels[0] <= most


def test_a_longer_cache_has_a_longer_table_of_turns():
    model = wrapped(module_of("llama"))
    ids = torch.tensor([[5, 4, 3]])

    def passed(slots, start):
        cache = model.allocate(1, slots)
        with torch.inference_mode():
            return run_causal_tokens(model, cache, [start], ids).logits

    short, long = passed(8, 2), passed(64, 50)
    model.plain = None
    assert torch.equal(short, passed(8, 2))
    assert torch.equal(long, passed(64, 50))


def test_turns_that_hang_on_the_longest_position_are_computed_in_every_pass():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    plain, modules = (
        wrapped(module_of("llama", rope_parameters=rope, max_position_embeddings=8))
        for _ in range(2)
    )
    modules.plain = None
    assert torch.equal(tree_logits(plain), tree_logits(modules))
    assert plain.plain._rotation_table is None
