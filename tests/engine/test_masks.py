"""Attention masks by kind of layer: by position along a path, whatever slot a token stands at."""

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from spec_bench.engine.masks import LayerMasks, cut, kinds_of_layers, shortened

# Three committed tokens, then a tree: node 0 at slot 3, its children at slots 4 and 5, a child of
# the second at slot 6. Slots 5 and 6 stand at positions 4 and 5.
PATHS = torch.tensor(
    [[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1, 1]],
    dtype=torch.bool,
).unsqueeze(0)


def test_a_window_counts_positions_along_the_path_and_not_slots():
    expected = [
        [0, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 1, 0],
        [0, 0, 0, 1, 0, 1, 1],
    ]
    assert cut(PATHS, 3)[0].int().tolist() == expected


def test_a_chunk_begins_anew_at_its_own_positions():
    expected = [
        [0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0, 1, 0],
        [0, 0, 0, 1, 0, 1, 1],
    ]
    assert cut(PATHS, 3, chunked=True)[0].int().tolist() == expected


def windowed(**settings):
    types = ["sliding_attention", "full_attention"]
    return Qwen2Config(num_hidden_layers=2, use_sliding_window=True, layer_types=types, **settings)


def test_layers_that_differ_get_a_mask_each_and_others_share_one():
    masks = LayerMasks(windowed(sliding_window=3), torch.float32)
    made = masks.by_kind(PATHS)
    assert isinstance(made, dict)
    assert (made["sliding_attention"][0, 0] == 0).equal(cut(PATHS, 3)[0])
    assert (made["full_attention"][0, 0] == 0).equal(PATHS[0])
    one = LayerMasks(LlamaConfig(), torch.float32).by_kind(PATHS)
    assert isinstance(one, torch.Tensor)


def test_a_window_longer_than_what_is_read_costs_no_mask_of_its_own():
    made = LayerMasks(windowed(sliding_window=7), torch.float32).by_kind(PATHS)
    assert isinstance(made, dict)
    assert made["sliding_attention"] is made["full_attention"]


def test_a_shortened_window_is_long_again_afterwards():
    config = windowed(sliding_window=4096)
    masks = LayerMasks(config, torch.float32)
    with shortened(config, 3):
        made = masks.by_kind(PATHS)
        assert isinstance(made, dict)
        assert made["sliding_attention"] is not made["full_attention"]
    assert config.sliding_window == 4096


def test_a_layer_that_keeps_a_state_is_refused_by_its_kind():
    config = LlamaConfig(num_hidden_layers=2)
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="'linear_attention'"):
        kinds_of_layers(config)
