"""Drafts that guess all levels in one pass of masks: DFlash and DSpark, P-EAGLE, PARD."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_bench.audit.catalogue import WARM, tree_cases
from spec_bench.audit.decoders import enumerated_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.transfer import Committed
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import Equipment
from spec_bench.draft.dflash import DFlashDrafting, DFlashHead
from spec_bench.draft.heads import load_heads, save_heads
from tests.decode.test_greedy import differences_from_generate
from tests.families import VOCAB, decoder_settings, tiny_pair
from tests.heads import dflash_head, eagle3_head, p_eagle_head

BLOCK, HIDDEN = 6, 32


def test_positions_are_exact_in_half_precision():
    head = dflash_head(HIDDEN, VOCAB, block=BLOCK).to(torch.bfloat16)
    x = torch.randn((1, 1, 1, head.shape.head_dim))
    exact = dflash_head(HIDDEN, VOCAB, block=BLOCK)
    far = torch.tensor([[3000]])
    torch.testing.assert_close(head.turn(far)(x), exact.turn(far)(x))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tree", ["dflash: chain 2 + recursive", "dflash: widths 2-1, without"])
def test_a_dspark_head_has_exactly_the_chains_law(monkeypatch, tree, gated):
    """Its law at a node depends on the node's token."""

    def smallest(hidden, vocab):
        return dflash_head(hidden, vocab, block=3, markov_rank=2, gated=gated).double()

    monkeypatch.setattr(DFlashHead, "smallest", smallest)
    case = next(c for c in tree_cases("exact") if c.name.startswith(tree))
    error, count = enumerated_error(case.config, WARM, vocab=3)
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
    again = read(tmp_path)
    assert (again.kind, again.shape) == (kind, head.shape)
    parts = zip(head.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in parts)


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
    assert head.shape.places(3, "auto") == (1, 2)
    assert head.ids.tolist() == kept.nonzero().flatten().tolist()
    target, _ = tiny_pair("llama")
    drafting = DFlashDrafting(Equipment(target, [], [], head, 1, head.allocate(1, 64)))
    committed = Committed([[4]])
    drafting.needs(committed)
    made = drafting.levels(committed)
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


@pytest.mark.parametrize("batch", [1, 3])
def test_pards_greedy_output_equals_generate(batch):
    target, draft = tiny_pair("llama")
    cold = SamplingSettings(temperature=0)
    built = build_decoder(decoder_settings("pard", "5"), target, [draft], cold, batch)
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
