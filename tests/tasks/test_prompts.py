"""The prompts to the letter: the embedded models were trained on exactly these."""

import json
import sqlite3

import pytest

from spec_bench.tasks import build_task
from tests.said import naming

from .conftest import config

ROWS = {
    "wmt18_deen": {"translation": {"de": "Das Haus ist rot.", "en": "The house is red."}},
    "wmt14_ende": {"translation": {"de": "Das Haus ist rot.", "en": "The house is red."}},
    "xsum": {"document": "A bridge opened.\nIt is long.", "summary": "A bridge.", "id": "7"},
    "squad": {
        "id": "q1",
        "title": "Oslo",
        "context": "Oslo is in Norway.",
        "question": "Where is Oslo?",
        "answers": {"text": ["Norway", "in Norway"], "answer_start": [11, 8]},
    },
    "alpaca": {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "unused"},
    "dolly": {"instruction": "Who?", "context": "Ann won.", "response": "Ann", "category": "qa"},
}
PROMPTS = {
    "wmt18_deen": "Translate German to English:\nGerman: Das Haus ist rot.\nEnglish:",
    "wmt14_ende": "Translate English to German:\nEnglish: The house is red.\nGerman:",
    "xsum": "Article: A bridge opened.\nIt is long.\nSummary:",
    "squad": "Answer with words from the context. If it does not tell, answer: unanswerable\n"
    "Title: Oslo\nContext: Oslo is in Norway.\nQuestion: Where is Oslo?\nAnswer:",
}
REFERENCES = {
    "wmt18_deen": ["The house is red."],
    "wmt14_ende": ["Das Haus ist rot."],
    "xsum": ["A bridge."],
    "squad": ["Norway", "in Norway"],
}


def task_of(name, tmp_path, *rows):
    """The task over rows of our own, read through the datasets library."""
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows or [ROWS[name]]))
    return build_task(config(name, kind="local", path=str(file)))


@pytest.mark.parametrize("name", PROMPTS)
def test_plain_prompt_is_the_contract_to_the_letter(name, tmp_path):
    task = task_of(name, tmp_path)
    (example,) = task.examples()
    assert task.prompt(example) == PROMPTS[name]
    assert task.references(example) == REFERENCES[name]


@pytest.mark.parametrize("name", PROMPTS)
def test_plain_tasks_stay_plain_even_if_the_tokenizer_can_chat(name, tmp_path, chat_tokenizer):
    task = task_of(name, tmp_path)
    (example,) = task.examples()
    assert chat_tokenizer.decode(task.encode(example, chat_tokenizer)) == "<s>" + PROMPTS[name]


@pytest.mark.parametrize(
    ("name", "change", "content"),
    [
        ("dolly", {}, "Ann won.\n\nWho?"),
        ("dolly", {"context": ""}, "Who?"),
        ("alpaca", {}, "Add.\n\n1 and 2"),
        ("alpaca", {"input": ""}, "Add."),
    ],
)
def test_chat_content_leaves_out_an_empty_context(name, change, content, tmp_path, chat_tokenizer):
    task = task_of(name, tmp_path, ROWS[name] | change)
    (example,) = task.examples()
    assert task.messages(example) == [{"role": "user", "content": content}]
    text = chat_tokenizer.decode(task.encode(example, chat_tokenizer))
    assert text == f"<user>{content}</><assistant>"


def test_a_chat_task_falls_back_to_plain_text_without_a_chat_template(tmp_path, plain_tokenizer):
    task = task_of("dolly", tmp_path)
    (example,) = task.examples()
    text = plain_tokenizer.decode(task.encode(example, plain_tokenizer))
    assert text == "<s>Question: Ann won.\n\nWho?\nAnswer:"


def test_chat_true_applies_to_any_task_and_wants_a_chat_template(
    tmp_path, plain_tokenizer, chat_tokenizer
):
    values = config("xsum", kind="local", path=task_of("xsum", tmp_path).source.path)
    task = build_task(values | {"chat": True})
    (example,) = task.examples()
    text = chat_tokenizer.decode(task.encode(example, chat_tokenizer))
    assert text == f"<user>{PROMPTS['xsum']}</><assistant>"
    with pytest.raises(ValueError, match="no chat template"):
        task.encode(example, plain_tokenizer)


def test_braces_in_a_document_are_left_alone(tmp_path):
    task = task_of("xsum", tmp_path, {"document": "int f() { return {x}; }", "summary": "s"})
    assert task.prompt(task.examples()[0]) == "Article: int f() { return {x}; }\nSummary:"


def test_spider_prompt_lists_the_tables_of_the_database(tmp_path):
    folder = tmp_path / "database" / "shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE concert (id INTEGER, singer_id INTEGER, year INT)")
    row = {"db_id": "shop", "question": "How many singers?", "query": "SELECT count(*) FROM singer"}
    task = task_of("spider", tmp_path, row)
    (example,) = task.examples()
    assert task.prompt(example) == (
        "Schema:\nsinger(id, name)\nconcert(id, singer_id, year)\nQuestion: How many singers?\nSQL:"
    )
    assert task.references(example) == ["SELECT count(*) FROM singer"]
    assert example.meta["db_id"] == "shop"


def test_a_missing_database_is_named_with_those_that_are_there(tmp_path):
    folder = tmp_path / "database" / "shop"
    folder.mkdir(parents=True)
    sqlite3.connect(folder / "shop.sqlite").close()
    task = task_of("spider", tmp_path, {"db_id": "zoo", "question": "?", "query": "SELECT 1"})
    with pytest.raises(ValueError, match=naming("zoo.sqlite", "shop")):
        task.examples()


MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write.", "Shorten it."]}


def test_mt_bench_continues_a_fixed_conversation(tmp_path, chat_tokenizer, plain_tokenizer):
    task = task_of("mt_bench", tmp_path, MT_BENCH | {"reference": ["Long text.", "Text."]})
    (example,) = task.examples()
    assert example.id == "81"
    assert example.references == (("Long text.",), ("Text.",))
    assert chat_tokenizer.decode(task.encode(example, chat_tokenizer, turn=1)) == (
        "<user>Write.</><assistant>Long text.</><user>Shorten it.</><assistant>"
    )
    assert plain_tokenizer.decode(task.encode(example, plain_tokenizer, turn=1)) == (
        "<s>Question: Write.\nAnswer: Long text.\nQuestion: Shorten it.\nAnswer:"
    )


def test_mt_bench_takes_the_earlier_answers_it_is_given(tmp_path):
    task = task_of("mt_bench", tmp_path, MT_BENCH)
    (example,) = task.examples()
    assert task.messages(example, turn=1, history=["Mine."])[1]["content"] == "Mine."
    with pytest.raises(ValueError, match=naming("answers", "1 turns", "got 0")):
        task.messages(example, turn=1)


def test_a_turn_that_does_not_exist_is_refused(tmp_path):
    task = task_of("mt_bench", tmp_path, MT_BENCH)
    with pytest.raises(ValueError, match=naming("0..1", "not 2")):
        task.messages(task.examples()[0], turn=2, history=["a", "b"])


def test_answers_are_cut_at_the_first_stop_text(tmp_path):
    task = task_of("wmt18_deen", tmp_path)
    assert task.postprocess(" The house is red.\nGerman: Noch einer") == "The house is red."
    assert task.postprocess("\n The house.") == "The house."
    assert task.postprocess("  ") == ""


def test_stop_ids_are_end_of_sequence_and_single_token_stop_texts(tmp_path, plain_tokenizer):
    task = task_of("xsum", tmp_path)
    assert task.stop_ids(plain_tokenizer) == (2, 10 + ord("\n"))
    assert task_of("dolly", tmp_path).stop_ids(plain_tokenizer) == (2,)


def test_an_unanswerable_question_has_no_references(tmp_path):
    task = task_of("squad", tmp_path, ROWS["squad"] | {"answers": {"text": [], "answer_start": []}})
    assert task.references(task.examples()[0]) == []
