"""Heads of published layouts: DFlash, DSpark, P-EAGLE and PARD in one pass of masks; MTP."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.audit.catalogue import WARM, iter_audit_cases
from spec_bench.audit.decoders import enumerate_decoder_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.host_device import CommittedTokens
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import DraftResources
from spec_bench.draft.dflash import DFlashDraftState, DFlashHead
from spec_bench.draft.eagle import Eagle3
from spec_bench.draft.heads import load_heads, save_heads
from spec_bench.draft.mtp import MtpHead, MtpShape
from spec_bench.engine.loading import load_model
from spec_bench.engine.model_spec import ModelSpec
from tests.families import VOCAB, decoder_settings, tiny_pair
from tests.heads import dflash_head, eagle3_head, p_eagle_head

BLOCK, HIDDEN = 6, 32


def test_a_heads_rotation_is_as_long_as_yarn_has_it():
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    head = eagle3_head(HIDDEN, VOCAB, rope=rope, max_positions=64)
    cos, sin = head.compute_rotation(torch.arange(9).unsqueeze(0))
    longer = 0.1 * math.log(4.0) + 1
    assert (cos.square() + sin.square()).sqrt().flatten().tolist() == pytest.approx([longer] * 72)


def test_a_head_that_guesses_all_levels_at_once_is_called_once():
    assert (Eagle3(parallel=3).count_draft_calls(3), Eagle3().count_draft_calls(3)) == (1, 3)


def test_positions_are_exact_in_half_precision():
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK).to(torch.bfloat16)
    x = torch.randn((1, 1, 1, head.shape.head_dim))
    exact = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    far = torch.tensor([[3000]])
    torch.testing.assert_close(head.compute_rotation(far)(x), exact.compute_rotation(far)(x))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tree", ["dflash: chain 2 + recursive", "dflash: widths 2-1, without"])
def test_a_dspark_head_has_exactly_the_chains_law(monkeypatch, tree, gated):
    def smallest(hidden, vocab):
        return dflash_head(hidden, vocab, block=3, markov_rank=2, gated=gated).double()

    monkeypatch.setattr(DFlashHead, "make_smallest", smallest)
    case = next(c for c in iter_audit_cases("exact") if c.name.startswith(tree))
    error, count = enumerate_decoder_error(case.config, WARM, vocab=3)
    assert error <= TOLERANCE
    assert count > 1


def read(folder):
    return load_heads(str(folder), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("dflash", dflash_head(HIDDEN, VOCAB, block=BLOCK)),
        ("dflash", dflash_head(HIDDEN, VOCAB, block=BLOCK, markov_rank=4)),
        ("dflash", dflash_head(HIDDEN, VOCAB, block=BLOCK, markov_rank=4, gated=True)),
        ("eagle3", eagle3_head(HIDDEN, VOCAB)),
        ("eagle3", p_eagle_head(HIDDEN, VOCAB)),
    ],
)
def test_written_heads_are_read_again_as_their_kind(tmp_path, kind, head):
    save_heads(head, tmp_path)
    again, config = read(tmp_path), json.loads((tmp_path / "config.json").read_text())
    assert (again.kind, again.shape) == (kind, head.shape)
    assert (config["model_type"] == "speculators") == (kind == "eagle3")  # how vLLM knows it
    assert all(map(torch.equal, head.parameters(), again.parameters()))


def change(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_speculators_ids_name_inputs_and_its_own_last_layer_is_read(tmp_path):
    save_heads(dflash_head(HIDDEN, VOCAB, block=BLOCK), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = torch.arange(VOCAB) % 3 > 0
    weights |= {"t2d": kept, "lm_head.weight": torch.randn(int(kept.sum()), HIDDEN)}
    save_file(weights, tmp_path / "model.safetensors")
    theirs = {"speculators_model_type": "dflash", "aux_hidden_state_layer_ids": [1, 2]}
    change(tmp_path, dflash_config=None, mask_token_id=1, **theirs)
    head = read(tmp_path)
    assert head.shape.find_hidden_state_indices(3, "auto") == (1, 2)
    assert head.ids.tolist() == kept.nonzero().flatten().tolist()
    target, _ = tiny_pair("llama")
    drafting = DFlashDraftState(DraftResources(target, [], [], head, 1, head.allocate(1, 64)))
    committed = CommittedTokens([[4]])
    drafting.device_inputs(committed)
    made = drafting.compute_level_logits(committed)
    assert torch.isinf(made[..., ~kept]).all()
    assert torch.isfinite(made[..., kept]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 2}, "sliding attention"),
        ({"block_size": None}, "names no block_size"),
        ({"dflash_config": {"target_layer_ids": [0], "mask_token_id": 1}}, "fc reads 64 numbers"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, changes, message):
    save_heads(dflash_head(HIDDEN, VOCAB, block=BLOCK), tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "drafter", "head", "message"),
    [
        ("eagle3", {"kind": "eagle3"}, p_eagle_head, "trained to guess all levels at once"),
        (
            "eagle3",
            {"kind": "eagle3", "parallel": 8},
            eagle3_head,
            "level by level.* no P-EAGLE head",
        ),
        ("p_eagle", {"kind": "eagle3", "parallel": 3}, p_eagle_head, "7 levels deep.* reaches 3"),
        ("pard", {"kind": "pard", "levels": 3}, None, "12 levels deep, its drafter reaches 3"),
    ],
)
def test_what_was_not_trained_for_it_is_refused(name, drafter, head, message):
    target, draft = tiny_pair("llama")
    heads = head and head(target.hidden_size, VOCAB)
    settings = decoder_settings(name) | {"drafter": drafter}
    with pytest.raises(ValueError, match=message):
        build_decoder(settings, target, [draft], SamplingSettings(), 1, heads=heads)


def test_a_draft_without_a_mask_token_is_refused():
    target, draft = tiny_pair.__wrapped__("llama")
    draft.mask_token = None
    built = build_decoder(decoder_settings("pard"), target, [draft], SamplingSettings(), 1)
    with pytest.raises(ValueError, match="names no pard_token"):
        built.reserve(40)


WIDTH, TOKENS = 32, 30
COMMON = {
    "vocab_size": TOKENS, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
    "v_head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
CONFIGS = {
    "llama": COMMON | {"model_type": "llama"},
    "mimo": COMMON | {"model_type": "mimo"},
    "glm4_moe": COMMON | EXPERTS | {"model_type": "glm4_moe", "head_dim": 8},
    "deepseek_v3": COMMON | EXPERTS | LATENT | {"model_type": "deepseek_v3"},
}


def head_of(family, seed=0):
    torch.manual_seed(seed)
    made = MtpHead(MtpShape(CONFIGS[family])).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return made


def causal(layer, q, k, v, scale=None):
    return scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def outputs(head, feature, after):
    return head.compute_outputs(feature, after, torch.arange(after.shape[1]).unsqueeze(0), causal)


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_the_first_token_is_that_of_transformers_own_layer(family):
    layers = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(layers, "MtpModel"):
        pytest.skip("this transformers has no MtpModel")
    head = head_of(family)
    config = AutoConfig.for_model(**CONFIGS[family], num_mtp_layers=1)
    torch.manual_seed(3)
    target = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    theirs = layers.MtpModel(target, 1).eval()
    own = theirs.layers[0]
    for ours, part in {
        "enorm": own.enorm, "hnorm": own.hnorm, "eh_proj": own.eh_proj, "norm": own.post_norm,
        "block": own.mtp_block,
    }.items():  # fmt: skip
        part.load_state_dict(head.get_submodule(ours).state_dict())
    tokens = torch.randint(0, TOKENS, (1, 9))
    with torch.inference_mode():
        states = target(tokens, output_hidden_states=True).hidden_states[-1]
        after = torch.cat([tokens[:, 1:], torch.tensor([[4]])], 1)
        positions = torch.arange(1, 10).unsqueeze(0)
        own_output = own(
            target.get_input_embeddings()(after), states,
            theirs.rotary_emb(states, positions), None, positions, None,
        )  # fmt: skip
        wanted = target.lm_head(own_output)
        found = head.compute_own_logits(
            outputs(head, states, target.get_input_embeddings()(after)), target.lm_head
        )
    assert torch.allclose(found[:, -1], wanted[:, -1], atol=1e-5)
    assert found.std() > 0.01


@pytest.mark.parametrize("family", CONFIGS)
def test_what_the_cache_keeps_is_what_the_attention_hands_over(family):
    head, seen = head_of(family), []

    def attend(layer, q, k, v, scale=None):
        seen.append((k.shape[1], k.shape[3], v.shape[3]))
        return causal(layer, q, k, v, scale)

    head.compute_outputs(
        torch.randn(1, 3, WIDTH), torch.randn(1, 3, WIDTH), torch.arange(3)[None], attend
    )
    layouts = head.cache_layouts
    assert [(each.heads, each.key_dim, each.value_dim) for each in layouts] == seen
    if family == "deepseek_v3":
        assert seen == [(4, 10, 8)]


def assert_read_again(head, folder):
    again = read(folder)
    feature, after = torch.randn(2, 1, 5, WIDTH).unbind(0)
    assert torch.equal(outputs(head, feature, after), outputs(again, feature, after))
    assert again.parameter_count == head.parameter_count


@pytest.mark.parametrize("family", CONFIGS)
def test_written_and_read_again_it_says_the_same(family, tmp_path):
    save_heads(head := head_of(family), tmp_path)
    assert_read_again(head, tmp_path)


def test_experts_in_published_files_are_one_tensor_each(tmp_path):
    head = head_of("deepseek_v3")
    save_heads(head, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    joint = "model.layers.3.mlp.experts.gate_up_proj"
    gates, ups = weights.pop(joint).chunk(2, dim=1)
    downs = weights.pop("model.layers.3.mlp.experts.down_proj")
    for expert in range(4):
        for name, part in {"gate": gates, "up": ups, "down": downs}.items():
            place = f"model.layers.3.mlp.experts.{expert}.{name}_proj.weight"
            weights[place] = part[expert].clone()
    weights["model.layers.3.embed_tokens.weight"] = torch.zeros(TOKENS, WIDTH)
    weights["model.layers.3.shared_head.head.weight"] = torch.zeros(TOKENS, WIDTH)
    weights["model.layers.0.input_layernorm.weight"] = torch.zeros(WIDTH)  # the target's own
    first, second = dict(list(weights.items())[::2]), dict(list(weights.items())[1::2])
    (tmp_path / "model.safetensors").unlink()
    save_file(first, tmp_path / "a.safetensors")
    save_file(second, tmp_path / "b.safetensors")
    index = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert_read_again(head, tmp_path)


def test_the_targets_last_layer_reads_what_is_fed_back():
    head = head_of("llama")
    output = 100 * torch.randn(2, 3, WIDTH)
    fed_back = head.to_next_feature(output)
    assert torch.equal(head.compute_own_logits(output, lambda read: read), fed_back)
    torch.testing.assert_close(head.to_next_feature(output / 50), fed_back)
    assert not torch.allclose(fed_back, output)


def test_mimo_reads_the_hidden_state_first():
    mimo, llama = head_of("mimo"), head_of("llama")
    feature, after = torch.randn(2, 1, 5, WIDTH).unbind(0)
    with torch.no_grad():
        mimo.eh_proj.weight.zero_()
        mimo.eh_proj.weight[:, :WIDTH] = torch.eye(WIDTH)  # of the two the first half
    assert torch.equal(outputs(mimo, feature, after), outputs(mimo, feature, after + 1))
    assert not torch.equal(outputs(llama, feature, after), outputs(llama, feature, after + 1))


def test_a_mimo_folder_is_target_and_head_at_once(tmp_path):
    head = head_of("mimo")
    torch.manual_seed(1)
    body = {key: value for key, value in CONFIGS["mimo"].items() if key != "model_type"}
    target = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **body)).eval()
    target.save_pretrained(tmp_path)
    _, tensors, config = head.to_public_checkpoint()
    own = load_file(tmp_path / "model.safetensors")
    save_file(own | tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    remote = {"auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config | remote))
    loaded = load_model(ModelSpec(str(tmp_path)))
    tokens = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module(tokens).logits, target(tokens).logits)
    assert_read_again(head, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.layers.4.enorm.weight": torch.ones(WIDTH)}, "several MTP layers"),
        (
            {"model.layers.3.eh_proj.weight": torch.ones(WIDTH, 2 * WIDTH).to(torch.float8_e4m3fn)},
            "eh_proj.weight is quantised",
        ),
        ({"model.layers.3.hnorm.weight": None}, "do not fit: Missing key"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(change, said, tmp_path):
    save_heads(head_of("llama"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors") | change
    save_file({k: v for k, v in weights.items() if v is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=said):
        read(tmp_path)
