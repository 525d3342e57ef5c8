"""Drafts that guess all levels in one pass of masks: DFlash and DSpark, P-EAGLE, PARD."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from spec_bench.audit.catalogue import WARM, tree_cases
from spec_bench.audit.decoders import enumerated_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.transfer import Committed
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import Equipment
from spec_bench.draft.dflash import DFlashDrafting, DFlashHead
from spec_bench.draft.heads import load_heads, save_heads
from spec_bench.tree.chain import Chain
from tests.decode.test_greedy import differences_from_generate
from tests.families import VOCAB, decoder_settings, tiny_pair
from tests.heads import dflash_head, eagle3_head, p_eagle_head

BLOCK, HIDDEN = 6, 32


def drafting_of(head):
    target, _ = tiny_pair("llama")
    return DFlashDrafting(Equipment(target, [], [], head, 1, head.allocate(1, 64)))


def levels(drafting, texts):
    committed = Committed(texts)
    drafting.needs(committed)
    return drafting.levels(committed)


@torch.inference_mode()
def written_out(head, states, block):
    """[B, D] of one block [B, D] after states [T, W], with the parts of transformers."""
    shape, count = head.shape, len(states)
    config = Qwen3Config(
        hidden_size=shape.width, head_dim=shape.head_dim, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, intermediate_size=shape.inner, rms_norm_eps=shape.eps,
        num_hidden_layers=shape.layers, rope_parameters=dict(shape.rope),
    )  # fmt: skip
    config._attn_implementation = "eager"
    positions = torch.arange(count + len(block)).unsqueeze(0)
    entries = head.hidden_norm(head.fc(states)).unsqueeze(0)
    x = block.unsqueeze(0)
    cos, sin = qwen3.Qwen3RotaryEmbedding(config)(x, positions)
    for place, ours in enumerate(head.layers):
        layer = qwen3.Qwen3DecoderLayer(config, place)
        layer.load_state_dict(ours.state_dict())
        attention, split = layer.self_attn, (-1, shape.head_dim)
        normed = layer.input_layernorm(x)
        both = torch.cat([entries, normed], dim=1)
        q = attention.q_norm(attention.q_proj(normed).unflatten(-1, split)).transpose(1, 2)
        k = attention.k_norm(attention.k_proj(both).unflatten(-1, split)).transpose(1, 2)
        v = attention.v_proj(both).unflatten(-1, split).transpose(1, 2)
        q, _ = qwen3.apply_rotary_pos_emb(q, q, cos[:, count:], sin[:, count:])
        k, _ = qwen3.apply_rotary_pos_emb(k, k, cos, sin)
        mixed = scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return head.norm(x)[0]


@torch.inference_mode()
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_a_block_is_what_transformers_own_layers_make_of_it(tokens):
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    drafting, states = drafting_of(head), torch.randn((tokens, head.features))
    drafting.start(0, [*range(tokens), 5])
    if tokens:
        drafting.see_prompt(0, 0, states)
    got = levels(drafting, [[*range(tokens), 5]])[0]
    target, _ = tiny_pair("llama")
    block = target.embed(torch.tensor([5, *[head.shape.mask_token] * (BLOCK - 1)]))
    expected = target.project(written_out(head, states, block))[1:, :VOCAB]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_positions_are_exact_in_half_precision():
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK).to(torch.bfloat16)
    x = torch.randn((1, 1, 1, head.shape.head_dim))
    exact = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    far = torch.tensor([[3000]])
    torch.testing.assert_close(head.turn(far)(x), exact.turn(far)(x))


DSPARK = {"block": 3, "markov_rank": 2}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tree", ["dflash: chain 2 + recursive", "dflash: widths 2-1, without"])
def test_a_dspark_head_has_exactly_the_chains_law(monkeypatch, tree, gated):
    """Its law at a node depends on the node's token."""
    monkeypatch.setattr(
        DFlashHead, "smallest", lambda hidden, vocab: _spark(hidden, vocab, gated=gated)
    )
    case = next(c for c in tree_cases("exact") if c.name.startswith(tree))
    error, count = enumerated_error(case.config, WARM, vocab=3)
    assert error <= TOLERANCE
    assert count > 1


def test_a_term_of_another_nodes_token_is_caught(monkeypatch):
    """Drawn with each node's own term, the walk told of the first token's."""
    monkeypatch.setattr(DFlashHead, "smallest", lambda hidden, vocab: _spark(hidden, vocab))

    class Misinformed(Chain):
        def grow(self, tree, scores, draws):
            super().grow(tree, scores, draws)
            law = tree.q[-1]
            assert law is not None
            tree.q[-1] = law.roll(1, dims=-1)

    def misinform(built):
        built.policy = Misinformed(2)

    case = next(c for c in tree_cases("exact") if c.name.startswith("dflash: chain 2 + recursive"))
    error, _ = enumerated_error(case.config, WARM, vocab=3, alter=misinform)
    assert error > 1e-3


def _spark(hidden, vocab, **changes):
    return dflash_head(hidden, vocab, **DSPARK, **changes).double()


@pytest.mark.parametrize("changes", [{}, {"markov_rank": 4}, {"markov_rank": 4, "gated": True}])
def test_written_heads_are_read_again(tmp_path, changes):
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK, **changes)
    save_heads(head, tmp_path)
    again = load_heads(str(tmp_path), torch.device("cpu"), torch.float32)
    assert again.kind == "dflash"
    assert again.shape == head.shape
    assert again.shape.places(3, "auto") == (0, 1)
    assert all(
        torch.equal(one, two)
        for one, two in zip(head.parameters(), again.parameters(), strict=True)
    )


def test_an_eagle3_head_is_not_taken_for_one(tmp_path):
    save_heads(eagle3_head(HIDDEN, VOCAB), tmp_path)
    assert load_heads(str(tmp_path), torch.device("cpu"), torch.float32).kind == "eagle3"


def changed(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**config, **changes}.items() if v is not None}))
    return str(folder)


def test_speculators_ids_name_inputs_and_its_own_last_layer_is_read(tmp_path):
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    save_heads(head, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = torch.arange(VOCAB) % 3 > 0
    weights |= {"t2d": kept, "lm_head.weight": torch.randn(int(kept.sum()), HIDDEN)}
    save_file(weights, tmp_path / "model.safetensors")
    folder = changed(
        tmp_path,
        dflash_config=None,
        speculators_model_type="dflash",
        aux_hidden_state_layer_ids=[1, 2],
        mask_token_id=1,
    )
    read = load_heads(folder, torch.device("cpu"), torch.float32)
    assert isinstance(read, DFlashHead)
    assert read.shape.places(3, "auto") == (1, 2)
    assert read.ids is not None
    assert read.ids.tolist() == kept.nonzero().flatten().tolist()
    drafting = drafting_of(read)
    made = levels(drafting, [[4]])
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
    with pytest.raises(ValueError, match=message):
        load_heads(changed(tmp_path, **changes), torch.device("cpu"), torch.float32)


def test_p_eagle_files_are_told_by_their_mask(tmp_path):
    head = p_eagle_head(HIDDEN, VOCAB)
    save_heads(head, tmp_path)
    again = load_heads(str(tmp_path), torch.device("cpu"), torch.float32)
    assert again.kind == "eagle3"
    assert again.shape.mask_token == 1
    assert torch.equal(again.mask_hidden, head.mask_hidden)
    assert torch.equal(again.embed_tokens.weight, head.embed_tokens.weight)


@pytest.mark.parametrize("batch", [1, 3])
def test_pards_greedy_output_equals_generate(batch):
    target, draft = tiny_pair("llama")
    built = build_decoder(
        decoder_settings("pard", "5"), target, [draft], SamplingSettings(temperature=0), batch
    )
    differences = differences_from_generate(built, "llama", batch)
    assert all(difference.near_tie for difference in differences), differences
    assert built.draft_calls == 1


@pytest.mark.parametrize(
    ("name", "drafter", "head", "message"),
    [
        ("eagle3", {"kind": "eagle3"}, p_eagle_head, "trained to guess all levels at once"),
        ("eagle3", {"kind": "eagle3", "parallel": 8}, eagle3_head, "to guess level by level"),
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
