"""EAGLE heads on disk: four public families read to the same logits, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from spec_bench.draft.eagle_network import EagleHead
from spec_bench.draft.heads import load_heads, save_heads
from tests.heads import eagle3_head, eagle_head

CPU = torch.device("cpu")
HIDDEN, VOCAB = 16, 12
EMBEDDING = torch.randn(VOCAB, HIDDEN)


def logits_of(head):
    """Of a row of three steps under a causal mask."""
    torch.manual_seed(1)
    feature = head.fuse(torch.randn(1, 3, head.features))
    last = torch.randn(HIDDEN, VOCAB)

    def attend(layer, q, k, v):
        keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)

    embedded = EMBEDDING[torch.tensor([[3, 1, 4]])]
    with torch.no_grad():
        output = head.step(feature, embedded, torch.arange(3)[None], attend)
        return head.logits(output, lambda x: x @ last, VOCAB)


def layout(head, family):
    """A head's file, weights and config as a family writes them."""
    _, weights, config = head.to_files()
    layer = dict(config.get("transformer_layer_config", config))
    ids = [1, 2, 0]  # inputs of blocks, which all but speculators name by the block before
    if family == "speculators":
        config["eagle_aux_hidden_state_layer_ids"] = ids
        return "model.safetensors", weights | {"embed_tokens.weight": EMBEDDING}, config
    del layer["rope_parameters"]
    layer |= {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if head.version == 1:
        named = weights | {"embed_tokens.weight": EMBEDDING}
        return "pytorch_model.bin", named, layer | {"bias": True}
    layer |= {"draft_vocab_size": head.shape.draft_vocab, "fc_norm": head.shape.fc_norm}
    below = [each - 1 for each in ids]
    layer["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": below}
    if family == "model-optimizer":
        layer["eagle_config"] |= {"use_aux_hidden_state": True, "use_last_layernorm": True}
        del weights["t2d"]
        return "model.safetensors", weights, layer
    named = {name.replace("layers.0.", "midlayer."): part for name, part in weights.items()}
    return "pytorch_model.bin", named, layer


def write(folder, file, weights, config):
    stored = {name: part.detach().clone().contiguous() for name, part in weights.items()}
    if file.endswith(".bin"):
        torch.save(stored, folder / file)
    else:
        save_file(stored, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("family", ["eagle-1", "eagle-3", "speculators", "model-optimizer"])
def test_a_head_in_each_public_layout_reads_back_to_the_same_logits(family, tmp_path):
    made = (eagle_head if family == "eagle-1" else eagle3_head)(HIDDEN, VOCAB)
    found = load_heads(write(tmp_path, *layout(made, family)), CPU, torch.float32)
    assert isinstance(found, EagleHead)
    assert found.kind == ("eagle" if family == "eagle-1" else "eagle3")
    assert torch.equal(logits_of(found), logits_of(made))
    assert found.parameter_count == made.parameter_count
    if family != "eagle-1":
        assert found.shape.layer_ids == (1, 2, 0)


def test_two_blocks_are_written_and_read_back(tmp_path):
    made = eagle3_head(HIDDEN, VOCAB, layers=2)
    save_heads(made, tmp_path)
    found = load_heads(str(tmp_path), CPU, torch.float32)
    assert torch.equal(logits_of(found), logits_of(made))  # type: ignore[arg-type]


def test_a_config_without_rope_theta_means_ten_thousand(tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, VOCAB), "eagle-3")
    del config["rope_theta"]
    config["rope_scaling"] = None
    found = load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)
    assert found.shape.rope["rope_theta"] == 10000


def test_a_bias_that_the_config_denies_is_read_from_the_tensors(tmp_path):
    made = eagle_head(HIDDEN, VOCAB)
    file, weights, config = layout(made, "eagle-1")
    found = load_heads(write(tmp_path, file, weights, config | {"bias": False}), CPU, torch.float32)
    assert torch.equal(logits_of(found), logits_of(made))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_mtp_layernorm": True}, "use_mtp_layernorm=True is not supported"),
        ({"per_layer_gate": True}, "the switch per_layer_gate is not known; known are norm_before"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}, "three numbers"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, message, tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, VOCAB), "eagle-3")
    config = {key: value for key, value in (config | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)


def test_maps_that_contradict_each_other_are_refused(tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, VOCAB), "eagle-3")
    weights["d2t"] = weights["d2t"].clone()
    weights["d2t"][-1] -= 1  # one too few
    with pytest.raises(ValueError, match="d2t"):
        load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)


@pytest.mark.parametrize(
    ("named", "means"), [("auto", (2, 3, 1)), ("input", (1, 2, 0)), ("output", (2, 3, 1))]
)
def test_a_setting_wins_over_what_the_files_family_means(named, means, tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, VOCAB), "eagle-3")
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 2, 0]
    found = load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)
    assert found.places(6, named) == means  # type: ignore[operator]


def test_without_ids_the_places_are_the_second_the_middle_and_the_last_but_two():
    assert eagle3_head(HIDDEN, VOCAB).places(18) == (2, 9, 15)


def test_a_place_that_no_pass_returns_is_refused():
    with pytest.raises(ValueError, match="hidden state 2 is not among 0 to 1"):
        eagle3_head(HIDDEN, VOCAB).places(2)
