"""A draft model with a vocabulary of its own learns the target's law over it."""

from unittest.mock import Mock

import pytest
import torch

from spec_bench.core.host_device import CommittedTokens
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import DraftResources
from spec_bench.draft.pard import Pard
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.mapped_model import FILE, VocabularyMappedModel, fit_draft_to_vocabulary
from spec_bench.records.types import Request
from spec_bench.train.batches import IGNORED_LABEL
from spec_bench.train.dialogues import Dialogue, encode_user_opening
from spec_bench.train.draft_model import (
    MistralDraftModel,
    TextBatches,
    TrainableDraftModel,
    select_draft_vocabulary,
)
from spec_bench.train.loop import measure_accuracy, run_training
from tests.families import decoder_settings

from .tiny import VOCAB, forgetful_target, planned, random_text, settings

IDS = (0, 1, 3, 4, 6, 7, 9, 10, 11)  # of 12
SHAPE = dict.fromkeys(("hidden_size", "intermediate_size"), 64)
SHAPE |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 2) | {"sliding_window": 4}
GUESSES = pytest.mark.parametrize("guesses", [1, 3])


def batches(dialogues, guesses=1):
    return TextBatches(forgetful_target(), dialogues, guesses)


def trainee(guesses=1, shape=SHAPE):
    torch.manual_seed(0)
    last = forgetful_target().module.get_output_embeddings().weight.detach().float()
    return TrainableDraftModel(MistralDraftModel(IDS, VOCAB, shape, guesses), last)


def training(folder, steps, guesses=1):
    texts = random_text(40, 20)
    made = settings(folder, "draft_model", guesses, learning_rate=5e-3)
    sides = (batches(part, guesses) for part in (texts[:32], texts[32:]))
    return planned(made, trainee(guesses), *sides, steps)


def test_what_it_learns_at_a_position_is_the_targets_law_of_the_next_token():
    dialogue = Dialogue((1, 2, 3, 4, 5, 6), (False, False, True, True, True, False))
    batch = batches([dialogue], 2).make_batch([0])
    assert batch.locations.tolist() == [[0, 1], [0, 2], [0, 3]]
    assert batch.labels.tolist() == [[3, 4], [4, 5], [5, IGNORED_LABEL]]
    assert batches([dialogue], 2).count_labels([0]) == [3, 2]
    expected = forgetful_target().module(input_ids=batch.tokens).logits[0, 1:4]
    law, second = trainee(2).iter_target_logits(batch)
    torch.testing.assert_close(law, expected)
    torch.testing.assert_close(second[:2], expected[1:])


@GUESSES
def test_it_comes_near_the_targets_law_as_far_as_it_knows_the_tokens(tmp_path, guesses):
    made = training(tmp_path, 40, guesses)
    everything = range(8)
    before = measure_accuracy(made.trainee, made.validation_batches, everything, 4)
    run_training(made)
    after = measure_accuracy(made.trainee, made.validation_batches, everything, 4)
    logits, *_ = made.trainee.iter_target_logits(made.validation_batches.make_batch(everything))
    reach = float(logits.softmax(-1)[:, IDS].sum(-1).mean())  # what any draft over them could share
    lacked, lacks = reach - before.overlaps[0], reach - after.overlaps[0]
    assert -1e-6 < lacks < 0.3 * lacked
    assert all(x < y for x, y in zip(before.overlaps, after.overlaps, strict=True))


def test_the_loss_of_each_level_is_held_against_the_target_there(monkeypatch):
    monkeypatch.setattr("spec_bench.train.draft_model.MASKED_SHARE", 1.0)
    learner, batch = trainee(3), batches(random_text(2, 9), 3).make_batch([0, 1])
    levels = zip(
        learner.iter_guess_logits(batch),
        learner.iter_target_logits(batch),
        batch.labels.T,
        strict=True,
    )
    for loss, (q, p, tokens) in zip(learner(*batch).loss, levels, strict=True):
        q, p = (each[tokens != IGNORED_LABEL][:, IDS] for each in (q, p))
        torch.testing.assert_close(loss, -(p.softmax(-1) * q.log_softmax(-1)).sum())


@GUESSES
def test_what_is_saved_drafts_losslessly_and_as_training_has_it(tmp_path, guesses):
    made = training(tmp_path, 10, guesses)
    run_training(made)
    made.trainee.round_and_save(tmp_path / "draft", torch.float32)
    draft = fit_draft_to_vocabulary(
        load_model(ModelSpec(str(tmp_path / "draft"))), str(tmp_path / "draft"), VOCAB
    )
    assert isinstance(draft, VocabularyMappedModel)
    target, request = forgetful_target(), Request("a", (2, 5, 1), 12)
    greedy = SamplingSettings(temperature=0)
    plain = build_decoder(decoder_settings("ar"), target, [], greedy)
    how = decoder_settings("pard", "3") if guesses > 1 else decoder_settings("rsd_s", "2x2")
    tree = build_decoder(how, target, [draft], greedy)
    ours, theirs = (each.generate([request], seed=0)[0].tokens for each in (tree, plain))
    assert ours == theirs
    batch = made.validation_batches.make_batch([0])
    learned = torch.stack(list(made.trainee.iter_guess_logits(batch)), dim=1)
    pard = Pard(guesses, None if guesses > 1 else 0)
    for end, expected in enumerate(learned, start=1):  # one level needs no mask
        resources = DraftResources(target, [draft], [draft.allocate(1, 32)], None, 1)
        drafting, text = (
            pard.make_state(resources),
            CommittedTokens([batch.tokens[0, :end].tolist()]),
        )
        drafting.start_row(0, text[0])
        drafting.device_inputs(text)
        torch.testing.assert_close(
            drafting.compute_level_logits(text)[0], expected, rtol=1e-3, atol=1e-4
        )
    # One that begins as this draft says the same.
    again = trainee(2, tmp_path / "draft").iter_guess_logits(
        batches(made.validation_batches.dialogues, 2).make_batch([0])
    )
    torch.testing.assert_close(next(again), learned[:, 0])
    # A folder whose tokens do not fit its weights is named.
    MistralDraftModel(IDS[:-1], VOCAB, SHAPE, guesses).module.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / FILE).write_bytes((tmp_path / "draft" / FILE).read_bytes())
    model = load_model(ModelSpec(str(tmp_path / "other")))
    with pytest.raises(ValueError, match=r"it knows 9 tokens, so 1\d must be embedded, got"):
        fit_draft_to_vocabulary(model, str(tmp_path / "other"), VOCAB)


def test_known_are_the_answers_frequent_tokens_then_the_lowest_ids():
    dialogue = Dialogue((9, 9, 8, 7, 7, 7, 8, 5), (False, False, *[True] * 6))
    assert select_draft_vocabulary([dialogue], 4) == (0, 1, 7, 8)  # 7 three times, 8 twice, 5 once


def test_a_user_is_opened_as_the_template_opens_one():
    words = Mock(chat_template="{{ messages }}")
    words.apply_chat_template = lambda messages, **_: f"SYSTEM\nUSER {messages[0]['content']} END"
    words.side_effect = lambda text, **_: {"input_ids": [len(word) for word in text.split()]}
    assert encode_user_opening(words, "") == (6, 4)
    assert encode_user_opening(words, "Summarize:") == (6, 4, 10)
