"""Query, key and value, and gate and up, are one product each, and the model is the same."""

import pytest
import torch
from torch import nn

from spec_bench.engine import products
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.products import fuse_products
from tests.engine.test_compiled import NEEDS_COMPILER
from tests.engine.test_static_passes import built, pair_of, tokens
from tests.families import VOCAB, tiny_model, tiny_pair
from tests.simcuda import DEVICE, SimCuda

PROMPT = torch.arange(12).view(2, 6)


@pytest.mark.parametrize(
    ("architecture", "groups"), [("llama", 6), ("qwen2", 6), ("opt", 3), ("gpt_neox", 0)]
)
def test_a_model_answers_as_before_with_its_groups_joined(architecture, groups):
    module = tiny_model(architecture).double()
    before, size = module(PROMPT).logits, sum(p.numel() for p in module.parameters())
    names = list(module.state_dict())
    assert fuse_products(module) == groups
    torch.testing.assert_close(module(PROMPT).logits, before, rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in module.parameters()) == size
    assert list(module.state_dict()) == names
    assert fuse_products(module) == 0  # once


def test_a_part_that_is_called_alone_or_with_another_input_uses_its_own_rows():
    block = nn.Module()
    for name, out in (("q_proj", 3), ("k_proj", 2), ("v_proj", 2)):
        setattr(block, name, nn.Linear(4, out))
    x, y = torch.randn(2, 5, 4).unbind()
    expected = {name: (part(x), part(y)) for name, part in block.named_children()}
    assert fuse_products(block) == 1
    torch.testing.assert_close(block.k_proj(x), expected["k_proj"][0])
    block.q_proj(x)
    torch.testing.assert_close(block.v_proj(y), expected["v_proj"][1])
    torch.testing.assert_close(block.v_proj(x), expected["v_proj"][0])


@pytest.mark.parametrize("change", ["bias", "dtype", "class"])
def test_layers_that_differ_are_left_apart(change):
    block = nn.Module()
    block.gate_proj, block.up_proj = nn.Linear(4, 6), nn.Linear(4, 6, bias=change != "bias")
    if change == "dtype":
        block.up_proj.double()
    if change == "class":
        block.up_proj = nn.Bilinear(4, 4, 6)
    assert fuse_products(block) == 0


def test_a_block_of_a_gpus_pass_makes_four_products_and_not_seven(monkeypatch):
    monkeypatch.setattr(products, "is_plain", lambda weight: True)  # simulated ones are

    def made(fused):
        module = tiny_pair.__wrapped__("llama", torch.float32)[0].module
        with SimCuda() as sim:
            module = module.to(DEVICE)
            if fused:
                fuse_products(module)
            sim.reset()
            module(torch.zeros((1, 1), dtype=torch.long, device=DEVICE))
            return sum(sim.ops[name] for name in ("mm", "addmm", "linear"))

    assert made(False) - made(True) == 3 * 3  # of three layers


def test_the_memory_of_matrices_that_were_joined_is_free_again(monkeypatch):
    monkeypatch.setattr(products, "is_plain", lambda weight: True)  # simulated ones are
    with SimCuda() as sim:
        module = tiny_pair.__wrapped__("llama", torch.float32)[0].module.to(DEVICE)
        free, used = torch.cuda.mem_get_info()[0], sim.allocated
        assert fuse_products(module) == 6
        assert (sim.allocated, torch.cuda.mem_get_info()[0]) == (used, free)


@pytest.mark.slow
@NEEDS_COMPILER
def test_joined_products_are_traced_and_recorded_as_others_are():
    torch._dynamo.reset()
    expected = tokens(built("rsd_s", pair_of("none"), 1), 3)
    pair = pair_of("none")
    for model in pair:
        fuse_products(model.module)
    for how in ("static", "static_inductor"):
        again = [HuggingFaceModel(each.module, VOCAB, each.device, how) for each in pair]
        decoder = built("rsd_s", again, 1)
        assert [tokens(decoder, 3) for _ in range(3)] == [expected] * 3
        assert again[0].static.counts.static > 0 == len(again[0].static.refusals)
