"""Products that are packed or joined, calls that are direct, weights by columns: the same model."""

import itertools

import pytest
import torch
from torch import nn

from spec_bench.engine import products
from spec_bench.engine.fused_linear import fuse_linear_groups
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.products import (
    PACKED,
    PADDED,
    PLAIN,
    ROWS,
    SMALLEST,
    find_fastest_ways,
    format_product_ways,
    measure_ways_ms,
    pack_linear_layers,
    store_weights_by_column,
)
from spec_bench.engine.random_model import make_random_module
from tests.families import pair_of, tiny_model
from tests.simcuda import DEVICE, SimCuda

AS_FEW = (PADDED,) * 3 + (PACKED,) * 3  # one copy of the matrices
MIXED = (PLAIN, PADDED, PACKED) * 2
PROMPT = torch.arange(12).view(2, 6)


@pytest.fixture
def any_size(monkeypatch):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(products, "LEAST_BYTES", 0)
    monkeypatch.setattr(products, "find_fastest_ways", lambda weights: AS_FEW)


@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt_neox"])
@pytest.mark.parametrize("ways", [AS_FEW, MIXED])
@pytest.mark.usefixtures("any_size")
def test_a_packed_model_answers_as_before(architecture, ways, monkeypatch):
    monkeypatch.setattr(products, "find_fastest_ways", lambda weights: ways)
    module = tiny_model(architecture)
    with torch.inference_mode():
        before = module(PROMPT).logits, module(PROMPT[:1, :1]).logits
        count = sum(p.numel() for p in module.parameters())
        assert pack_linear_layers(module) == ways
        after = module(PROMPT).logits, module(PROMPT[:1, :1]).logits
    assert sum(p.numel() for p in module.parameters()) == count
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert pack_linear_layers(module) == ()  # once


@pytest.mark.usefixtures("any_size")
def test_a_rows_numbers_are_those_of_any_batch():
    layer = nn.Sequential(nn.Linear(576, 1536))
    pack_linear_layers(layer)
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
    pack_linear_layers(module)
    torch.testing.assert_close(module["table"](torch.arange(9)), values)
    other = module["other"].weight
    assert other.shape == (8, 8) and other.untyped_storage().nbytes() == 4


@pytest.mark.usefixtures("any_size")
def test_gradients_pass_through_a_packed_layer():
    plain = nn.Linear(8, 6)
    layer = nn.Sequential(nn.Linear(8, 6))
    layer.load_state_dict({f"0.{key}": value for key, value in plain.state_dict().items()})
    pack_linear_layers(layer)
    x, y = torch.randn(3, 8).requires_grad_(), torch.randn(3, 6)
    for each in (plain, layer):
        x.grad = None
        (each(x) * y).sum().backward()
        torch.testing.assert_close(x.grad, y @ plain.weight)


def test_small_models_and_other_types_are_left_alone():
    assert pack_linear_layers(tiny_model("llama")) == ()
    wide = nn.Linear(4097, 4096, dtype=torch.float64)
    assert pack_linear_layers(nn.Sequential(wide, wide)) == ()


@pytest.mark.usefixtures("any_size")
def test_a_model_is_packed_in_bfloat16_too(monkeypatch):
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products in bfloat16")
    layer = nn.Sequential(nn.Linear(576, 1536, dtype=torch.bfloat16))
    rows = torch.randn(3, 576, dtype=torch.bfloat16)
    with torch.inference_mode():
        before = layer(rows)
        assert pack_linear_layers(layer) == AS_FEW
        torch.testing.assert_close(layer(rows), before)


@pytest.mark.usefixtures("any_size")
def test_where_a_plain_product_is_fastest_for_all_rows_nothing_is_packed(monkeypatch):
    monkeypatch.setattr(products, "find_fastest_ways", lambda weights: (PLAIN,) * len(ROWS))
    module = nn.Sequential(nn.Linear(8, 6))
    assert format_product_ways(pack_linear_layers(module)) == "plain 1-"
    assert type(module[0]) is nn.Linear


@pytest.mark.usefixtures("any_size")
def test_where_memory_holds_one_copy_only_no_product_is_plain(monkeypatch):
    monkeypatch.setattr(products, "find_fastest_ways", lambda weights: MIXED)
    monkeypatch.setattr(products, "read_available_memory_bytes", lambda: 0)
    assert PLAIN not in pack_linear_layers(nn.Sequential(nn.Linear(8, 6)))


def test_the_way_of_a_product_is_the_fastest_that_was_measured_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path))
    slow = {PLAIN: 2.0, PACKED: 1.0, PADDED: 3.0}
    close = {PLAIN: 2.0, PACKED: 1.99}  # is no gain
    taken = []

    def measure(weights):
        taken.append(len(weights))
        return [slow, slow, {**slow, PADDED: 0.5}, close, close, slow]

    monkeypatch.setattr(products, "measure_ways_ms", measure)
    ways = find_fastest_ways([torch.zeros(4, 4)])
    assert format_product_ways(ways) == "packed 1-2, padded 3-3, plain 4-8, packed 16-"
    assert find_fastest_ways([torch.ones(4, 4)]) == ways
    assert find_fastest_ways([torch.ones(4, 8), torch.ones(4, 8)]) == ways
    assert taken == [1, 2]  # once for matrices of the same sizes
    for file in (tmp_path / "products").iterdir():
        file.write_text("{}")
    assert find_fastest_ways([torch.zeros(4, 4)]) == ways
    assert taken == [1, 2, 1]


def test_every_way_is_measured_and_a_machine_that_disturbs_every_turn_changes_nothing(monkeypatch):
    readings = itertools.count()

    def clock():  # a product takes a millisecond, and every fifth 0.1 s more
        product, is_end = divmod(next(readings), 2)
        return product + is_end * (0.001 + 0.1 * (product % 5 == 0))

    monkeypatch.setattr(products.time, "perf_counter", clock)
    found = measure_ways_ms([torch.zeros(16, 8)] * 6)
    assert [set(each) for each in found] == [{PLAIN, PACKED, PADDED}] * 3 + [{PLAIN, PACKED}] * 3
    assert {round(ms) for each in found for ms in each.values()} == {6}


@pytest.mark.usefixtures("any_size")
def test_a_large_model_is_packed_as_it_is_loaded():
    packed = load_model(ModelSpec("random:llama_tiny"))
    plain = make_random_module("random:llama_tiny", torch.float32, "cpu", 0)
    assert any(hasattr(part, "packed") for part in packed.module.modules())
    with torch.inference_mode():
        one, other = (module(PROMPT[:1]).logits for module in (plain, packed.module))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "groups"), [("llama", 6), ("qwen2", 6), ("opt", 3), ("gpt_neox", 0)]
)
def test_a_model_answers_as_before_with_its_groups_joined(architecture, groups):
    module = tiny_model(architecture).double()
    before, size = module(PROMPT).logits, sum(p.numel() for p in module.parameters())
    names = list(module.state_dict())
    assert fuse_linear_groups(module) == groups
    torch.testing.assert_close(module(PROMPT).logits, before, rtol=1e-12, atol=1e-12)
    assert sum(p.numel() for p in module.parameters()) == size
    assert list(module.state_dict()) == names
    assert fuse_linear_groups(module) == 0  # once


def test_a_part_that_is_called_alone_or_with_another_input_uses_its_own_rows():
    block = nn.Module()
    for name, out in (("q_proj", 3), ("k_proj", 2), ("v_proj", 2)):
        setattr(block, name, nn.Linear(4, out))
    x, y = torch.randn(2, 5, 4).unbind()
    expected = {name: (part(x), part(y)) for name, part in block.named_children()}
    assert fuse_linear_groups(block) == 1
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
    assert fuse_linear_groups(block) == 0


def test_the_memory_of_matrices_that_were_joined_is_free_again():
    with SimCuda() as sim:
        module = pair_of("none", dtype=torch.float32)[0].module.to(DEVICE)
        free, used = torch.cuda.mem_get_info()[0], sim.allocated
        assert fuse_linear_groups(module) == 6
        assert (sim.allocated, torch.cuda.mem_get_info()[0]) == (used, free)


NEEDS_MKL = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="needs MKL")


class Tied(nn.Module):
    """An embedding whose matrix the head shares, and a layer too small to matter."""

    def __init__(self, tokens, width):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.small = nn.Linear(width, width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.small(self.embedding(tokens)))


@NEEDS_MKL
def test_only_large_matrices_move_and_nothing_but_their_layout_changes():
    model = Tied(SMALLEST // 64, 64)
    tokens = torch.tensor([[0, 7, SMALLEST // 64 - 1]])
    before, values = model(tokens), model.head.weight.detach().clone()
    assert store_weights_by_column(model) == 1
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.stride() == (1, SMALLEST // 64)
    assert model.small.weight.is_contiguous()
    assert torch.equal(model.head.weight, values)
    assert torch.allclose(model(tokens), before, atol=1e-5)
    assert store_weights_by_column(model) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_left_alone(dtype):
    layer = nn.Linear(SMALLEST // 64, 64, dtype=dtype)
    assert store_weights_by_column(layer) == 0
    assert layer.weight.is_contiguous()


@NEEDS_MKL
def test_a_loaded_model_that_is_not_packed_has_its_large_matrices_by_columns(monkeypatch):
    monkeypatch.setattr(products, "LEAST_BYTES", 1 << 60)
    model = load_model(ModelSpec("random:opt_125m"))
    layer = model.module.model.decoder.layers[0]
    assert layer.fc1.weight.stride() == (1, 3072)
    assert layer.self_attn.q_proj.weight.stride() == (1, 768)
