"""The target's own answers, kept as they come."""

import pytest

from spec_bench.train.batches import order_of, step_indices
from spec_bench.train.dialogues import Dialogue, answer_prompts, read_prompts, split
from spec_bench.train.settings import AnswerSettings

from .tiny import forgetful_target

PROMPTS = [[1, 2], [3], [4, 5, 6], [7, 8], [2]]
SETTINGS = AnswerSettings(temperatures=(0.0, 1.0), max_new_tokens=12, batch_size=2, seed=3)


def answers(file, settings=SETTINGS):
    return answer_prompts(forgetful_target(), PROMPTS, [0, 11], settings, file)


def test_an_answer_ends_with_its_first_stop_token_or_at_the_limit(tmp_path):
    for answer in answers(tmp_path / "a.jsonl"):
        assert 1 <= len(answer) <= 12
        assert not {0, 11} & set(answer[:-1])
        assert answer[-1] in (0, 11) or len(answer) == 12


def test_greedy_answers_do_not_depend_on_the_batch(tmp_path):
    greedy = AnswerSettings((0.0,), 12, 2)
    alone = AnswerSettings((0.0,), 12, 1)
    assert answers(tmp_path / "a", greedy) == answers(tmp_path / "b", alone)


def test_answers_that_were_cut_off_are_completed_to_the_same_ones(tmp_path):
    whole = answers(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 3
    cut = tmp_path / "cut.jsonl"
    cut.write_text(lines[0] + lines[1][:20])
    assert answers(cut) == whole
    assert cut.read_text() == "".join(lines)


def test_a_line_without_a_prompt_is_named(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(
        ValueError, match=r'prompts\.jsonl, line 2: expected \{"prompt": "\.\.\."\}'
    ):
        read_prompts(file)


def test_a_prompt_is_never_on_both_sides():
    texts = [
        Dialogue((prompt, answer, 1), (False, True, True))
        for prompt in range(60)
        for answer in range(3)
    ]
    train, validation = split(texts, 0.3, 0)
    assert len(train) + len(validation) == 180
    assert 30 < len(validation) < 90
    assert not {d.prompt for d in train} & {d.prompt for d in validation}


def test_an_epoch_takes_every_dialogue_at_most_once_and_epochs_differ():
    steps = [step_indices(10, 4, 0, step) for step in range(4)]
    assert all(len(step) == 4 for step in steps)
    assert len({*steps[0], *steps[1]}) == 8
    assert steps[0] != steps[2]
    assert sorted(order_of(10, 0, 0)) == list(range(10))
