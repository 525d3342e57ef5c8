"""Heads learn to guess the very tokens that decoding asks them for."""

import pytest
import torch

from spec_bench.engine.model import LAST
from spec_bench.train.batches import Batches
from spec_bench.train.dialogues import IGNORED, Dialogue, known_and_guessed, positions
from spec_bench.train.loop import measure

from .tiny import VOCAB, forgetful_target, random_text, trained, two_streams

CHANCE = 1 / VOCAB


def learned(folder, kind, dialogues):
    """Validation accuracy of three guesses."""
    plan = trained(folder, kind, dialogues, 60, learning_rate=0.03, validate_every=60)
    held_out = range(len(plan.validation.dialogues))
    accuracy = measure(plan.trainee, plan.validation, held_out, 1)
    return accuracy.best


def test_medusa_sees_token_t_and_guesses_from_t_plus_2_on(tmp_path):
    # Token t settles t + 2 and t + 4, guesses 1 and 3. Shifted by one, these would be t + 1 and
    # t + 3, which it says nothing about.
    first, second, third = learned(tmp_path, "medusa", two_streams(96, 16))
    assert first == third == 1
    assert second < 3 * CHANCE


@pytest.mark.parametrize("kind", ["redrafter", "redrafter_no_rnn"])
def test_redrafter_sees_token_t_plus_1_as_well(kind, tmp_path):
    # Guess 2 is token t + 3, which t + 1 settles and t does not.
    first, second, third = learned(tmp_path, kind, two_streams(96, 16))
    assert first == second == third == 1


@pytest.mark.parametrize("kind", ["medusa", "redrafter"])
def test_no_guess_sees_the_token_that_it_is_about(kind, tmp_path):
    assert max(learned(tmp_path, kind, random_text(96, 16))) < 3 * CHANCE


def test_positions_and_their_tokens_by_hand():
    #                    0      1      2     3     4     5      6      7     8
    dialogue = Dialogue(
        (10, 11, 12, 13, 14, 15, 16, 17, 18),
        (False, False, True, True, True, False, False, True, True),
    )
    assert positions(dialogue) == [1, 2, 6]
    assert known_and_guessed(dialogue, 3).tolist() == [
        [12, 13, 14, IGNORED],  # 15 is no answer's
        [13, 14, IGNORED, IGNORED],  # nor are 17 and 18 this answer's
        [17, 18, IGNORED, IGNORED],
    ]


def test_an_answer_of_one_token_teaches_nothing():
    assert positions(Dialogue((1, 2, 3), (False, False, True))) == []


def test_hidden_states_are_those_that_decoding_hands_to_the_heads():
    model = forgetful_target()
    dialogues = [Dialogue((3, 1, 4, 1, 5), (False, True, True, True, True)), *random_text(1, 9)]
    found = Batches(model, dialogues, 1).hidden(range(len(dialogues)))
    expected = []
    for dialogue in dialogues:
        length = len(dialogue.ids)
        output = model.forward(
            model.allocate(1, length),
            [0],
            torch.tensor([dialogue.ids]),
            torch.arange(length)[None],
            torch.ones(1, length, length).tril().bool(),
            needs_hidden=LAST,
        )
        expected.append(output.hidden[0, positions(dialogue)])
    torch.testing.assert_close(found, torch.cat(expected))
