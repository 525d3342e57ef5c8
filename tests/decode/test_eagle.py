"""EAGLE heads on the engine: lossless, given the right features, read from files."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.audit.catalogue import WARM, iter_audit_cases
from spec_bench.audit.decoders import enumerate_decoder_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.draft.eagle_files import EagleShape
from spec_bench.draft.eagle_layers import describe_better_layers
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.heads import load_heads, save_heads
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.tree.chain import Chain
from tests.families import VOCAB, built, tiny_model, tiny_pair
from tests.heads import HEADS, eagle3_head, eagle_head

CASES = [*iter_audit_cases("exact")]
(CHAIN,) = [case for case in CASES if case.name.startswith("eagle3: chain 2 + traversal")]


def test_all_heads_are_audited_on_every_tree_that_grows_level_by_level():
    trees = {
        kind: {c.config.tree.name for c in CASES if c.config.drafter.kind == kind} for kind in HEADS
    }
    assert trees["eagle"] == trees["eagle3"] == trees["mtp"] == trees["dflash"]
    assert trees["eagle"] >= {"chain", "widths", "iid_paths", "stochastic_beam", "sampled_list"}


def test_a_prompt_of_one_token_is_continued_exactly():
    error, _ = enumerate_decoder_error(CHAIN.config, WARM, vocab=3, prompt=(1,))
    assert error <= TOLERANCE


def test_a_reduced_vocabulary_that_is_not_mapped_back_is_caught():
    class Unmapped(Chain):
        def grow_level(self, tree, scores, draws):
            super().grow_level(tree, scores, draws)
            tree.q[-1] = tree.q[-1].roll(1, dims=-1)

    def unmap(decoder):
        decoder.policy = Unmapped(2)

    error, _ = enumerate_decoder_error(CHAIN.config, WARM, vocab=3, modify_decoder=unmap)
    assert error > 1e-3


def test_the_cache_of_the_head_is_counted():
    decoder = built("eagle", tiny_pair("llama"))
    own = 2 * 8 * 1 * 4  # keys and values of one key head of 8, float32
    slots = decoder.count_slots_per_row(10, 5)
    assert decoder.cache_bytes_per_row(10, 5) == slots * (decoder.target.bytes_per_slot + own)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "mtp"])
def test_in_half_precision_too_only_differences_of_positions_matter(kind):
    head = HEADS[kind](16, VOCAB).to(torch.bfloat16)
    torch.manual_seed(1)
    feature, after = (torch.randn(1, 6, 16, dtype=torch.bfloat16) for _ in range(2))

    def attend(layer, q, k, v, scale=None):
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)

    near, far = (
        head.compute_outputs(feature, after, first + torch.arange(6).unsqueeze(0), attend)
        for first in (0, 3000)
    )
    assert (near - far).abs().mean() < 0.02 * near.abs().mean()


TOKENS, WIDTH, CHANGES = 20, 32, 2  # the block that changes the residual stream, the only one
RIGHT = (1, 2, 3)


def counting_target():
    """Six blocks; after token x it says x + 1. With it, per token, what stands behind block 2."""
    torch.manual_seed(0)
    module = tiny_model("llama", vocab_size=TOKENS, hidden_size=WIDTH, num_hidden_layers=6,
                        num_attention_heads=2, tie_word_embeddings=False)  # fmt: skip
    with torch.no_grad():
        module.model.embed_tokens.weight.normal_()
        for number, block in enumerate(module.model.layers):
            block.self_attn.o_proj.weight.zero_()
            for part in (block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj):
                part.weight.normal_(std=0.5 if number == CHANGES else 0.0)
        states = module(torch.arange(TOKENS).unsqueeze(1), output_hidden_states=True).hidden_states
        module.lm_head.weight.copy_(rows_for(states[-1][:, 0], 1))
    return HuggingFaceModel(module, TOKENS, torch.device("cpu")), states[CHANGES + 1][:, 0]


def rows_for(states, further):
    """A last layer that says x + ``further`` at token x's state."""
    return torch.nn.functional.normalize(states, dim=-1).roll(further, dims=0)


def reading_head(states):
    """Passes on the third hidden state that it is handed, and reads the token after next off it."""
    head = Eagle3Head(EagleShape(WIDTH, WIDTH, TOKENS, TOKENS, 2, 2, 16, 8))
    with torch.no_grad():
        for parameter in head.layers.parameters():
            parameter.zero_()
        head.fc.weight.zero_()
        head.fc.weight[:, 2 * WIDTH :] = torch.eye(WIDTH)
        head.lm_head.weight.copy_(rows_for(states, 2))
    return head.eval()


@pytest.mark.parametrize(
    ("moved", "message"),
    [
        (RIGHT, None),
        ((0, 1, 2), "one block later, 1, 2, 3"),
        ((3, 2, 1), "in the opposite order, 1, 2, 3"),
    ],
)
def test_a_head_with_swapped_layer_ids_is_noticed(moved, message):
    target, states = counting_target()
    said = describe_better_layers(reading_head(states), target, moved, (3, 4, 5))
    if message is None:
        assert said is None
    else:
        assert all(each in said for each in (message, "100% with those", "drafter.layer_ids"))


CPU = torch.device("cpu")
HIDDEN, WORDS = 16, 12
EMBEDDING = torch.randn(WORDS, HIDDEN)


def logits_of(head):
    """Of a row of three steps under a causal mask."""
    torch.manual_seed(1)
    feature = head.fuse_hidden_states(torch.randn(1, 3, head.hidden_input_width))
    last = torch.randn(HIDDEN, WORDS)

    def attend(layer, q, k, v, scale):
        keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=True)

    embedded = EMBEDDING[torch.tensor([[3, 1, 4]])]
    with torch.no_grad():
        output = head.compute_outputs(feature, embedded, torch.arange(3)[None], attend)
        return head.compute_logits(output, lambda x: x @ last, WORDS)


def layout(head, family):
    """A head's file, weights and config as a family writes them."""
    _, weights, config = head.to_public_checkpoint()
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
    made = (eagle_head if family == "eagle-1" else eagle3_head)(HIDDEN, WORDS)
    found = load_heads(write(tmp_path, *layout(made, family)), CPU, torch.float32)
    assert found.kind == ("eagle" if family == "eagle-1" else "eagle3")
    assert torch.equal(logits_of(found), logits_of(made))
    assert found.parameter_count == made.parameter_count
    if family != "eagle-1":
        assert found.shape.layer_ids == (1, 2, 0)


def test_two_blocks_are_written_and_read_back(tmp_path):
    made = eagle3_head(HIDDEN, WORDS, layers=2)
    save_heads(made, tmp_path)
    found = load_heads(str(tmp_path), CPU, torch.float32)
    assert torch.equal(logits_of(found), logits_of(made))


def test_a_config_without_rope_theta_means_ten_thousand(tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, WORDS), "eagle-3")
    del config["rope_theta"]
    config["rope_scaling"] = None
    found = load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)
    assert found.shape.rope["rope_theta"] == 10000


def test_a_bias_that_the_config_denies_is_read_from_the_tensors(tmp_path):
    made = eagle_head(HIDDEN, WORDS)
    file, weights, config = layout(made, "eagle-1")
    found = load_heads(write(tmp_path, file, weights, config | {"bias": False}), CPU, torch.float32)
    assert torch.equal(logits_of(found), logits_of(made))


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
    file, weights, config = layout(eagle3_head(HIDDEN, WORDS), "eagle-3")
    config = {key: value for key, value in (config | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)


def test_maps_that_contradict_each_other_are_refused(tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, WORDS), "eagle-3")
    weights["d2t"] = weights["d2t"].clone()
    weights["d2t"][-1] -= 1  # one too few
    with pytest.raises(ValueError, match="d2t"):
        load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)


@pytest.mark.parametrize(
    ("named", "means"), [("auto", (2, 3, 1)), ("input", (1, 2, 0)), ("output", (2, 3, 1))]
)
def test_a_setting_wins_over_what_the_files_family_means(named, means, tmp_path):
    file, weights, config = layout(eagle3_head(HIDDEN, WORDS), "eagle-3")
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 2, 0]
    found = load_heads(write(tmp_path, file, weights, config), CPU, torch.float32)
    assert found.shape.find_hidden_state_indices(6, named) == means


def test_without_ids_the_places_are_the_second_the_middle_and_the_last_but_two():
    assert eagle3_head(HIDDEN, WORDS).shape.find_hidden_state_indices(18) == (2, 9, 15)


def test_a_place_that_no_pass_returns_is_refused():
    with pytest.raises(ValueError, match="hidden state 2 is not among 0 to 1"):
        eagle3_head(HIDDEN, WORDS).shape.find_hidden_state_indices(2)
