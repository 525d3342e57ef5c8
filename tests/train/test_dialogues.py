"""What heads learn from: chats in ShareGPT's format, the target's own answers; wrong files."""

import json

import pytest
import torch

from spec_bench.engine.loading import load_tokenizer
from spec_bench.engine.model import LAST
from spec_bench.jobs.config.model_files import resolve_or_convert_model
from spec_bench.tasks import build_task_from_files
from spec_bench.train import dialogues as chats
from spec_bench.train.batches import (
    IGNORED_LABEL,
    DialogueBatches,
    find_learned_positions,
    gather_known_and_next_tokens,
    select_step_indices,
    shuffle_dialogue_indices,
)
from spec_bench.train.dialogues import Dialogue, answer_prompts, encode_chat
from spec_bench.train.loop import measure_accuracy
from spec_bench.train.settings import TargetAnswerSettings
from tests.said import naming, one_line

from .tiny import VOCAB, forgetful_target, random_text, trained, two_streams

CHAT = {
    "conversations": [
        {"from": "human", "value": "Who paints in Weston?"},
        {"from": "gpt", "value": "Bruno paints there."},
        {"from": "human", "value": "And who sings?"},
        {"from": "gpt", "value": "Emma."},
    ]
}


def written(tmp_path, content, name="chats.json"):
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def read_chats(file):
    return chats.read_answered_chats(build_task_from_files(str(file)))


def test_only_what_the_assistant_says_is_learned_of_what_a_task_would_ask(tmp_path):
    (chat,) = read_chats(written(tmp_path, [CHAT]))
    names = load_tokenizer(resolve_or_convert_model("embedded:target"))
    dialogue = encode_chat(chat, names)
    learned = [i for i, yes in zip(dialogue.ids, dialogue.loss_mask, strict=True) if yes]
    rest = [i for i, yes in zip(dialogue.ids, dialogue.loss_mask, strict=True) if not yes]
    # An answer's end belongs to it: heads must learn where answers end.
    assert names.decode(learned) == "Bruno paints there.</s>Emma.</s>"
    assert names.decode(rest) == (
        "<s><|user|>\nWho paints in Weston?\n<|assistant|>\n"
        "<|user|>\nAnd who sings?\n<|assistant|>\n"
    )
    asked = build_task_from_files(str(tmp_path / "chats.json"))
    first, second = asked.encode_asked_turns_but_failing(asked.read_examples(), names)
    assert dialogue.ids[: len(first)] == first
    assert dialogue.ids[: len(second)] == second
    assert dialogue.loss_mask.index(True) == len(first)


def test_messages_and_json_lines_are_read_as_well(tmp_path):
    roles = {"human": "user", "gpt": "assistant"}
    turns = CHAT["conversations"]
    messages = [{"role": roles[t["from"]], "content": t["value"]} for t in turns]
    kinds = (CHAT, {"messages": messages, "conversation_id": "0"}, {"id": "QWJhYvA_0", **CHAT})
    file = written(tmp_path, "\n\n".join(map(json.dumps, kinds)), "chats.jsonl")
    assert read_chats(file) == [messages] * 3


def test_chats_out_of_turn_are_left_out_and_first_answers_dropped(tmp_path):
    human, gpt = CHAT["conversations"][:2]
    brief = {"from": "system", "value": "Be brief."}
    turns = ([brief, gpt, human, gpt], [human, human, gpt], [human])
    (found,) = read_chats(written(tmp_path, [{"conversations": each} for each in turns]))
    assert [[*turn.values()] for turn in found] == [
        ["system", "Be brief."],
        ["user", "Who paints in Weston?"], ["assistant", "Bruno paints there."],
    ]  # fmt: skip
    task = build_task_from_files(str(tmp_path / "chats.json"))
    told = task.describe_data(task.read_examples())
    assert "2 of 3 conversations (conversations); 1 with a system's text; of rows up to" in told


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[{", "chats.json, line 1: no JSON: "),
        ({"a": 1}, "1: no field 'messages' or 'conversations'"),
        ([CHAT, 7], "chats.json, record 2: a int, not an object"),
        ([{"id": 1}], "1: no field 'messages' or 'conversations'"),
        ([{"conversations": "x"}], "has an answer; data.answered_by=target"),
        ([{"conversations": [{"from": "human"}]}], "line 1: conversations[0] must be a message"),
        (
            [CHAT, {"conversations": [{"from": "robot", "value": "x"}]}],
            "record 2: conversations[0] must be a message with a role (system, user, assistant)",
        ),
        (json.dumps(CHAT) + "\n{", "chats.jsonl, line 2: no JSON"),
        ([], "chats.json has no prompt"),
    ],
)
def test_a_wrong_file_gives_one_line_naming_record_and_expectation(content, complaint, tmp_path):
    name = "chats.jsonl" if "jsonl" in complaint else "chats.json"
    with one_line(naming(complaint)):
        read_chats(written(tmp_path, content, name))
    with pytest.raises(ValueError, match=naming("nowhere.json")):
        read_chats(tmp_path / "nowhere.json")


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path):
    (chat,) = read_chats(written(tmp_path, [CHAT]))
    names = load_tokenizer(resolve_or_convert_model("embedded:target"))
    names.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ValueError, match="writes earlier turns differently"):
        encode_chat(chat, names)


PROMPTS = [[1, 2], [3], [4, 5, 6], [7, 8], [2]]
SETTINGS = TargetAnswerSettings(temperatures=(0.0, 1.0), max_new_tokens=12, batch_size=2, seed=3)


def answers(file, settings=SETTINGS):
    return answer_prompts(forgetful_target(), PROMPTS, [0, 11], settings, file)


def test_greedy_answers_do_not_depend_on_the_batch(tmp_path):
    greedy = TargetAnswerSettings((0.0,), 12, 2)
    alone = TargetAnswerSettings((0.0,), 12, 1)
    assert answers(tmp_path / "a", greedy) == answers(tmp_path / "b", alone)


def test_answers_end_at_a_stop_token_or_the_limit_and_cut_off_are_completed_to_the_same(tmp_path):
    whole = answers(tmp_path / "whole.jsonl")
    for answer in whole:
        assert 1 <= len(answer) <= 12 and not {0, 11} & set(answer[:-1])
        assert answer[-1] in (0, 11) or len(answer) == 12
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 3
    cut = tmp_path / "cut.jsonl"
    cut.write_text(lines[0] + lines[1][:20])
    assert answers(cut) == whole
    assert cut.read_text() == "".join(lines)


def test_a_prompt_is_never_on_both_sides():
    asked = [(prompt, answer, 1) for prompt in range(60) for answer in range(3)]
    train, validation = chats.split_dialogues(
        [Dialogue(ids, (False, True, True)) for ids in asked], 0.3, 0
    )
    assert len(train) + len(validation) == 180
    assert 30 < len(validation) < 90
    assert not {d.prompt for d in train} & {d.prompt for d in validation}


def test_an_epoch_takes_every_dialogue_at_most_once_and_epochs_differ():
    steps = [select_step_indices(10, 4, 0, step) for step in range(4)]
    assert all(len(step) == 4 for step in steps)
    assert len({*steps[0], *steps[1]}) == 8
    assert steps[0] != steps[2]
    assert sorted(shuffle_dialogue_indices(10, 0, 0)) == list(range(10))


CHANCE = 1 / VOCAB


def learned(folder, kind, dialogues):
    """Validation accuracy of three guesses."""
    plan = trained(folder, kind, dialogues, 60, learning_rate=0.03, validate_every=60)
    held_out = range(len(plan.validation_batches.dialogues))
    return measure_accuracy(plan.trainee, plan.validation_batches, held_out, 1).best_guess_shares


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        # Token t settles t + 2 and t + 4, guesses 1 and 3, and says nothing about t + 1 and t + 3.
        ("medusa", [True, False, True]),
        # Guess 2 is token t + 3, which t + 1 settles and t does not.
        ("redrafter", [True] * 3),
        ("redrafter_no_rnn", [True] * 3),
    ],
)
def test_medusa_sees_token_t_and_redrafter_t_plus_1_as_well(kind, known, tmp_path):
    found = learned(tmp_path, kind, two_streams(96, 16))
    assert [each == 1 for each in found] == known
    assert all(sure or each < 3 * CHANCE for each, sure in zip(found, known, strict=True))


@pytest.mark.parametrize("kind", ["medusa", "redrafter"])
def test_no_guess_sees_the_token_that_it_is_about(kind, tmp_path):
    assert max(learned(tmp_path, kind, random_text(96, 16))) < 3 * CHANCE


def test_positions_and_their_tokens_by_hand():
    #                    0      1      2     3     4     5      6      7     8
    dialogue = Dialogue(
        (10, 11, 12, 13, 14, 15, 16, 17, 18),
        (False, False, True, True, True, False, False, True, True),
    )
    assert find_learned_positions(dialogue) == [1, 2, 6]
    assert gather_known_and_next_tokens(dialogue, 3).tolist() == [
        [12, 13, 14, IGNORED_LABEL],  # 15 is no answer's
        [13, 14, IGNORED_LABEL, IGNORED_LABEL],  # nor are 17 and 18 this answer's
        [17, 18, IGNORED_LABEL, IGNORED_LABEL],
    ]
    assert (
        find_learned_positions(Dialogue((1, 2, 3), (False, False, True))) == []
    )  # an answer of one token


def test_hidden_states_are_those_that_decoding_hands_to_the_heads():
    model = forgetful_target()
    dialogues = [Dialogue((3, 1, 4, 1, 5), (False, True, True, True, True)), *random_text(1, 9)]
    found = DialogueBatches(model, dialogues, 1).get_hidden_states(range(len(dialogues)))
    kept = DialogueBatches(model, dialogues, 1, dialogues_per_pass=4, kept_gib=1)
    assert torch.equal(kept.get_hidden_states([1]), kept.get_hidden_states([1]))
    torch.testing.assert_close(kept.get_hidden_states(range(len(dialogues))), found)
    assert sorted(kept._cached_states) == [*range(len(dialogues))]
    expected = []
    for dialogue in dialogues:
        length = len(dialogue.ids)
        tokens, at = torch.tensor([dialogue.ids]), torch.arange(length)[None]
        mask = torch.ones(1, length, length).tril().bool()
        output = model.forward(model.allocate(1, length), [0], tokens, at, mask, needs_hidden=LAST)
        expected.append(output.hidden[0, find_learned_positions(dialogue)])
    torch.testing.assert_close(found, torch.cat(expected))
