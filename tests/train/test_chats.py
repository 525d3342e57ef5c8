"""ShareGPT's format: what is learned of a chat, and what is said of a file that is wrong."""

import json

import pytest

from spec_bench.engine.loading import load_tokenizer
from spec_bench.jobs.config.model_files import model_path
from spec_bench.train.dialogues import chat_prompts, encode_chat, read_chats
from tests.said import naming

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


def tokenizer():
    return load_tokenizer(model_path("embedded:target"))


def test_only_what_the_assistant_says_is_learned(tmp_path):
    (chat,) = read_chats(written(tmp_path, [CHAT]))
    names = tokenizer()
    dialogue = encode_chat(chat, names)
    learned = [i for i, yes in zip(dialogue.ids, dialogue.learned, strict=True) if yes]
    rest = [i for i, yes in zip(dialogue.ids, dialogue.learned, strict=True) if not yes]
    # An answer's end belongs to it: heads must learn where answers end.
    assert names.decode(learned) == "Bruno paints there.</s>Emma.</s>"
    assert names.decode(rest) == (
        "<s><|user|>\nWho paints in Weston?\n<|assistant|>\n"
        "<|user|>\nAnd who sings?\n<|assistant|>\n"
    )


def test_a_dialogue_is_the_text_that_the_task_layer_would_ask(tmp_path):
    (chat,) = read_chats(written(tmp_path, [CHAT]))
    names = tokenizer()
    dialogue = encode_chat(chat, names)
    first, second = chat_prompts(chat, names)
    assert dialogue.ids[: len(first)] == first
    assert dialogue.ids[: len(second)] == second
    assert not any(dialogue.learned[: len(first)])
    assert dialogue.learned[len(first)]


def test_messages_and_json_lines_are_read_as_well(tmp_path):
    roles = {"human": "user", "gpt": "assistant"}
    turns = CHAT["conversations"]
    messages = [{"role": roles[t["from"]], "content": t["value"]} for t in turns]
    lines = "\n\n".join(json.dumps(chat) for chat in (CHAT, {"messages": messages}))
    one, other = read_chats(written(tmp_path, lines, "chats.jsonl"))
    assert one == other == messages


def test_chats_out_of_turn_are_left_out_and_first_answers_dropped(tmp_path):
    human, gpt = CHAT["conversations"][:2]
    chats = [{"conversations": c} for c in ([gpt, human, gpt], [human, human, gpt], [human], [])]
    assert read_chats(written(tmp_path, chats)) == [
        [
            {"role": "user", "content": "Who paints in Weston?"},
            {"role": "assistant", "content": "Bruno paints there."},
        ]
    ]


EXPECTED = (
    r'expected \{"conversations": \[\{"from": "human" or "gpt", "value": "\.\.\."\}, \.\.\.\]\}'
)


@pytest.mark.parametrize(
    ("content", "name", "complaint"),
    [
        ("[{", "chats.json", r"chats\.json: no JSON \(.*\); " + EXPECTED),
        ({"a": 1}, "chats.json", r"chats\.json: holds an object; expected a list of"),
        ([CHAT, "hello"], "chats.json", r"chats\.json, record 2: a text; " + EXPECTED),
        ([{"id": 1}], "chats.json", r"record 1: no 'conversations'; " + EXPECTED),
        ([{"conversations": "x"}], "chats.json", r"record 1: 'conversations' is a text; "),
        (
            [{"conversations": [{"from": "human"}]}],
            "chats.json",
            r"record 1, turn 1: no text under 'value'; " + EXPECTED,
        ),
        (
            [CHAT, {"conversations": [{"from": "robot", "value": "x"}]}],
            "chats.json",
            r"record 2, turn 1: 'from' is 'robot'; expected one of human, user, gpt",
        ),
        (json.dumps(CHAT) + "\n{", "chats.jsonl", r"chats\.jsonl, line 2: no JSON"),
        ([], "chats.json", r"none of its 0 records is a chat of alternating turns"),
    ],
)
def test_a_wrong_file_gives_one_line_naming_record_and_expectation(
    content, name, complaint, tmp_path
):
    with pytest.raises(ValueError, match=complaint) as raised:
        read_chats(written(tmp_path, content, name))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=naming("data.path", "nowhere.json")):
        read_chats(tmp_path / "nowhere.json")


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path):
    (chat,) = read_chats(written(tmp_path, [CHAT]))
    names = tokenizer()
    names.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ValueError, match="writes earlier turns differently"):
        encode_chat(chat, names)


SHAREGPT = [
    {"id": "QWJhYvA_0", **CHAT},
    {
        "id": "i6IyJda_0",
        "conversations": [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "One."}],
    },
]
MESSAGES = [
    {"role": "user", "content": "What is 15% of 240?"},
    {"role": "assistant", "content": "15% of 240 is 36."},
]


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("ShareGPT_cleaned_split.json", json.dumps(SHAREGPT), 2),
        (
            "conversations.jsonl",
            json.dumps({"messages": MESSAGES, "conversation_id": "0"}) + "\n",
            1,
        ),
    ],
)
def test_files_as_they_are_published_are_read(name, content, count, tmp_path):
    names = tokenizer()
    chats = read_chats(written(tmp_path, content, name))
    assert len(chats) == count
    assert all(any(encode_chat(chat, names).learned) for chat in chats)
