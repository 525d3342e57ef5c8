"""``task=jsonl``: a file of the user's own."""

import json
from collections import Counter

import pytest

from spec_bench.report.data.categories import MT_BENCH, SUBTASKS, subtask
from spec_bench.settings.configs import conf_dir, read_config
from spec_bench.tasks import build_task
from tests.question_files import QUESTIONS, question_file
from tests.said import naming

from .conftest import config


def task_of(tmp_path, *lines, **more):
    """The task over these lines: objects, or text as it is."""
    file = tmp_path / "mine.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts))
    return build_task(config("jsonl", path=str(file)) | more)


@pytest.mark.parametrize("name", QUESTIONS)
def test_question_files_run_through_as_they_are(name, tmp_path, chat_tokenizer, plain_tokenizer):
    task = build_task(config("jsonl", path=str(question_file(tmp_path, name))))
    examples = task.examples()
    for example, row in zip(examples, QUESTIONS[name], strict=True):
        assert example.id == str(row["question_id"])
        assert example.turns == tuple(row["turns"])
        assert [gold for golds in example.references for gold in golds] == row.get("reference", [])
        assert len(task.encode(example, chat_tokenizer)) > len(
            task.encode(example, plain_tokenizer)
        )


def test_lines_may_differ_in_their_fields_and_types(tmp_path):
    task = task_of(
        tmp_path,
        {"question_id": 1, "turns": ["One?", "Two?"], "reference": ["one", "two"]},
        "",
        {"question_id": "b", "turns": "One?", "reference": "one"},
        {"id": 7, "prompt": "Only a prompt", "category": {"deep": [1]}},
    )
    examples = task.examples()
    assert [example.id for example in examples] == ["1", "b", "7"]
    assert [example.turns for example in examples] == [
        ("One?", "Two?"),
        ("One?",),
        ("Only a prompt",),
    ]
    assert [example.references for example in examples] == [
        (("one",), ("two",)),
        (("one",),),
        ((),),
    ]


def test_a_template_and_fields_of_ones_own_make_the_prompt(tmp_path):
    row = {"q": "Why?", "about": {"title": "Rain"}, "a": ["Because.", "It does."]}
    task = task_of(
        tmp_path,
        row,
        template="{title}: {q}",
        fields={"title": "about.title"},
        reference="a",
        scores=["rouge"],
    )
    (example,) = task.examples()
    assert example.turns == ("Rain: Why?",)
    assert example.references == (("Because.", "It does."),)


def test_a_wrong_field_is_named_with_its_line_and_those_that_are_there(tmp_path):
    good, bad = {"turns": ["Why?"]}, {"question": "Why?", "answer": "So."}
    with pytest.raises(ValueError, match="no field") as caught:
        task_of(tmp_path, good, "", bad).examples()
    assert str(caught.value) == (
        "task jsonl, line 3: no field 'turns' or 'prompt'; the row has question, answer"
    )
    with pytest.raises(ValueError, match=naming("line 1", "'topic'", "turns")):
        task_of(tmp_path, good, template="{topic}").examples()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"', r"mine\.jsonl, line 2: no JSON: "),
        ("[1, 2]", r"mine\.jsonl, line 2: a list, not an object"),
        ('{"turns": []}', r"line 2: no turns in field 'turns'"),
        ('{"turns": null}', r"line 2: no turns in field 'turns'"),
        ('{"turns": ["a \\ud83d b"]}', r"mine\.jsonl, line 2: .*ud83d"),
    ],
)
def test_a_line_that_cannot_be_is_named_by_its_number(line, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        task_of(tmp_path, {"turns": ["Why?"]}, line).examples()


def test_a_file_of_another_encoding_is_named(tmp_path):
    task = task_of(tmp_path, {"turns": ["a"]})
    file = tmp_path / "mine.jsonl"
    file.write_text(file.read_text(encoding="utf-8"), encoding="utf-16")
    with pytest.raises(ValueError, match=r"mine\.jsonl, line 1: .*utf-8"):
        task.examples()


def test_only_the_lines_asked_for_are_read(tmp_path):
    task = task_of(tmp_path, {"turns": ["a"]}, {"turns": ["b"]}, "no JSON")
    assert [e.turns[0] for e in task.examples(limit=1, offset=1)] == ["b"]


def test_a_reference_is_needed_where_something_is_scored(tmp_path):
    with pytest.raises(ValueError, match=naming("line 1", "'reference'", "'references'")):
        task_of(tmp_path, {"turns": ["Why?"]}, metrics=["rouge"]).examples()


def test_without_a_path_it_says_what_is_missing():
    with pytest.raises(ValueError, match=naming("jsonl", "source.kind=local", "source.path")):
        build_task(config("jsonl")).examples()


def conversation(*roles):
    return [{"role": role, "content": f"{role} {place}"} for place, role in enumerate(roles)]


def test_chat_messages_are_turns_answers_and_a_system_message(tmp_path, chat_tokenizer):
    said = conversation("system", "user", "assistant", "user")
    task = task_of(tmp_path, {"question_id": "q", "turns": said})
    [example] = task.examples()
    assert example.turns == ("user 1", "user 3")
    assert example.answers == ("assistant 2",)
    assert task.messages(example, turn=1) == said
    assert task.messages(example) == said[:2]
    assert task.asked(example) == 2
    assert "system 0" in task.prompt(example)


def test_a_recorded_answer_to_the_last_turn_is_its_reference(tmp_path):
    said = conversation("user", "assistant")
    [example] = task_of(tmp_path, {"turns": said}, metrics=["rouge"]).examples()
    assert example.references == (("assistant 1",),)
    [example] = task_of(tmp_path, {"turns": said, "reference": "given"}).examples()
    assert example.references == (("given",),)


@pytest.mark.parametrize(
    ("turns", "named"),
    [
        ([None], r"turns\[0\].*None"),
        (["Fine?", 7], r"turns\[1\].*7"),
        ([{"text": "no role"}], r"turns\[0\].*'text'"),
        ([{"role": "tool", "content": "x"}], r"turns\[0\].*'tool'"),
        ([{"role": "user", "content": None}], r"turns\[0\].*None"),
        (conversation("user", "user"), r"turns\[1\].*'user'"),
        (conversation("user", "assistant", "system"), r"turns\[2\].*'system'"),
        (conversation("system"), "no user's message"),
        (["  "], "turn 0.*blank"),
        ([], r"no turns.*\[\]"),
        (None, "no turns.*None"),
        ({"role": "user", "content": "not a list"}, "no turns"),
    ],
)
def test_what_is_no_turn_is_named_with_its_place_and_value(tmp_path, turns, named):
    with pytest.raises(ValueError, match=f"line 2: .*{named}"):
        task_of(tmp_path, {"turns": ["Good?"]}, {"turns": turns}).examples()


def test_a_null_reference_is_none_and_not_the_word_none(tmp_path):
    row = {"turns": ["One?", "Two?"], "reference": [None, "two"]}
    [example] = task_of(tmp_path, row).examples()
    assert example.references == ((), ("two",))
    [example] = task_of(tmp_path, {"turns": "One?", "reference": None}).examples()
    assert example.references == ((),)


def test_several_references_of_one_turn_are_as_good_as_each_other(tmp_path):
    row = {"turns": ["One?", "Two?"], "reference": [["a", "b"], "c"]}
    [example] = task_of(tmp_path, row).examples()
    assert example.references == (("a", "b"), ("c",))


def test_a_reference_that_is_no_text_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: reference\[0\].*'a': 1"):
        task_of(tmp_path, {"turns": ["One?"], "reference": [{"a": 1}]}).examples()


def test_ids_that_clash_once_turns_are_counted_are_refused(tmp_path):
    rows = {"question_id": "q", "turns": ["One?", "Two?"]}, {"question_id": "q/0", "turns": ["x"]}
    with pytest.raises(ValueError, match="twice: q/0"):
        task_of(tmp_path, *rows).examples()


def test_a_category_comes_along_where_it_stands_or_where_fields_say(tmp_path):
    rows = {"turns": "One?", "category": "qa"}, {"turns": "Two?", "category": {"deep": 1}}
    task = task_of(tmp_path, *rows, {"turns": "Three?"})
    assert [example.category for example in task.examples()] == ["qa", "", ""]
    named = {**config("jsonl")["fields"], "category": "about.topic"}
    row = {"turns": "One?", "category": "qa", "about": {"topic": "rain"}}
    [example] = task_of(tmp_path, row, fields=named).examples()
    assert example.category == "rain"
    with pytest.raises(ValueError, match=naming("line 1", "'about.topic'", "turns, category")):
        task_of(tmp_path, {"turns": "One?", "category": "qa"}, fields=named).examples()


def test_spec_benchs_file_is_read_with_its_categories(tmp_path):
    path = str(question_file(tmp_path, "spec_bench"))
    categories = [each.category for each in build_task(config("spec_bench", path=path)).examples()]
    assert categories == [row["category"] for row in QUESTIONS["spec_bench"]]
    assert {subtask(category) for category in categories} == {*SUBTASKS}


def test_without_that_file_the_embedded_pair_has_prompts_of_its_shape():
    (examples, again) = (build_task(config("spec_bench")).examples() for _ in range(2))
    assert examples == again
    counts = Counter(subtask(example.category) for example in examples)
    assert counts == dict.fromkeys(SUBTASKS, 20)
    turns = {subtask(example.category): len(example.turns) for example in examples}
    assert turns == {name: 1 + (name == MT_BENCH) for name in SUBTASKS}
    assert len({example.turns[0] for example in examples}) == len(examples) == 120


def test_another_field_may_be_the_reference_as_the_manual_prints_it():
    shipped = read_config(conf_dir() / "task" / "jsonl.yaml")
    told = {"source": {"kind": "local", "path": "mine.jsonl"}, "template": "{title}: {question}"}
    assert build_task({**shipped, **told, "reference": "answer"}).reference == "answer"
