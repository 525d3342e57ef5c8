"""DFlash and DSpark heads: transformers' own layers over one block, the context's cache, files."""

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
from spec_bench.core.tree import Tree
from spec_bench.draft.base import Equipment
from spec_bench.draft.dflash import DFlashDrafting, DFlashHead
from spec_bench.draft.heads import load_heads, save_heads
from spec_bench.tree.chain import Chain
from spec_bench.tree.widths import Widths
from tests.families import VOCAB, tiny_pair
from tests.heads import dflash_head, eagle3_head

BLOCK, HIDDEN = 6, 32
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def drafting_of(head, rows=1):
    target, _ = tiny_pair("llama")
    return DFlashDrafting(Equipment(target, [], [], head, rows, head.allocate(rows, 64)))


def handed(head, tokens, seed=0):
    return torch.randn((tokens, head.features), generator=torch.Generator().manual_seed(seed))


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
    drafting, states = drafting_of(head), handed(head, tokens)
    drafting.start(0, [*range(tokens), 5])
    if tokens:
        drafting.see_prompt(0, 0, states)
    got = levels(drafting, [[*range(tokens), 5]])[0]
    target, _ = tiny_pair("llama")
    block = target.embed(torch.tensor([5, *[head.shape.mask_token] * (BLOCK - 1)]))
    expected = target.project(written_out(head, states, block))[1:, :VOCAB]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("parts", [(3, 5), (1, 1, 6), (7, 1)])
def test_context_in_parts_is_the_context_at_once(parts):
    """As parts of a prompt, and as what verified trees handed over."""
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    states, text = handed(head, 8), [*PROMPT, 7]
    whole, split, verified = (drafting_of(head) for _ in range(3))
    whole.see_prompt(0, 0, states)
    verified.see_prompt(0, 0, states[: parts[0]])
    start = 0
    for part in parts:
        split.see_prompt(0, start, states[start : start + part])
        if start:
            path = torch.arange(part).unsqueeze(0)
            verified.see_path(states[None, start : start + part], path, torch.tensor([part - 1]))
            verified.commit([start], [list(range(part))], path, part)
            levels(verified, [text[: start + part + 1]])
        start += part
    expected = levels(whole, [text])
    torch.testing.assert_close(levels(split, [text]), expected)
    torch.testing.assert_close(levels(verified, [text]), expected)


def test_a_row_in_a_batch_is_the_row_alone():
    """Rows of different lengths that wait with different numbers of entries."""
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    states = handed(head, 12)
    texts = [list(range(6)), list(range(10)), [4]]
    kept = [2, 4, 0]  # of each text's tokens, what a tree brought

    def brought(drafting, row, text, waiting):
        drafting.start(row, text)
        if before := len(text) - 1 - waiting:
            drafting.see_prompt(row, 0, states[:before])
            drafting._cached[row] = before
        drafting._waiting[row] = waiting

    def seen(drafting, places):
        picked = []
        for place in places:
            first = len(texts[place]) - 1 - kept[place]
            picked.append(states[first : first + 4])
        path = torch.arange(4).repeat(len(places), 1)
        drafting.see_path(torch.stack(picked), path, torch.zeros(len(places), dtype=torch.long))

    together = drafting_of(head, rows=3)
    for row, (text, waiting) in enumerate(zip(texts, kept, strict=True)):
        brought(together, row, text, waiting)
    seen(together, [0, 1, 2])
    got = levels(together, texts)
    for row, (text, waiting) in enumerate(zip(texts, kept, strict=True)):
        alone = drafting_of(head)
        brought(alone, 0, text, waiting)
        seen(alone, [row])
        torch.testing.assert_close(got[row], levels(alone, [text])[0], atol=1e-4, rtol=1e-4)


def test_a_block_hangs_on_the_committed_tokens_and_on_the_known_one():
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    drafting, states = drafting_of(head), handed(head, 8)
    drafting.see_prompt(0, 0, states)
    first = levels(drafting, [[*PROMPT, 7]])
    drafting.see_path(torch.full((1, 3, head.features), 9.0), torch.tensor([[0, 1, 2]]), first)
    torch.testing.assert_close(levels(drafting, [[*PROMPT, 7]]), first)
    assert (levels(drafting, [[*PROMPT, 6]]) - first).abs().max() > 1e-2


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


def test_dspark_guesses_the_token_after_the_known_one_with_its_term():
    head = dflash_head(HIDDEN, VOCAB, **DSPARK)
    drafting = drafting_of(head)
    committed = Committed([[*PROMPT, 7]])
    drafting.see_prompt(0, 0, handed(head, 8))
    drafting.needs(committed)
    below = drafting.at_root(committed)
    assert head.shape.levels == 3
    plain = drafting._levels[:, :1].unsqueeze(2)
    term = head.markov_head.markov_w2(head.markov_head.markov_w1.weight[7])
    torch.testing.assert_close(below - plain, term[None, None, None], atol=1e-4, rtol=1e-4)
    tree = Tree(Widths((2, 1), replacement=False).shape, committed.roots.on(torch.device("cpu")))
    tokens = torch.tensor([[11, 4]])
    tree.add_level(tokens, torch.zeros(2, dtype=torch.long), tokens >= 0, None)
    below = drafting.at_frontier(tree, committed)[0, :, 0]
    terms = head.markov_head.markov_w2(head.markov_head.markov_w1.weight[tokens[0]])
    torch.testing.assert_close(below - drafting._levels[0, 1], terms, atol=1e-4, rtol=1e-4)


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
