"""A draft model with a vocabulary of its own learns the target's law over it."""

from unittest.mock import Mock

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.mapped_model import FILE, MappedModel, behind
from spec_bench.records.types import Request
from spec_bench.train.dialogues import Dialogue, user_opening
from spec_bench.train.loop import measure, run_training
from spec_bench.train.trainee import DraftModel, DraftTrainee, TextBatches, known_tokens
from tests.families import decoder_settings

from .tiny import VOCAB, forgetful_target, planned, random_text, settings

IDS = (0, 1, 3, 4, 6, 7, 9, 10, 11)  # of 12
SHAPE = dict.fromkeys(("hidden_size", "intermediate_size"), 64)
SHAPE |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)


def batches(dialogues):
    return TextBatches(forgetful_target(), dialogues, 1)


def trainee():
    torch.manual_seed(0)
    last = forgetful_target().module.get_output_embeddings().weight.detach().float()
    return DraftTrainee(DraftModel(IDS, VOCAB, SHAPE), last)


def training(folder, steps):
    texts = random_text(40, 20)
    made = settings(folder, "draft_model", 1, learning_rate=5e-3)
    return planned(made, trainee(), batches(texts[:32]), batches(texts[32:]), steps)


def test_what_it_learns_at_a_position_is_the_targets_law_of_the_next_token():
    dialogue = Dialogue((1, 2, 3, 4, 5), (False, False, True, True, False))
    batch = batches([dialogue]).of([0])
    assert batch.at.tolist() == [[0, 1], [0, 2]]
    assert batch.guessed.tolist() == [[3], [4]]
    assert batches([dialogue]).counts([0]) == [2]
    model = forgetful_target()
    expected = model.module(input_ids=batch.tokens).logits[0, 1:3]
    (law,) = trainee().wanted(batch)
    torch.testing.assert_close(law, expected)


def test_it_comes_near_the_targets_law_as_far_as_it_knows_the_tokens(tmp_path):
    made = training(tmp_path, 40)
    everything = range(8)
    before = measure(made.trainee, made.validation, everything, 4)
    run_training(made)
    after = measure(made.trainee, made.validation, everything, 4)
    (logits,) = made.trainee.wanted(made.validation.of(everything))
    reach = float(logits.softmax(-1)[:, IDS].sum(-1).mean())  # what any draft over them could share
    lacked, lacks = reach - before.overlaps[0], reach - after.overlaps[0]
    assert -1e-6 < lacks < 0.3 * lacked


def test_what_is_saved_drafts_losslessly_behind_the_target(tmp_path):
    made = training(tmp_path, 10)
    run_training(made)
    made.trainee.save(tmp_path / "draft", torch.float32)
    draft = behind(load_model(ModelSpec(str(tmp_path / "draft"))), str(tmp_path / "draft"), VOCAB)
    assert isinstance(draft, MappedModel)
    target, request = forgetful_target(), Request("a", (2, 5, 1), 12)
    greedy = SamplingSettings(temperature=0)
    plain = build_decoder(decoder_settings("ar"), target, [], greedy)
    tree = build_decoder(decoder_settings("rsd_s", "2x2"), target, [draft], greedy)
    ours, theirs = (each.generate([request], seed=0)[0].tokens for each in (tree, plain))
    assert ours == theirs
    batch = made.validation.of([0])
    (learned,) = made.trainee.logits(batch)
    seen = draft.forward(
        *(draft.allocate(1, 32), [0], batch.tokens, torch.arange(20)[None]),
        torch.ones(20, 20, dtype=torch.bool).tril()[None],
    ).logits[0, :-1]
    torch.testing.assert_close(seen, learned, rtol=1e-3, atol=1e-4)
    # A folder whose tokens do not fit its weights is named.
    DraftModel(IDS[:-1], VOCAB, SHAPE).module.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / FILE).write_bytes((tmp_path / "draft" / FILE).read_bytes())
    model = load_model(ModelSpec(str(tmp_path / "other")))
    with pytest.raises(ValueError, match="it knows 9 tokens, so 10 must be embedded, got 9"):
        behind(model, str(tmp_path / "other"), VOCAB)


def test_known_are_the_answers_frequent_tokens_then_the_lowest_ids():
    dialogue = Dialogue((9, 9, 8, 7, 7, 7, 8, 5), (False, False, *[True] * 6))
    assert known_tokens([dialogue], 4) == (0, 1, 7, 8)  # 7 three times, 8 twice, 5 once


def test_a_user_is_opened_as_the_template_opens_one():
    words = Mock(chat_template="{{ messages }}")
    words.apply_chat_template = lambda messages, **_: f"SYSTEM\nUSER {messages[0]['content']} END"
    words.side_effect = lambda text, **_: {"input_ids": [len(word) for word in text.split()]}
    assert user_opening(words, "") == (6, 4)
    assert user_opening(words, "Summarize:") == (6, 4, 10)
