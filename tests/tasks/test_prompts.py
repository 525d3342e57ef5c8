"""The prompts to the letter: the embedded models were trained on exactly these; chat templates."""

import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer

from scripts.family.world import databases, samples
from spec_bench.jobs.config.pair import EngineSettings, PairSettings, build_pair
from spec_bench.metrics import SCORES
from spec_bench.settings.configs import get_conf_dir, read_composed_config
from spec_bench.tasks import Example, build_task
from spec_bench.tasks import template as templates
from spec_bench.tasks.template import encode_text, render_chat
from tests.question_files import written
from tests.said import naming, one_line
from tests.warm import run

from .conftest import NAMES, ROOT, config, local

HOUSE = {"translation": {"de": "Das Haus ist rot.", "en": "The house is red."}}
ROWS = {
    "wmt18_deen": HOUSE, "wmt14_ende": HOUSE,
    "xsum": {"document": "A bridge opened.\nIt is long.", "summary": "A bridge.", "id": "7"},
    "squad": {
        "id": "q1", "title": "Oslo", "context": "Oslo is in Norway.", "question": "Where is Oslo?",
        "answers": {"text": ["Norway", "in Norway"], "answer_start": [11, 8]},
    },
    "alpaca": {"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "unused"},
    "dolly": {"instruction": "Who?", "context": "Ann won.", "response": "Ann", "category": "qa"},
}  # fmt: skip
SQUAD = (
    "Answer with words from the context. If it does not tell, answer: unanswerable\n"
    "Title: Oslo\nContext: Oslo is in Norway.\nQuestion: Where is Oslo?\nAnswer:"
)
GERMAN = "Translate German to English:\nGerman: Das Haus ist rot.\nEnglish:"
ENGLISH = "Translate English to German:\nEnglish: The house is red.\nGerman:"


def task_of(name, tmp_path, row=None, **more):
    return local(name, written(tmp_path / f"{name}.jsonl", row or ROWS[name]), **more)


@pytest.mark.parametrize(
    ("name", "prompt", "references"),
    [
        ("wmt18_deen", GERMAN, ["The house is red."]),
        ("wmt14_ende", ENGLISH, ["Das Haus ist rot."]),
        ("xsum", "Article: A bridge opened.\nIt is long.\nSummary:", ["A bridge."]),
        ("squad", SQUAD, ["Norway", "in Norway"]),
    ],
)
def test_a_plain_prompt_is_the_contract_to_the_letter_even_if_the_tokenizer_can_chat(
    name, prompt, references, tmp_path, chat_tokenizer
):
    task = task_of(name, tmp_path)
    (example,) = task.read_examples()
    assert (task.format_prompt(example), example.references[0]) == (prompt, tuple(references))
    assert chat_tokenizer.decode(task.encode(example, chat_tokenizer)) == f"<s>{prompt}"


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
    (example,) = task.read_examples()
    assert task.list_messages(example) == [{"role": "user", "content": content}]
    text = chat_tokenizer.decode(task.encode(example, chat_tokenizer))
    assert text == f"<user>{content}</><assistant>"


def test_a_chat_task_falls_back_to_plain_text_and_chat_true_wants_a_chat_template(
    tmp_path, plain_tokenizer, chat_tokenizer
):
    task = task_of("dolly", tmp_path)
    text = plain_tokenizer.decode(task.encode(task.read_examples()[0], plain_tokenizer))
    assert text == "<s>Question: Ann won.\n\nWho?\nAnswer:"
    row = {"document": "int f() { return {x}; }", "summary": "s"}  # braces are left alone
    task = task_of("xsum", tmp_path, row, chat=True)
    (example,) = task.read_examples()
    text = chat_tokenizer.decode(task.encode(example, chat_tokenizer))
    assert text == "<user>Article: int f() { return {x}; }\nSummary:</><assistant>"
    with pytest.raises(ValueError, match="no chat template"):
        task.encode(example, plain_tokenizer)


def test_spider_prompt_lists_the_tables_of_the_database_and_a_missing_one_is_named(tmp_path):
    folder = tmp_path / "database" / "shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE concert (id INTEGER, singer_id INTEGER, year INT)")
    row = {"db_id": "shop", "question": "How many singers?", "query": "SELECT count(*) FROM singer"}
    task = task_of("spider", tmp_path, row)
    (example,) = task.read_examples()
    assert task.format_prompt(example) == (
        "Schema:\nsinger(id, name)\nconcert(id, singer_id, year)\nQuestion: How many singers?\nSQL:"
    )
    assert example.references[0] == ("SELECT count(*) FROM singer",)
    with pytest.raises(ValueError, match=naming("zoo.sqlite", "shop")):
        task_of("spider", tmp_path, {**row, "db_id": "zoo"}).read_examples()


MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write.", "Shorten it."]}


def test_mt_bench_continues_a_fixed_conversation(tmp_path, chat_tokenizer, plain_tokenizer):
    task = task_of("mt_bench", tmp_path, MT_BENCH | {"reference": ["Long text.", "Text."]})
    (example,) = task.read_examples()
    assert example.id == "81"
    assert example.references == (("Long text.",), ("Text.",))
    assert chat_tokenizer.decode(task.encode(example, chat_tokenizer, turn=1)) == (
        "<user>Write.</><assistant>Long text.</><user>Shorten it.</><assistant>"
    )
    assert plain_tokenizer.decode(task.encode(example, plain_tokenizer, turn=1)) == (
        "<s>Question: Write.\nAnswer: Long text.\nQuestion: Shorten it.\nAnswer:"
    )

    task = task_of("mt_bench", tmp_path, MT_BENCH)  # without answers it takes those it is given
    (example,) = task.read_examples()
    assert task.list_messages(example, turn=1, history=["Mine."])[1]["content"] == "Mine."
    with pytest.raises(ValueError, match=naming("answers", "1 turns", "got 0")):
        task.list_messages(example, turn=1)
    with pytest.raises(ValueError, match=naming("0..1", "not 2")):
        task.list_messages(example, turn=2, history=["a", "b"])


def test_answers_end_at_the_first_stop_text_or_an_id_that_stops(tmp_path, plain_tokenizer):
    task = task_of("wmt18_deen", tmp_path)
    assert task.extract_scored_text(" The house is red.\nGerman: Noch einer") == "The house is red."
    assert task.extract_scored_text("\n The house.") == "The house."
    assert task.extract_scored_text("  ") == ""
    two = replace(task, stop=("\n", "red"))
    assert two.extract_scored_text("The house is red.\nGerman:") == "The house is"
    assert task_of("xsum", tmp_path).make_stop_criteria(plain_tokenizer).stop_ids == (
        2,
        10 + ord("\n"),
    )
    assert task_of("dolly", tmp_path).make_stop_criteria(plain_tokenizer).stop_ids == (2,)


TEXT = "Article: A bridge opened.\nSummary:"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
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
def test_a_prompt_has_one_beginning_of_sequence_token(tmp_path, chat, template, text):
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "spec_bench/embedded/models/target")
    tokenizer.chat_template = template
    row = {"document": "A bridge opened.", "summary": "A bridge."}
    task = task_of("xsum", tmp_path, row, chat=chat)
    ids = task.encode(task.read_examples()[0], tokenizer)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(ids) == f"<s>{text}"
    line_break = tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    assert task.make_stop_criteria(tokenizer).stop_ids == (tokenizer.eos_token_id, line_break)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_equal_what_the_generator_trained_on(name, tmp_path):
    rows = [samples.draw_sample(name, Random(seed), seed) for seed in range(20)]
    for row in rows if name == "spider" else ():
        file = tmp_path / "database" / row["db_id"] / f"{row['db_id']}.sqlite"
        databases.build(row["db_id"], file)
    # Of the embedded sample there is none.
    plain = {"instruction": None} if "instruction" in config(name) else {}
    task = local(name, written(tmp_path / "rows.jsonl", *rows), **plain)
    for row, example in zip(rows, task.read_examples(), strict=True):
        trained = samples.turns(name, row)
        assert len(trained) == len(example.turns)
        for turn, (prompt, answer) in enumerate(trained):
            if task.chat:
                content = task.list_messages(example, turn)[-1]["content"]
                assert prompt == f"<|user|>\n{content}\n<|assistant|>\n"
            else:
                assert prompt == task.format_prompt(example)
            assert answer.strip() in (example.references[turn] or ["unanswerable"])


PAPERS = {"alpaca", "dolly", "mt_bench", "spider", "squad", "wmt14_ende", "wmt18_deen", "xsum"}


@pytest.mark.parametrize("name", sorted(PAPERS | {*NAMES}))
def test_every_task_builds_with_scores_that_exist_and_100_examples_with_references(
    name, plain_tokenizer
):
    task = build_task(config(name))
    assert task.name == name
    assert set(task.scores) <= set(SCORES)
    assert task.generation["max_new_tokens"]
    assert task.source.kind == "embedded"
    assert task.source.hub.path.count("/") == 1
    examples = task.read_examples()
    assert len(examples) >= 100
    assert len(task.encode(examples[0], plain_tokenizer)) > 10
    unanswered = sum(not example.references[0] for example in examples)
    assert (0 < unanswered < len(examples) / 2) if name == "squad" else unanswered == 0
    if name == "mt_bench":
        assert {len(example.turns) for example in examples} == {2}
        assert task.list_messages(examples[0], turn=1)[1]["role"] == "assistant"


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


EIGHT = range(8)  # len() is all that is asked of a tokenizer


def drawn(**changes):
    return build_task({**config("random"), **changes})


def prompts(seed=0, limit=None, offset=0, **changes):
    task = drawn(seed=seed, **changes)
    return [task.encode(example, EIGHT) for example in task.read_examples(limit, offset)]


def test_a_random_prompt_of_the_stated_length_depends_on_seed_and_number_alone():
    found = prompts(prompt_tokens=50, prompts=3)
    assert [len(prompt) for prompt in found] == [50, 50, 50]
    assert set(sum(found, ())) == set(EIGHT)
    assert prompts(limit=3) == prompts()[:3]
    assert prompts(limit=2, offset=4) == prompts()[4:6]
    assert len({*prompts(0), *prompts(1)}) == 2 * 64
    with pytest.raises(ValueError, match=naming("64 prompts", "from 64")):
        drawn().read_examples(offset=64)


def test_of_random_prompts_there_is_nothing_to_score_and_nothing_to_stop_at():
    task = drawn()
    (example,) = task.read_examples(limit=1)
    assert task.scores == task.make_stop_criteria(EIGHT).stop_ids == ()
    assert example.references == ((),)
    assert task.extract_scored_text(" 3 1 ") == " 3 1 "
    assert task.generation["max_new_tokens"] == 128


def test_a_task_of_texts_can_ask_random_token_ids_at_its_own_sampling():
    texts = read_composed_config(get_conf_dir() / "task" / "mt_bench.yaml")
    task = build_task({**texts, "source": {**texts["source"], "kind": "random"}})
    assert (task.name, task.scores) == ("mt_bench", ())
    assert task.generation["max_new_tokens"] == texts["generation"]["max_new_tokens"]
    assert [len(task.encode(each, EIGHT)) for each in task.read_examples(2)] == [512, 512]
    with one_line(naming("promt_tokens")):
        build_task({**texts, "source": {"kind": "random"}, "promt_tokens": 3})


TARGET = Path(__file__).resolve().parents[2] / "spec_bench/embedded/models/target"
SOURCE = {"kind": "local", "path": "x.jsonl"}
TASK = {"name": "mine", "chat": True, "template": "{question}", "source": SOURCE}
SAID = [{"role": "user", "content": "x"}]
EACH = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def tokenizer(template):
    made = AutoTokenizer.from_pretrained(TARGET)
    made.chat_template = template
    return made


def pair_of(chat_template):
    asked = replace(PairSettings("embedded:target", None), chat_template=chat_template)
    return build_pair(asked, EngineSettings("cpu", "float32"))


def test_a_file_is_read_and_the_text_is_part_of_the_run_id(tmp_path):
    for name in ("t.jinja", "t.txt"):
        (tmp_path / name).write_text(EACH, encoding="utf-8")
        assert pair_of(str(tmp_path / name)).get_run_id_settings()["chat_template"] == EACH
    assert pair_of(EACH).get_run_id_settings()["chat_template"] == EACH


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, None) for name in ("none.jinja", "{none}.jinja", "none.j2", "none", "x" * 300)),
        ("folder.jinja", Path.mkdir),
        ("pipe.jinja", os.mkfifo),
        ("bytes.jinja", lambda path: path.write_bytes(b"{{\xff}}")),
    ],
)
def test_what_is_no_text_file_is_one_line(tmp_path, name, make):
    if make:
        make(tmp_path / name)
    with one_line(naming("pair.chat_template", name[:30])):
        pair_of(str(tmp_path / name))


def test_a_job_with_a_missing_template_is_refused_before_anything_is_loaded(tmp_path):
    status, _, said = run("spec_bench", "pair.chat_template=t.jinja", folder=tmp_path)
    assert status == 2
    assert len(said.splitlines()) == 1 and "'t.jinja'" in said


USER = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
LAST = "<{{ messages[-1].content }}>"


@pytest.mark.parametrize(
    ("template", "example", "turn", "dropped"),
    [
        ("t.jinja", Example("0", ("what is it?",), ((),)), 0, "user"),
        ("{{ messages | length }}", Example("0", ("what is it?",), ((),)), 0, "user"),
        (USER, Example("0", ("what is it?",), ((),), system="be brief"), 0, "system"),
        (LAST, Example("0", ("one?", "two?"), (("first",), ())), 1, "user"),
        (USER, Example("0", ("one?", "two?"), (("first",), ())), 1, "assistant"),
    ],
)
def test_a_template_that_drops_a_message_is_refused(template, example, turn, dropped):
    with pytest.raises(ValueError, match=naming("the chat template drops", dropped)):
        build_task(TASK).encode(example, tokenizer(template), turn)
    if dropped != "user":  # nothing is dropped where nothing of the kind is said
        build_task(TASK).encode(replace(example, system=""), tokenizer(template), 0)


@pytest.mark.parametrize("change", [" | trim", " | tojson", " | e", ".split('\n')[0]"])
def test_a_template_may_write_what_is_said_differently(change):
    template = f"{{% for m in messages %}}{{{{ m.content{change} }}}}{{% endfor %}}"
    assert "1" in render_chat(tokenizer(template), [{"role": "user", "content": ' "1 < 2"\n é '}])


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(999999999) %}x{% endfor %}",
        LOOPS,
        "{% for a in range(99999) %}{% for m in 'x' * 99999 %}{{ m }}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(30) }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 9 ** (9 ** (9 ** 9)) }}",
        "{{ 1 // 0 }}",
        "{{ 'x' * (10 ** 18) }}",
        "{{ messages['a'].b.c }}",
        "{{ [].pop() }}",
    ],
)
def test_a_template_that_never_ends_or_fails_is_one_line_soon(template, monkeypatch):
    monkeypatch.setattr(templates, "MAX_TEMPLATE_S", 0.1)
    before = time.process_time()
    with one_line(r"the chat template fails: ."):
        render_chat(tokenizer(template), SAID)
    assert time.process_time() - before < 4


def test_after_a_template_that_never_ends_others_are_rendered_in_full(monkeypatch):
    monkeypatch.setattr(templates, "MAX_TEMPLATE_S", 0.2)
    with pytest.raises(ValueError, match="not done"):
        render_chat(tokenizer(LOOPS), SAID)
    until = time.process_time() + 0.3
    while time.process_time() < until:
        assert render_chat(tokenizer(EACH), SAID) == "<user>x"


@pytest.mark.parametrize("template", ["{{ ('x' * 10 ** 9) * 9 }}", "{{ 'x' * 4000000000 }}"])
def test_a_template_that_takes_all_memory_is_one_line(template, monkeypatch):
    monkeypatch.setattr(templates, "MAX_EXTRA_BYTES", 2**28)
    with one_line("the chat template fails: MemoryError"):
        render_chat(tokenizer(template), SAID)


def test_a_tokenizer_that_does_not_end_or_panics_is_one_line(monkeypatch):
    monkeypatch.setattr(templates, "MAX_ENCODING_S", 0.1)
    with one_line("the tokenizer is not done: .* 0.1 s for 5 letters", TimeoutError):
        encode_text(lambda text: time.sleep(1), "hello")

    class Panic(BaseException):
        """As of tokenizers' own code."""

    def panics(text):
        raise Panic("retry-limit\nin match")

    with one_line("the tokenizer fails: retry-limit in match"):
        encode_text(panics, "hello")


def test_a_text_that_cannot_be_encoded_leaves_the_others_and_is_counted(caplog):
    refusing = "{% if 'y' in messages[0].content %}{{ raise_exception('odd') }}{% endif %}x"
    chat = replace(build_task(TASK), chat=True)
    texts = ["x", "y", "z"]
    examples = [Example(each, (each,), ((),), {}) for each in texts]
    made = tokenizer(refusing + "{{ messages[0].content }}")
    assert len(chat.encode_asked_turns_but_failing(examples, made)) == 2
    assert "1 of 3 texts are left out: the chat template fails: odd" in caplog.text
    with one_line("odd"):
        chat.encode_asked_turns_but_failing(examples[1:2], made)
