"""A large model's matrices are packed once; its answers stay, whatever runs beside them."""

import pytest
import torch
from torch import nn

from spec_bench.engine import products
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.products import pack_products
from tests.families import tiny_model

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)
PROMPT = torch.arange(12).view(2, 6)


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(products, "LEAST_BYTES", 0)


@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt_neox"])
@pytest.mark.usefixtures("any_size")
def test_a_packed_model_answers_as_before(architecture):
    module = tiny_model(architecture)
    with torch.inference_mode():
        before = module(PROMPT).logits, module(PROMPT[:1, :1]).logits
        count = sum(p.numel() for p in module.parameters())
        assert pack_products(module) == sum(isinstance(m, nn.Linear) for m in module.modules())
        after = module(PROMPT).logits, module(PROMPT[:1, :1]).logits
    assert sum(p.numel() for p in module.parameters()) == count
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert pack_products(module) == 0  # once


@pytest.mark.usefixtures("any_size")
def test_a_rows_numbers_are_those_of_any_batch():
    layer = nn.Sequential(nn.Linear(576, 1536))
    assert pack_products(layer) == 1
    rows = torch.randn(32, 576)
    with torch.inference_mode():
        together = layer(rows)
        for count in (1, 2, 3, 5, 8):
            assert torch.equal(layer(rows[:count]), together[:count])


@pytest.mark.usefixtures("any_size")
def test_what_is_tied_keeps_its_values_and_what_is_not_gives_up_their_memory():
    module = nn.ModuleDict({"table": nn.Embedding(9, 8), "head": nn.Linear(8, 9, bias=False)})
    module["head"].weight = module["table"].weight
    module["other"] = nn.Linear(8, 8)
    values = module["table"].weight.clone()
    assert pack_products(module) == 2
    torch.testing.assert_close(module["table"](torch.arange(9)), values)
    other = module["other"].weight
    assert other.shape == (8, 8) and other.untyped_storage().nbytes() == 4


@pytest.mark.usefixtures("any_size")
def test_gradients_pass_through_a_packed_layer():
    plain = nn.Linear(8, 6)
    layer = nn.Sequential(nn.Linear(8, 6))
    layer.load_state_dict({f"0.{key}": value for key, value in plain.state_dict().items()})
    pack_products(layer)
    x, y = torch.randn(3, 8).requires_grad_(), torch.randn(3, 6)
    for each in (plain, layer):
        x.grad = None
        (each(x) * y).sum().backward()
        torch.testing.assert_close(x.grad, y @ plain.weight)


def test_small_models_and_other_types_are_left_alone():
    assert pack_products(tiny_model("llama")) == 0
    wide = nn.Linear(4097, 4096, dtype=torch.bfloat16)
    assert pack_products(nn.Sequential(wide, wide)) == 0


def test_a_large_model_is_packed_as_it_is_loaded(monkeypatch):
    spec = ModelSpec("random:llama_tiny")
    plain = load_model(spec)
    monkeypatch.setattr(products, "LEAST_BYTES", 0)
    packed = load_model(spec)
    assert any(hasattr(part, "packed") for part in packed.module.modules())
    assert not any(hasattr(part, "packed") for part in plain.module.modules())
    with torch.inference_mode():
        one, other = (each.module(PROMPT[:1]).logits for each in (plain, packed))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
