"""Rows of files and of the hub as they are read, and Spider's databases: what is there or wrong."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter

import datasets
import huggingface_hub
import pytest

from spec_bench.__main__ import run_command
from spec_bench.jobs.config.settings import describe_examples, digest_examples
from spec_bench.metrics.quality import SCORES
from spec_bench.records.types import SqlReference
from spec_bench.report.data.categories import MT_BENCH, SUBTASKS, get_subtask
from spec_bench.settings.configs import get_conf_dir, read_composed_config
from spec_bench.tasks import build_task, source
from spec_bench.tasks.references import describe_turns_without_reference
from spec_bench.tasks.source import EMBEDDED_SAMPLES
from spec_bench.tasks.spider import compute_databases_digest
from tests.question_files import QUESTIONS, question_file, written
from tests.said import naming

from .conftest import config, local

PAIRS = [{"translation": {"de": f"Satz {n}.", "en": f"Sentence {n}."}} for n in range(5)]
SQUAD = [
    {
        "id": f"q{n}", "title": "Oslo", "context": "Oslo is in Norway.",
        "question": "Where is Oslo?", "answers": {"text": texts, "answer_start": starts},
    }
    for n, (texts, starts) in enumerate([(["Norway", "in Norway"], [11, 8]), ([], [])])
]  # fmt: skip
ARTICLES = [{"document": "d", "summary": "s", "id": "1"}]


def parquet(file, rows, features=None):
    datasets.Dataset.from_list(rows, features=features).to_parquet(file)
    return file


@pytest.fixture
def squad_file(tmp_path):
    """A Parquet file with the features of rajpurkar/squad_v2."""
    text, number = datasets.Value("string"), datasets.Value("int32")
    answers = datasets.Sequence({"text": text, "answer_start": number})
    names = ("id", "title", "context", "question")
    features = datasets.Features({**dict.fromkeys(names, text), "answers": answers})
    return parquet(tmp_path / "validation-00000-of-00001.parquet", SQUAD, features)


TRANSLATION = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
FORMATS = {
    "nested.parquet": ("wmt18_deen", lambda file: parquet(file, PAIRS)),
    "translation.parquet": ("wmt18_deen", lambda file: parquet(file, PAIRS, TRANSLATION)),
    "array.json": ("wmt18_deen", lambda file: file.write_text(json.dumps(PAIRS))),
    "lines.jsonl": ("wmt18_deen", lambda file: written(file, *PAIRS)),
    "saved": ("wmt18_deen", lambda file: datasets.Dataset.from_list(PAIRS).save_to_disk(file)),
    "x.csv": ("xsum", lambda file: file.write_text('document,summary\n"One, two.",Short.\n')),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_file_is_read(name, tmp_path):
    task, write = FORMATS[name]
    write(tmp_path / name)
    examples = local(task, tmp_path / name).read_examples()
    if task == "xsum":
        assert [each.turns for each in examples] == [("Article: One, two.\nSummary:",)]
    else:
        assert [each.references for each in examples] == [((f"Sentence {n}.",),) for n in range(5)]


def test_a_folder_with_splits_takes_the_hubs_split_or_the_one_asked_for(tmp_path):
    folder = tmp_path / "data"  # the cache lies beside it
    folder.mkdir()
    written(folder / "train.jsonl", *PAIRS)
    written(folder / "test.jsonl", *PAIRS[:2])
    assert len(local("wmt18_deen", folder).read_examples()) == 2
    assert len(local("wmt18_deen", folder, split="train").read_examples()) == 5
    with pytest.raises(ValueError, match=naming("'dev'", "source.split")):
        local("wmt18_deen", folder, split="dev").read_examples()


def test_limit_and_offset_choose_rows_and_keep_their_ids(tmp_path):
    task = local("wmt18_deen", written(tmp_path / "x.jsonl", *PAIRS))
    assert [e.id for e in task.read_examples()] == ["0", "1", "2", "3", "4"]
    assert task.read_examples(limit=2, offset=1) == task.read_examples()[1:3]
    assert [e.id for e in task.read_examples(limit=9, offset=4)] == ["4"]
    with pytest.raises(ValueError, match=naming("x.jsonl has 5 rows", "offset 5")):
        task.read_examples(offset=5)


@pytest.mark.parametrize(
    ("name", "file", "text", "named"),
    [
        ("squad", "x.jsonl", f"{json.dumps(SQUAD[0])}\n" * 2, ["twice", "q0"]),
        ("xsum", "nowhere.jsonl", None, ["nowhere.jsonl"]),
        ("xsum", "x.pdf", "text", ["x.pdf", "Parquet"]),
        ("xsum", "x.parquet", "not parquet", ["xsum", "x.parquet: cannot read it"]),
        (
            "xsum", "x.jsonl", '{"article": "a", "summary": "s"}',
            ["xsum, line 1: no field 'document'; the row has article, s"],
        ),
    ],
)  # fmt: skip
def test_a_file_of_no_use_is_one_line_that_names_it(name, file, text, named, tmp_path):
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=naming(*named)):
        local(name, tmp_path / file).read_examples()


@pytest.mark.parametrize(
    ("kind", "named"),
    [("local", ["source.path"]), ("disk", ["'disk'", "embedded", "hub", "local"])],
)
def test_a_source_that_is_none_is_refused(kind, named):
    with pytest.raises(ValueError, match=naming(*named)):
        build_task(config("xsum", kind=kind)).read_examples()
    with pytest.raises(ValueError, match=naming("jsonl", "source.kind=local", "source.path")):
        build_task(config("jsonl")).read_examples()


def test_an_embedded_sample_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "EMBEDDED_SAMPLES", tmp_path)
    (tmp_path / "squad.jsonl").write_text("")
    with pytest.raises(ValueError, match=naming("xsum.jsonl", "squad")):
        build_task(config("xsum")).read_examples()


HUB = {
    "xsum": {
        "path": "EdinburghNLP/xsum", "split": "test", "revision": "refs/convert/parquet",
        "data_files": {"test": "default/test/*.parquet"}, "verification_mode": "no_checks",
    },
    "squad": {
        "path": "rajpurkar/squad_v2", "split": "validation", "revision": "main", "name": None
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HUB)
def test_kind_hub_asks_the_datasets_library_for_the_public_id(name, monkeypatch):
    asked = {}

    def load_dataset(path, **options):
        asked.update(options, path=path)
        return datasets.Dataset.from_list(SQUAD if name == "squad" else ARTICLES)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert build_task(config(name, kind="hub")).read_examples(limit=1)
    assert asked == HUB[name]


def test_a_hub_folder_with_the_same_options_is_read(tmp_path):
    # The same call that goes to the hub, on a folder laid out like the hub's converted branch.
    for split in ("train", "test"):
        folder = tmp_path / "default" / split
        folder.mkdir(parents=True)
        parquet(folder / "0000.parquet", ARTICLES)
    values = config("xsum", kind="hub")
    values["source"]["hub"] |= {"path": str(tmp_path), "revision": None}
    (example,) = build_task(values).read_examples()
    assert example.id == "1"


def test_the_hub_out_of_reach_says_what_else_there_is():
    with pytest.raises(ValueError, match=naming("EdinburghNLP/xsum", "source.kind=embedded")):
        build_task(config("xsum", kind="hub")).read_examples()


UNREAD = """
from spec_bench.tasks.source import HubDataError, HubDataset, RowSource, load_rows
try:
    load_rows(RowSource("hub", HubDataset("someone/articles", "test")), "xsum")
except HubDataError as error:
    print(error)
"""


def test_a_hub_that_cannot_be_reached_is_not_asked_again_and_again(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    nobody = {**kept, "HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", UNREAD]
    done = subprocess.run(command, env=nobody, capture_output=True, text=True, check=True)
    assert "task xsum" in done.stdout and "task.source.kind=embedded" in done.stdout
    assert "Retry" not in done.stderr


def test_the_prompt_allows_unanswerable_and_the_row_says_so(squad_file):
    task = local("squad", squad_file)
    assert "answer: unanswerable\nTitle: Oslo\n" in task.read_examples()[0].turns[0]
    assert task.data_label == f"{squad_file.name}, instructed"
    embedded = build_task(config("squad"))
    assert embedded.read_examples(1)[0].turns[0].startswith("Title: ")
    assert embedded.data_label == "squad.jsonl"


@pytest.mark.parametrize("sample", ["first", "random"])
def test_answered_questions_alone_are_asked_and_the_row_says_so(squad_file, sample):
    asked = {"answered_only": True, "instruction": None, "sample": sample}
    task = local("squad", squad_file, **asked)
    assert [example.id for example in task.read_examples()] == ["q0"]
    assert task.data_label == f"{squad_file.name}, answered questions only"
    every = build_task(config("squad") | {"answered_only": True})
    assert all(each.references[0] for each in every.read_examples(50))
    assert len(every.read_examples()) < len(build_task(config("squad")).read_examples())


def test_the_hubs_answers_are_references_and_none_means_unanswerable(squad_file):
    task = local("squad", squad_file)
    references = [[*example.references[0]] for example in task.read_examples()]
    assert references == [["Norway", "in Norway"], []]
    for answers, right in ((["in Norway", "unanswerable"], 1.0), (["unanswerable", "Norway"], 0.0)):
        assert SCORES["exact_match"]().columns(answers, references)["exact_match"].value == right


def task_of(tmp_path, *lines, **more):
    return build_task(config("jsonl", path=str(written(tmp_path / "mine.jsonl", *lines))) | more)


@pytest.mark.parametrize(
    ("name", "task"), [*((name, "jsonl") for name in QUESTIONS), ("mt_bench", "mt_bench")]
)
def test_question_files_run_through_as_they_are(
    name, task, tmp_path, chat_tokenizer, plain_tokenizer
):
    task = local(task, question_file(tmp_path, name))
    for example, row in zip(task.read_examples(), QUESTIONS[name], strict=True):
        assert example.id == str(row["question_id"])
        assert example.turns == tuple(row["turns"])
        assert [gold for golds in example.references for gold in golds] == row.get("reference", [])
        chat, plain = (task.encode(example, each) for each in (chat_tokenizer, plain_tokenizer))
        assert len(chat) > len(plain)


def test_lines_may_differ_in_their_fields_and_types(tmp_path):
    lines = (
        {"question_id": 1, "turns": ["One?", "Two?"], "reference": ["one", "two"]},
        "",
        {"question_id": "b", "turns": "One?", "reference": "one"},
        {"id": 7, "prompt": "Only a prompt", "category": {"deep": [1]}},
        {"turns": ["One?", "Two?"], "reference": [None, ["a", "b"]]},
        {"turns": "One?", "reference": None},
    )
    assert [(e.id, e.turns, e.references) for e in task_of(tmp_path, *lines).read_examples()] == [
        ("1", ("One?", "Two?"), (("one",), ("two",))),
        ("b", ("One?",), (("one",),)),
        ("7", ("Only a prompt",), ((),)),
        ("3", ("One?", "Two?"), ((), ("a", "b"))),
        ("4", ("One?",), ((),)),
    ]


def test_a_template_and_fields_of_ones_own_make_the_prompt(tmp_path):
    row = {"q": "Why?", "about": {"title": "Rain"}, "a": ["Because.", "It does."]}
    told = {"template": "{title}: {q}", "fields": {"title": "about.title"}, "reference": "a"}
    (example,) = task_of(tmp_path, row, **told, scores=["rouge"]).read_examples()
    assert example.turns == ("Rain: Why?",)
    assert example.references == (("Because.", "It does."),)
    shipped = read_composed_config(
        get_conf_dir() / "task" / "jsonl.yaml"
    )  # as the manual prints it
    told = {"source": {"kind": "local", "path": "mine.jsonl"}, "template": "{title}: {question}"}
    assert build_task({**shipped, **told, "reference": "answer"}).reference == "answer"


def conversation(*roles):
    return [{"role": role, "content": f"{role} {place}"} for place, role in enumerate(roles)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"', r"mine\.jsonl, line 2: no JSON: "),
        ("[1, 2]", r"line 2: turns\[0\] must be a text or a message .* got 1"),
        ("7", r"mine\.jsonl, line 2: a int, not an object"),
        ('{"turns": ["a \\ud83d b"]}', r"mine\.jsonl, line 2: .*ud83d"),
        ({"frage": "Why is it?"}, "no field 'messages' or .*: .* 'task.fields.turns=\"frage\"'$"),
        ({"frage": "Why?", "answer": "As it is."}, "the row has frage, answer$"),
        ({"turns": [None]}, r"line 2: turns\[0\].*None"),
        ({"turns": ["Fine?", 7]}, r"line 2: turns\[1\].*7"),
        ({"turns": [{"text": "no role"}]}, r"line 2: turns\[0\].*'text'"),
        ({"turns": [{"role": "tool", "content": "x"}]}, r"line 2: turns\[0\].*'tool'"),
        ({"turns": [{"role": "user", "content": None}]}, r"line 2: turns\[0\].*None"),
        ({"turns": conversation("user", "user")}, r"line 2: turns\[1\].*'user'"),
        ({"turns": conversation("user", "assistant", "system")}, r"line 2: turns\[2\].*'system'"),
        ({"turns": conversation("system")}, "line 2: no user's message"),
        ({"turns": ["  "]}, "line 2: turn 0.*blank"),
        ({"turns": []}, r"line 2: no turns in field 'turns'.*\[\]"),
        ({"turns": None}, "line 2: no turns in field 'turns'.*None"),
        ({"turns": {"role": "user", "content": "not a list"}}, "line 2: no turns"),
        ({"turns": ["One?"], "reference": [{"a": 1}]}, r"line 2: reference\[0\].*'a': 1"),
    ],
)
def test_a_line_that_cannot_be_is_named_by_its_number_and_value(line, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        task_of(tmp_path, {"turns": ["Why?"]}, line).read_examples()


def test_a_template_over_a_list_of_turns_is_refused_with_the_one_that_takes_each(tmp_path):
    task = task_of(tmp_path, {"turns": ["a", "b"]}, template="Question: {turns}")
    with pytest.raises(ValueError, match=r"{turns} is no text but a list: {turn} stands for each"):
        task.read_examples()


def test_only_the_lines_asked_for_are_read(tmp_path):
    task = task_of(tmp_path, {"turns": ["a"]}, {"turns": ["b"]}, "no JSON")
    assert [e.turns[0] for e in task.read_examples(limit=1, offset=1)] == ["b"]


def test_a_file_of_another_encoding_is_named(tmp_path):
    task = task_of(tmp_path, {"turns": ["a"]})
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b'\n{"turns": ["f\xfcr"]}\n')
    with pytest.raises(ValueError, match=r"mine\.jsonl, line 2: .*utf-8"):
        task.read_examples()


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"template": "{topic}"}, ["'topic'", "turns, category"]),
        ({"fields": {"category": "about.topic"}}, ["'about.topic'", "turns, category"]),
    ],
)
def test_a_field_that_is_not_there_is_named_with_those_that_are(told, named, tmp_path):
    with pytest.raises(ValueError, match=naming("line 1", *named)):
        task_of(tmp_path, {"turns": "One?", "category": "qa"}, **told).read_examples()


@pytest.mark.parametrize(
    ("row", "score", "said"),
    [
        ({"gold": ["c", "d"]}, "my.py", ["turns, gold", "compute(predictions)"]),
        ({}, "f1", ["line 2, turn 1 (and 1 more) has no reference for f1: "]),
    ],
)
def test_prompts_without_a_reference_are_left_out_or_named_with_what_helps(
    row, score, said, tmp_path
):
    task = task_of(tmp_path, {"turns": "a", "reference": "b"}, {"turns": ["a", "b"], **row})
    assert (
        describe_turns_without_reference(
            task, score, task.read_examples(limit=1), may_be_empty=False
        )
        == ""
    )
    told = "1 of 2 answers are scored; line 2, turn 1 has no reference"
    assert (
        describe_turns_without_reference(task, score, task.read_examples(), may_be_empty=False)
        == f"{score}: {told}"
    )
    with pytest.raises(ValueError, match=naming("mine.jsonl, ", *said)):
        describe_turns_without_reference(
            task, score, task.read_examples(offset=1) * 2, may_be_empty=score == "f1"
        )


def test_chat_messages_are_turns_answers_and_a_system_message(tmp_path):
    said = conversation("system", "user", "assistant", "user")
    task = task_of(tmp_path, {"question_id": "q", "turns": said})
    [example] = task.read_examples()
    assert example.turns == ("user 1", "user 3")
    assert example.answers == ("assistant 2",)
    assert task.list_messages(example, turn=1) == said
    assert task.list_messages(example) == said[:2]
    assert task.count_asked_turns(example) == 2
    assert "system 0" in task.format_prompt(example)


def test_a_recorded_answer_to_the_last_turn_is_its_reference(tmp_path):
    said = conversation("user", "assistant")
    [example] = task_of(tmp_path, {"turns": said}, metrics=["rouge"]).read_examples()
    assert example.references == (("assistant 1",),)
    [example] = task_of(tmp_path, {"turns": said, "reference": "given"}).read_examples()
    assert example.references == (("given",),)


def test_ids_that_clash_once_turns_are_counted_are_refused(tmp_path):
    rows = {"question_id": "q", "turns": ["One?", "Two?"]}, {"question_id": "q/0", "turns": ["x"]}
    with pytest.raises(ValueError, match=r"twice .*: q/0"):
        task_of(tmp_path, *rows).read_examples()


def test_a_category_comes_along_where_it_stands_or_where_fields_say(tmp_path):
    rows = {"turns": "One?", "category": "qa"}, {"turns": "Two?", "category": {"deep": 1}}
    task = task_of(tmp_path, *rows, {"turns": "Three?"})
    assert [example.category for example in task.read_examples()] == ["qa", "", ""]
    named = {**config("jsonl")["fields"], "category": "about.topic"}
    row = {"turns": "One?", "category": "qa", "about": {"topic": "rain"}}
    [example] = task_of(tmp_path, row, fields=named).read_examples()
    assert example.category == "rain"


def test_spec_benchs_file_is_read_with_its_categories(tmp_path):
    path = str(question_file(tmp_path, "spec_bench"))
    categories = [
        each.category for each in build_task(config("spec_bench", path=path)).read_examples()
    ]
    assert categories == [row["category"] for row in QUESTIONS["spec_bench"]]
    assert {get_subtask(category) for category in categories} == {*SUBTASKS}


def test_without_that_file_the_embedded_pair_has_prompts_of_its_shape():
    (examples, again) = (build_task(config("spec_bench")).read_examples() for _ in range(2))
    assert examples == again
    counts = Counter((get_subtask(example.category), len(example.turns)) for example in examples)
    assert counts == {(name, 1 + (name == MT_BENCH)): 20 for name in SUBTASKS}
    assert len({example.turns[0] for example in examples}) == len(examples) == 120


# SPEED-Bench's rows, in the shape of the published files; the texts are ours.
TURNS = {"coding": ["Sort a list."], "writing": ["Write a line.", "Now in verse."]}
SPEED = [
    {
        "question_id": f"q{place}", "category": category, "sub_category": "", "source": "made up",
        "src_id": str(place), "difficulty": "easy", "multiturn": len(turns) > 1, "turns": turns,
    }
    for place, (category, turns) in enumerate(TURNS.items())
]  # fmt: skip


@pytest.mark.parametrize("name", ["test.parquet", "test.jsonl"])
def test_speed_benchs_turns_and_categories_are_read(tmp_path, name):
    write = parquet if name.endswith("parquet") else lambda file, rows: written(file, *rows)
    file = write(tmp_path / name, SPEED)
    examples = build_task(config("speed_bench", path=str(file))).read_examples()
    assert {each.category: [*each.turns] for each in examples} == TURNS


def test_a_placeholder_is_refused_with_the_file_that_says_what_fetches_it(tmp_path):
    text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    path = written(tmp_path / "test.jsonl", SPEED[0], {**SPEED[1], "turns": ["x", text]})
    with pytest.raises(ValueError, match=naming("line 2", "conf/task/speed_bench.yaml")):
        build_task(config("speed_bench", path=str(path))).read_examples()


ROW = {"db_id": "shop", "question": "How many?", "query": "SELECT count(*) FROM customer"}
SHIPPED = EMBEDDED_SAMPLES / "spider" / "database"


def spider(folder, row, **values):
    return local("spider", written(folder / "rows.jsonl", row), **values)


def test_every_embedded_reference_names_the_database_that_its_row_names():
    for example in build_task(config("spider")).read_examples():
        ((gold,),) = example.references
        assert isinstance(gold, SqlReference)
        name = example.row["db_id"]
        assert gold.database == SHIPPED / name / f"{name}.sqlite"
        assert gold == example.row["query"]


def test_the_databases_lie_where_the_user_says(tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "mine")
    task = spider(tmp_path, ROW, database=str(tmp_path / "mine"))
    ((gold,),) = task.read_examples()[0].references
    assert gold.database == tmp_path / "mine" / "shop" / "shop.sqlite"


def test_a_given_schema_does_not_stand_in_for_a_database_that_is_stated(tmp_path):
    row = {**ROW, "schema": "customer(name)"}
    with pytest.raises(ValueError, match=naming("line 1", "shop.sqlite")):
        spider(tmp_path, row).read_examples()
    task = spider(tmp_path, row, scores=["exact_match"])
    assert task.read_examples()[0].references == ((row.pop("query"),),)
    del row["db_id"]
    with pytest.raises(ValueError, match=naming("line 1", "'db_id'")):
        spider(tmp_path, {**row, "query": "SELECT 1"}).read_examples()


@pytest.mark.parametrize(
    ("change", "named"),
    [({}, ["spider_data.zip", "task.database"]), ({"databases": None}, ["task.database"])],
)
def test_the_hubs_rows_need_databases_from_somewhere(monkeypatch, change, named):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    task = build_task(config("spider", kind="hub") | change)
    with pytest.raises(ValueError, match=naming(*named)):
        _ = task.database_folder


def test_a_database_with_other_contents_is_another_cell(tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "database")
    task = spider(tmp_path, ROW)
    shop, then = (
        tmp_path / "database/shop/shop.sqlite",
        describe_examples(tuple(task.read_examples())),
    )
    assert then["databases"] == compute_databases_digest([shop])
    with sqlite3.connect(shop) as connection:
        connection.execute("DELETE FROM customer")
    connection.close()
    after = describe_examples(tuple(task.read_examples()))
    assert after["databases"] != then["databases"]
    assert {**after, "databases": ""} == {**then, "databases": ""}


def test_examples_that_ask_no_database_are_stated_as_ever():
    examples = tuple(build_task(config("xsum")).read_examples(3))
    assert describe_examples(examples) == {"count": 3, "digest": digest_examples(examples)}


def test_the_digest_is_that_of_the_files_digests_by_name():
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.parent.name}/{file.name}\n"
        for file in sorted(SHIPPED.glob("*/*.sqlite"))
    ]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert compute_databases_digest(sorted(SHIPPED.glob("*/*.sqlite"), reverse=True)) == expected


def test_the_check_says_what_is_there_and_what_is_wrong(tmp_path, capsys):
    def check(*arguments):
        status = run_command("check spider", list(map(str, arguments)))
        said = capsys.readouterr()
        return status, said.out + said.err

    good = "4 databases, 0 unreadable or empty\ndatabases sha256 "
    digest = compute_databases_digest(SHIPPED.glob("*/*.sqlite"))
    assert check(SHIPPED) == (0, f"{good}{digest}\n")
    assert check(SHIPPED, "--expect", digest) == (0, f"{good}{digest} as expected\n")
    assert check(SHIPPED, "--expect", "00") == (1, f"{good}{digest}, expected 00\n")
    (tmp_path / "spider_data.zip").write_bytes(b"no archive")
    status, said = check(SHIPPED, "--archive", tmp_path / "spider_data.zip")
    assert status == 1 and "spider_data.zip sha256 " in said and ", expected 00636695" in said

    rows = tmp_path / "dev.json"
    rows.write_text(json.dumps([ROW, ROW]))
    status, said = check(SHIPPED, "--rows", rows)
    assert (status, said.splitlines()[0]) == (0, "1 databases, 0 unreadable or empty")
    lines = written(tmp_path / "dev.jsonl", {**ROW, "db_id": "zoo"}, "")
    status, said = check(SHIPPED, "--rows", lines)
    assert status == 2 and "zoo.sqlite; found city, farm, school, shop" in said

    assert check(tmp_path)[0] == 2
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "torn.sqlite").write_bytes(b"half a download")
    status, said = check(tmp_path)
    assert status == 1 and "torn.sqlite: file is not a database" in said
