"""The prompts to the letter: the embedded models were trained on exactly these."""

import sqlite3
from random import Random

import pytest

from spec_bench.metrics import SCORES
from spec_bench.tasks import RandomPrompts, build_task
from tests.question_files import question_file
from tests.said import naming

from .conftest import NAMES, ROOT, config, local, written

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


def task_of(name, tmp_path, row=None, **more):
    """The task over one row of our own."""
    return local(name, written(tmp_path / f"{name}.jsonl", row or ROWS[name]), **more)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_plain_prompt_is_the_contract_to_the_letter_even_if_the_tokenizer_can_chat(
    name, tmp_path, chat_tokenizer
):
    task = task_of(name, tmp_path)
    (example,) = task.examples()
    assert task.prompt(example) == PROMPTS[name]
    assert task.references(example) == REFERENCES[name]
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


def test_a_chat_task_falls_back_to_plain_text_and_chat_true_wants_a_chat_template(
    tmp_path, plain_tokenizer, chat_tokenizer
):
    task = task_of("dolly", tmp_path)
    (example,) = task.examples()
    text = plain_tokenizer.decode(task.encode(example, plain_tokenizer))
    assert text == "<s>Question: Ann won.\n\nWho?\nAnswer:"
    task = task_of("xsum", tmp_path, chat=True)
    (example,) = task.examples()
    text = chat_tokenizer.decode(task.encode(example, chat_tokenizer))
    assert text == f"<user>{PROMPTS['xsum']}</><assistant>"
    with pytest.raises(ValueError, match="no chat template"):
        task.encode(example, plain_tokenizer)


def test_braces_in_a_document_are_left_alone(tmp_path):
    task = task_of("xsum", tmp_path, {"document": "int f() { return {x}; }", "summary": "s"})
    assert task.prompt(task.examples()[0]) == "Article: int f() { return {x}; }\nSummary:"


def test_spider_prompt_lists_the_tables_of_the_database_and_a_missing_one_is_named(tmp_path):
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
    with pytest.raises(ValueError, match=naming("zoo.sqlite", "shop")):
        task_of("spider", tmp_path, {**row, "db_id": "zoo"}).examples()


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
    with pytest.raises(ValueError, match=naming("0..1", "not 2")):
        task.messages(example, turn=2, history=["a", "b"])


def test_answers_are_cut_at_the_first_stop_text(tmp_path):
    task = task_of("wmt18_deen", tmp_path)
    assert task.postprocess(" The house is red.\nGerman: Noch einer") == "The house is red."
    assert task.postprocess("\n The house.") == "The house."
    assert task.postprocess("  ") == ""


def test_stop_ids_are_end_of_sequence_and_single_token_stop_texts(tmp_path, plain_tokenizer):
    assert task_of("xsum", tmp_path).stop_ids(plain_tokenizer) == (2, 10 + ord("\n"))
    assert task_of("dolly", tmp_path).stop_ids(plain_tokenizer) == (2,)


# A real tokenizer of the transformers library, built here.


TEXT = "Article: A bridge opened.\nSummary:"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes as tokens, <s> before a text, and no chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate(["<s>", "</s>", *alphabet])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    inner.add_special_tokens(["<s>", "</s>"])
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize(
    ("chat", "template", "text"),
    [
        (False, None, TEXT),
        (False, CHAT, TEXT),
        ("auto", None, TEXT),
        ("auto", CHAT, f"<user>{TEXT}<assistant>"),
    ],
)
def test_a_prompt_has_one_beginning_of_sequence_token(
    tokenizer, tmp_path, monkeypatch, chat, template, text
):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    row = {"document": "A bridge opened.", "summary": "A bridge."}
    task = task_of("xsum", tmp_path, row, chat=chat)
    ids = task.encode(task.examples()[0], tokenizer)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids) == f"<s>{text}"
    line_break = tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    assert task.stop_ids(tokenizer) == (tokenizer.eos_token_id, line_break)


# The tasks that ship, and their embedded samples.


@pytest.mark.parametrize("name", NAMES)
def test_prompts_equal_what_the_generator_trained_on(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    why = "the generator is not in this checkout"
    samples = pytest.importorskip("scripts.family.world.samples", reason=why)
    databases = pytest.importorskip("scripts.family.world.databases")
    rows = [samples.draw_sample(name, Random(seed), seed) for seed in range(20)]
    for row in rows if name == "spider" else ():
        file = tmp_path / "database" / row["db_id"] / f"{row['db_id']}.sqlite"
        databases.build(row["db_id"], file)
    # Of the embedded sample there is none.
    plain = {"instruction": None} if "instruction" in config(name) else {}
    task = local(name, written(tmp_path / "rows.jsonl", *rows), **plain)
    for row, example in zip(rows, task.examples(), strict=True):
        trained = samples.turns(name, row)
        assert len(trained) == len(example.turns)
        for turn, (prompt, answer) in enumerate(trained):
            if task.chat:
                content = task.messages(example, turn)[-1]["content"]
                assert prompt == f"<|user|>\n{content}\n<|assistant|>\n"
            else:
                assert prompt == task.prompt(example)
            assert answer.strip() in (task.references(example, turn) or ["unanswerable"])


def test_fastchats_questions_are_read_as_they_are(tmp_path, chat_tokenizer):
    task = local("mt_bench", question_file(tmp_path, "mt_bench"))
    examples = task.examples()
    assert [example.id for example in examples] == ["81", "101"]
    assert [len(example.turns) for example in examples] == [2, 2]
    assert [len(example.references) for example in examples] == [2, 2]
    assert "lighthouse" in chat_tokenizer.decode(task.encode(examples[0], chat_tokenizer))


def test_the_papers_eight_tasks_are_there():
    papers = {"alpaca", "dolly", "mt_bench", "spider", "squad", "wmt14_ende", "wmt18_deen", "xsum"}
    assert set(NAMES) >= papers


@pytest.mark.parametrize("name", NAMES)
def test_every_task_builds_with_scores_that_exist_and_100_examples_with_references(
    name, plain_tokenizer
):
    task = build_task(config(name))
    assert task.name == name
    assert set(task.scores) <= set(SCORES)
    assert task.generation.max_new_tokens
    assert task.source.kind == "embedded"
    assert task.source.hub.path.count("/") == 1
    examples = task.examples()
    assert len(examples) >= 100
    assert len(task.encode(examples[0], plain_tokenizer)) > 10
    unanswered = sum(not example.references[0] for example in examples)
    assert (0 < unanswered < len(examples) / 2) if name == "squad" else unanswered == 0
    if name == "mt_bench":
        assert {len(example.turns) for example in examples} == {2}
        assert task.messages(examples[0], turn=1)[1]["role"] == "assistant"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("xsum", {"templat": "x"}, "task.templat; did you mean task.template?"),
        ("xsum", {"template": None}, "task.template must be .* got None"),
        ("xsum", {"template": "{open"}, "task.template: .*{open"),
        ("xsum", {"chat": "yes"}, "task.chat must be one of auto, true, false, got 'yes'"),
        ("xsum", {"source": {"kind": "hub", "url": "x"}}, "unknown setting task.source.url"),
        ("xsum", {"source": {"kind": "hub", "hub": {"path": "a/b"}}}, "hub.split is missing"),
        ("random", {"prompt_tokens": 0}, "prompt_tokens must be a whole number >= 1, got 0"),
        ("random", {"prompts": True}, "task.prompts must be a whole number"),
        ("random", {"template": "x"}, "unknown setting task.template; task has"),
        ("random", {"source": {"kind": "random", "path": "x"}}, "unknown setting task.source.path"),
    ],
)
def test_a_mistake_in_a_config_is_named(name, change, message):
    with pytest.raises(ValueError, match=message):
        build_task(config(name) | change)


# Prompts of random token ids.


EIGHT = range(8)  # len() is all that is asked of a tokenizer


def drawn(**changes):
    built = build_task({**config("random"), **changes})
    assert isinstance(built, RandomPrompts)
    return built


def test_every_random_prompt_has_the_stated_length_and_ids_of_the_vocabulary():
    asked = drawn(prompt_tokens=50, prompts=3).examples()
    prompts = [drawn(prompt_tokens=50).encode(example, EIGHT) for example in asked]
    assert [len(prompt) for prompt in prompts] == [50, 50, 50]
    assert set(sum(prompts, ())) == set(EIGHT)


def test_a_random_prompt_depends_on_seed_and_number_alone():
    def prompts(seed, **options):
        task = drawn(seed=seed)
        return [task.encode(example, EIGHT) for example in task.examples(**options)]

    assert prompts(0, limit=3) == prompts(0)[:3]
    assert prompts(0, limit=2, offset=4) == prompts(0)[4:6]
    assert len({*prompts(0), *prompts(1)}) == 2 * 64
    with pytest.raises(ValueError, match=naming("64 prompts", "from 64")):
        drawn().examples(offset=64)


def test_of_random_prompts_there_is_nothing_to_score_and_nothing_to_stop_at():
    task = drawn()
    (example,) = task.examples(limit=1)
    assert task.scores == task.stop_ids(EIGHT) == ()
    assert task.references(example) == []
    assert task.postprocess(" 3 1 ") == " 3 1 "
    assert task.generation.max_new_tokens == 128
