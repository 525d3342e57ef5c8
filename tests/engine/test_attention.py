"""What every layer attends to, by position along a path: packed, split and masked alike."""

import random
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import Llama4TextConfig, LlamaConfig, Qwen2Config

from spec_bench.core.tree import Tree, TreeShape
from spec_bench.engine import hugging_face
from spec_bench.engine.attention import (
    NAME,
    grouped_attention,
    install_grouped_attention,
    install_split_attention,
)
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.layer_masks import (
    LayerMaskMaker,
    apply_window,
    read_distinct_attention_kinds,
    temporarily_shorten_windows,
)
from spec_bench.engine.probe import check_cached_answers
from spec_bench.engine.split_attention import VisibleSpan, compute_span, has_attention_kernels
from spec_bench.engine.tree_pass import prefill, run_causal_tokens, run_nodes
from tests.families import ARCHITECTURES, VOCAB, tiny_model, tiny_pair
from tests.simcuda import DEVICE, SimCuda

SHAPE = TreeShape(levels=(2, 2), children=(2, 1))


def tree_on(device):
    tree = Tree(SHAPE, torch.tensor([5], device=device))
    for parents in ([0, 0], [1, 0]):
        ids = torch.tensor([[7, 9]], device=device)
        tree.add_level(ids, torch.tensor(parents, device=device), None, None)
    return tree


def filled_cache(model, slots):
    cache = model.allocate(1, slots)
    for block in cache._storage:
        block.copy_(torch.randn(block.shape, generator=torch.Generator().manual_seed(1)))
    return cache


def test_packed_heads_answer_as_repeated_ones_do():
    target, _ = tiny_pair.__wrapped__("llama", torch.float64)
    logits = []
    for _ in range(2):
        cache = filled_cache(target, 20)
        logits.append(run_nodes(target, cache, tree_on(target.device), [9], slice(0, 5)).logits)
        install_grouped_attention(target.module)
    assert target.module.config._attn_implementation == NAME
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-12, atol=1e-12)
    check_cached_answers(target)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_models_with_fewer_key_heads_change(architecture):
    module = tiny_model(architecture)
    config = module.config
    fewer = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    assert install_grouped_attention(module) == fewer


# Three committed tokens, then a tree: node 0 at slot 3, its children at slots 4 and 5, a child of
# the second at slot 6. Slots 5 and 6 stand at positions 4 and 5.
PATHS = torch.tensor(
    [[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1, 1]],
    dtype=torch.bool,
).unsqueeze(0)


@pytest.mark.parametrize(
    ("chunked", "expected"),
    [
        (False, ["0111000", "0011100", "0011010", "0001011"]),
        (True, ["0001000", "0001100", "0001010", "0001011"]),
    ],
)
def test_windows_and_chunks_count_positions_along_the_path_and_not_slots(chunked, expected):
    found = apply_window(PATHS, 3, chunked=chunked)[0].int().tolist()
    assert ["".join(map(str, row)) for row in found] == expected


def windowed(**settings):
    types = ["sliding_attention", "full_attention"]
    return Qwen2Config(num_hidden_layers=2, use_sliding_window=True, layer_types=types, **settings)


def test_layers_that_differ_get_a_mask_each_and_others_share_one():
    masks = LayerMaskMaker(windowed(sliding_window=3), torch.float32)
    made = masks.make_masks(PATHS)
    assert (made["sliding_attention"][0, 0] == 0).equal(apply_window(PATHS, 3)[0])
    assert (made["full_attention"][0, 0] == 0).equal(PATHS[0])
    one = LayerMaskMaker(LlamaConfig(), torch.float32).make_masks(PATHS)
    assert isinstance(one, torch.Tensor)


def test_a_window_longer_than_what_is_read_costs_no_mask_of_its_own():
    made = LayerMaskMaker(windowed(sliding_window=7), torch.float32).make_masks(PATHS)
    assert made["sliding_attention"] is made["full_attention"]


def test_a_shortened_window_is_long_again_afterwards():
    config = windowed(sliding_window=4096)
    masks = LayerMaskMaker(config, torch.float32)
    with temporarily_shorten_windows(config, 3):
        made = masks.make_masks(PATHS)
        assert made["sliding_attention"] is not made["full_attention"]
    assert config.sliding_window == 4096


def test_a_layer_that_keeps_a_state_is_refused_by_its_kind():
    config = LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="'linear_attention'"):
        read_distinct_attention_kinds(config)


@pytest.mark.parametrize(
    ("reach", "chunked", "expected"),
    [
        (None, False, VisibleSpan(0, 0, 10)),
        (14, False, VisibleSpan(0, 0, 10)),
        (6, False, VisibleSpan(5, 8, 10)),  # slots 10 to 13: the first sees 5 and later, the last 8
        (3, False, VisibleSpan(8, 10, 10)),
        (4, True, VisibleSpan(8, 10, 10)),  # two chunks, [8, 12) and [12, 16)
        (8, True, VisibleSpan(8, 8, 10)),
    ],
)
def test_a_span_holds_the_slots_that_every_token_sees(reach, chunked, expected):
    assert compute_span(10, 14, reach, chunked=chunked) == expected


@pytest.mark.parametrize(
    ("widths", "kernels"), [((64, 64), True), ((64, 128), False), ((12, 12), False)]
)
def test_only_heads_that_the_kernels_take_are_split(widths, kernels):
    assert has_attention_kernels(torch.device("cpu"), *widths) == kernels
    assert not has_attention_kernels(torch.device("mps"), *widths)


def random_paths(draw):
    """Paths [R, T, S] of a random tree behind rows of random lengths, and the shortest length."""
    lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 3))]
    count = draw.randint(1, 12)
    visible = torch.zeros(len(lengths), count, max(lengths) + count, dtype=torch.bool)
    for row, length in enumerate(lengths):
        visible[row, :, :length] = True
        for node in range(count):
            if node:
                parent = draw.randrange(node)
                visible[row, node] = visible[row, parent]
            visible[row, node, length + node] = True
    return visible, min(lengths)


@pytest.mark.parametrize("seed", range(200))
def test_split_attention_over_random_trees_windows_and_heads_is_masked_attention(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    visible, shared = random_paths(draw)
    kind, config = draw.choice(
        [
            ("full_attention", LlamaConfig()),
            ("sliding_attention", Qwen2Config(sliding_window=draw.randint(1, 80))),
            ("chunked_attention", Llama4TextConfig(attention_chunk_size=draw.randint(1, 80))),
        ]
    )
    config.layer_types = [kind]
    masks = LayerMaskMaker(config, torch.float32)
    heads, groups, width = draw.choice([1, 2, 3]), draw.choice([1, 2, 4]), draw.choice([8, 16, 64])
    rows, count, slots = visible.shape
    query = torch.randn(rows, heads * groups, count, width)
    key, value = torch.randn(2, rows, heads, slots, width).unbind()
    layer = SimpleNamespace(num_key_value_groups=groups, is_causal=True, training=False)
    whole, parts = masks.make_masks(visible), masks.make_masks(visible, shared)
    assert isinstance(parts, Tensor) and hasattr(parts, "span") and not hasattr(whole, "span")
    expected, got = (
        grouped_attention(layer, query, key, value, mask)[0] for mask in (whole, parts)
    )
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@pytest.fixture
def always_split(monkeypatch):
    monkeypatch.setattr(hugging_face, "FROM", 1)


def answers(model):
    """Logits of a prompt's end, of a tree and of tokens that a draft has not seen."""
    cache = filled_cache(model, 60)
    prefill(model, cache, 0, list(range(1, 40)))
    tree = run_nodes(model, cache, tree_on(model.device), [39], slice(0, 5)).logits
    pending = run_causal_tokens(
        model, cache, [40], torch.tensor([[3, 4]], device=model.device)
    ).logits
    return [tree, pending]


# Every second layer sees six tokens.
WINDOWS = {
    "use_sliding_window": True, "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "changes"), [("llama", {}), ("qwen2", {}), ("qwen2", WINDOWS)]
)
@pytest.mark.usefixtures("always_split")
def test_a_model_that_splits_answers_as_before(architecture, changes):
    module = tiny_model(architecture, **changes)
    model = HuggingFaceModel(module, VOCAB, torch.device("cpu"))
    before = answers(model)
    module.config.max_position_embeddings = 1 << 16
    assert install_split_attention(module)
    for got, expected in zip(answers(model), before, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "longest"), [("llama", 2048), ("gpt_neox", 1 << 16)])
def test_models_that_gain_nothing_are_left_alone(architecture, longest):
    module = tiny_model(architecture)  # a short context; on a CPU, no shared heads
    module.config.max_position_embeddings = longest
    assert not install_split_attention(module)
    assert module.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("dtype", "prefix"), [(torch.bfloat16, "flash: no mask"), (torch.float32, "efficient: no mask")]
)
@pytest.mark.parametrize("how", ["none", "static"])
@pytest.mark.usefixtures("always_split")
def test_on_a_gpu_long_keys_meet_a_kernel_without_a_mask(dtype, prefix, how):
    module = tiny_model("llama", hidden_size=128, num_hidden_layers=1, num_attention_heads=8,
                        max_position_embeddings=4096).to(dtype)  # fmt: skip
    with SimCuda() as sim:
        module = module.to(DEVICE)
        assert install_split_attention(module)
        model = HuggingFaceModel(module, VOCAB, DEVICE, how)
        cache, tree = model.allocate(1, 60), tree_on(DEVICE)
        run_nodes(model, cache, tree, [40], slice(0, 5))  # constants stay
        sim.attention.clear()
        waits = dict(sim.syncs)
        run_nodes(model, cache, tree, [40], slice(0, 5))
        assert dict(sim.syncs) == waits
    kinds = set(sim.attention)
    name = str(dtype)[6:]
    assert kinds == {f"{prefix}, {dtype}", f"efficient: mask {name} aligned"}
