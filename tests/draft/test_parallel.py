"""Drafts that guess several tokens in one pass of mask tokens: PARD and P-EAGLE."""

from dataclasses import replace

import pytest
import torch

from spec_bench.core.transfer import Committed
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import Equipment
from spec_bench.draft.eagle import EagleDrafting, ParallelEagleDrafting
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.heads import load_heads, save_heads
from spec_bench.draft.language_model import ParallelDrafting
from tests.decode.test_greedy import differences_from_generate
from tests.families import VOCAB, decoder_settings, tiny_pair
from tests.heads import eagle3_head, p_eagle_head

K, MASK, HIDDEN = 4, 1, 32
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


def levels(drafting, texts):
    committed = Committed(texts)
    drafting.needs(committed)
    made = drafting.levels(committed)
    return made


def pard(rows=1):
    _, draft = tiny_pair("llama")
    given = Equipment(draft, [draft], [draft.allocate(rows, 64)], None, rows)
    return ParallelDrafting(given, K, MASK)


@torch.inference_mode()
def test_a_level_is_the_models_own_row_at_its_mask():
    drafting = pard()
    drafting.start(0, TEXT)
    _, draft = tiny_pair("llama")
    whole = draft.module(torch.tensor([[*TEXT, *[MASK] * (K - 1)]])).logits[:, -K:, :VOCAB]
    torch.testing.assert_close(levels(drafting, [TEXT]), whole, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_nothing_of_the_masks_is_kept():
    """Tokens accepted one by one or three at a time, after passes of masks: the same guesses."""
    slow, fast = pard(), pard()
    for drafting in (slow, fast):
        drafting.start(0, TEXT[:3])
        levels(drafting, [TEXT[:3]])
    for end in range(4, 7):
        slow.commit([end - 2], [[0]], torch.tensor([[0]]), 1)
        levels(slow, [TEXT[:end]])
    fast.commit([2], [[0, 1, 2]], torch.tensor([[0, 1, 2]]), 3)
    torch.testing.assert_close(levels(fast, [TEXT[:6]]), levels(slow, [TEXT[:6]]))


@torch.inference_mode()
def test_a_row_in_a_batch_is_the_row_alone():
    texts = [TEXT, TEXT[:2], TEXT[:5]]
    together = pard(rows=3)
    for row, text in enumerate(texts):
        together.start(row, text)
    together._cached = [4, 1, 4]  # 4, 1 and 1 tokens are pending
    got = levels(together, texts)
    for row, text in enumerate(texts):
        alone = pard()
        alone.start(0, text)
        torch.testing.assert_close(got[row], levels(alone, [text])[0], atol=1e-4, rtol=1e-4)


def drafted(kind, head, rows=1, *more):
    target, _ = tiny_pair("llama")
    return kind(Equipment(target, [], [], head, rows, head.allocate(rows, 64)), *more)


def features(count):
    return torch.randn((count, 3 * HIDDEN), generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def test_the_first_level_of_p_eagle_is_eagle_3s():
    """Of the same weights and embeddings; masks come after it, and are not kept."""
    masked, plain = p_eagle_head(HIDDEN, VOCAB), eagle3_head(HIDDEN, VOCAB, layers=2)
    shape = replace(masked.shape, mask_token=None)
    plain = Eagle3Head(shape, masked.ids)
    target, _ = tiny_pair("llama")
    weights = masked.state_dict()
    masked.embed_tokens.weight.copy_(target.embed(torch.arange(VOCAB)))
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    one, two = (drafted(EagleDrafting, plain), drafted(ParallelEagleDrafting, masked, 1, K))
    handed = features(len(TEXT) - 1)
    for step in range(2):
        text = TEXT if not step else [*TEXT, 7, 8, 2]
        committed = Committed([text])
        for drafting in (one, two):
            if not step:
                drafting.start(0, text)
                drafting.see_prompt(0, 0, handed)
            else:
                path = torch.tensor([[0, 1, 2]])
                drafting.see_path(features(3).unsqueeze(0), path, torch.tensor([2]))
                drafting.commit([len(TEXT) - 1], [[0, 1, 2]], path, 3)
            drafting.needs(committed)
        expected, got = one.at_root(committed), two.at_root(committed)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_row_of_p_eagle_in_a_batch_is_the_row_alone():
    head, handed = p_eagle_head(HIDDEN, VOCAB), features(12)
    texts, waiting = [TEXT, TEXT[:4]], [3, 1]

    def given(drafting, row, place):
        drafting.start(row, texts[place])
        drafting.see_prompt(row, 0, handed[: len(texts[place]) - 1])
        drafting._cached[row] = len(texts[place]) - 1 - waiting[place]
        drafting._waiting[row] = waiting[place]

    def seen(drafting, which):
        ends = [len(texts[place]) - 1 for place in which]
        states = [
            handed[end - waiting[place] : end][:3] for end, place in zip(ends, which, strict=True)
        ]
        filled = torch.stack([torch.cat([each, handed[: 3 - len(each)]]) for each in states])
        path = torch.arange(3).repeat(len(which), 1)
        drafting.see_path(filled, path, torch.zeros(len(which), dtype=torch.long))

    together = drafted(ParallelEagleDrafting, head, 2, K)
    for row in range(2):
        given(together, row, row)
    seen(together, [0, 1])
    got = levels(together, texts)
    for row in range(2):
        alone = drafted(ParallelEagleDrafting, head, 1, K)
        given(alone, 0, row)
        seen(alone, [row])
        torch.testing.assert_close(got[row], levels(alone, [texts[row]])[0], atol=1e-4, rtol=1e-4)


def test_p_eagle_files_are_told_by_their_mask(tmp_path):
    head = p_eagle_head(HIDDEN, VOCAB)
    save_heads(head, tmp_path)
    again = load_heads(str(tmp_path), torch.device("cpu"), torch.float32)
    assert again.kind == "eagle3"
    assert again.shape.mask_token == MASK
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
