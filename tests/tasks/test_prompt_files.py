"""Files as people have them: every form is read as the same prompts, or refused with what helps."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import sys

import datasets
import pytest
from omegaconf import OmegaConf

from spec_bench.api.jobs import build_overrides_and_save_prompts
from spec_bench.audit.__main__ import complete_options_and_read_task
from spec_bench.jobs.app import build_unpinned_settings
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.config.flags import flags_to_overrides
from spec_bench.settings import foreign
from spec_bench.settings.arguments import parse_options
from spec_bench.tasks import build_task, build_task_from_files, prompt_files
from tests.said import naming

from .conftest import local

ASKED = ["Name a boat.", 'Who said "no", and why?', "Übersetze: Ein Fuß.\nOutput: "]
SYSTEM = {"role": "system", "content": "Be brief."}


def said(text, *more):
    return [{"role": "user", "content": text}, *more]


def lines(*rows):
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def table(delimiter, **columns):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([[*columns], *zip(*columns.values(), strict=True)])
    return text.getvalue()


ANSWER = {"role": "assistant", "content": "Yes."}
TURNS = lines(*({"turns": [text]} for text in ASKED))
BATCH = [
    {"custom_id": f"r{n}", "url": "/v1/chat/completions", "body": {"messages": said(text)}}
    for n, text in enumerate(ASKED)
]
SHARED = [
    {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "Yes."}]}
    for text in ASKED
]
PARTS = [{"messages": said([{"type": "text", "text": text}])} for text in ASKED]
TEXTS = {
    "messages.jsonl": lines(*({"messages": said(text)} for text in ASKED)),
    "answered.json": json.dumps([{"messages": said(text, ANSWER)} for text in ASKED]),
    "parts.jsonl": lines(*PARTS),
    "sharegpt.json": json.dumps(SHARED, indent=1),
    "batch.jsonl": lines(*BATCH),
    "alpaca.json": json.dumps([{"instruction": t, "input": "", "output": "1"} for t in ASKED]),
    "text.jsonl": lines(*({"text": text} for text in ASKED)),
    "question.jsonl": lines(*({"question": text, "answer": "x"} for text in ASKED)),
    "strings.json": json.dumps(ASKED),
    "strings.jsonl": lines(*ASKED),
    "data.json": json.dumps({"version": 1, "data": [{"prompt": text} for text in ASKED]}),
    "comma.csv": table(",", id=[7, 8, 9], prompt=ASKED),
    "semicolon.csv": table(";", Nr=[7, 8, 9], prompt=ASKED),
    "tab.tsv": table("\t", id=[7, 8, 9], prompt=ASKED),
    "named.txt": table(",", id=[7, 8, 9], prompt=ASKED),
    "noending": TURNS,
}
BYTES = {
    "bom.jsonl": codecs.BOM_UTF8 + TURNS.encode(),
    "utf16.jsonl": TURNS.encode("utf-16"),
    "packed.jsonl.gz": gzip.compress(TURNS.encode()),
    "packed.jsonl.bz2": bz2.compress(TURNS.encode()),
    "packed.csv.xz": lzma.compress(TEXTS["comma.csv"].encode()),
}


def written(folder, name):
    file = folder / name
    if name in ("frame.parquet", "saved"):
        made = datasets.Dataset.from_list([{"prompt": text} for text in ASKED])
        (made.to_parquet if name == "frame.parquet" else made.save_to_disk)(file)
    else:
        file.write_bytes(BYTES.get(name) or TEXTS[name].encode())
    return file


FORMS = [*TEXTS, *BYTES, "frame.parquet", "saved"]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_same_prompts(name, tmp_path):
    examples = local("jsonl", written(tmp_path, name)).read_examples()
    assert [example.turns for example in examples] == [(text,) for text in ASKED]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_every_verb_reads_every_form(name, tmp_path, monkeypatch, plain_tokenizer):
    monkeypatch.chdir(tmp_path)
    file = str(written(tmp_path, name))
    task = build_task_from_files(file)
    expected = task.encode_asked_turns_but_failing(task.read_examples(), plain_tokenizer)

    def of_job(words):
        job = build_unpinned_settings(compose_config(words))
        return job.task.encode_asked_turns_but_failing(
            [*job.examples, *job.confirmation_examples], plain_tokenizer
        )

    search = ["experiment=recommend", "prompts=2", "confirm={best: 1, by: speedup, prompts: 1}"]
    assert of_job(flags_to_overrides("run", ["--data", file])) == expected
    assert of_job([*search, *flags_to_overrides("recommend", ["--data", file])]) == expected
    assert of_job(build_overrides_and_save_prompts([], {"data": file})) == expected
    audited = complete_options_and_read_task(parse_options("check decoders", ["--prompts", file]))
    assert (
        audited.encode_asked_turns_but_failing(audited.read_examples(), plain_tokenizer) == expected
    )


def test_several_files_are_one_and_their_ids_may_be_the_same(tmp_path):
    file, other = written(tmp_path, "comma.csv"), written(tmp_path, "semicolon.csv")
    flags = flags_to_overrides("run", ["--data", str(file), "--data", str(other), "prompts=null"])
    shells = flags_to_overrides("run", ["--data", str(file), str(other), "prompts=null"])
    assert [*flags] == shells and build_overrides_and_save_prompts([], {"data": [file, other]})[
        :2
    ] == flags[:2]
    job = build_unpinned_settings(compose_config(flags))
    assert [example.turns[0] for example in job.examples] == ASKED * 2
    assert "comma.csv, semicolon.csv: 6 prompts (prompt); 3 repeat" in job.task.describe_data(
        job.examples
    )


def test_the_standard_input_is_read_once_for_all_that_ask(monkeypatch):
    prompt_files._read_stream_once.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TURNS.encode())))
    task = build_task_from_files("-")
    assert len(task.read_examples(1)) == 1
    assert [example.turns[0] for example in task.read_examples()] == ASKED
    prompt_files._read_stream_once.cache_clear()


def first(tmp_path, name, content, task="jsonl", **more):
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    task = local(task, file, **more)
    return task, task.read_examples()


def test_cells_and_numbers_stay_as_the_file_has_them(tmp_path):
    golds = ["NA", "None", "null", "nan", "3.10", "007", "True", "2021-03-04", ""]
    content = table(",", turns=["q"] * len(golds), reference=golds)
    _, examples = first(tmp_path, "x.csv", content)
    assert [each.references for each in examples] == [*(((gold,),) for gold in golds[:-1]), ((),)]
    _, examples = first(tmp_path, "x.json", '[{"turns": "q", "reference": "2021-03-04"}]')
    assert examples[0].references == (("2021-03-04",),)
    rows = '{"turns": "q", "reference": NaN}\n{"turns": "r", "reference": 3.10}\n'
    _, examples = first(tmp_path, "x.jsonl", rows)
    assert [each.references for each in examples] == [((),), (("3.10",),)]


def test_a_quotation_mark_in_a_tab_separated_cell_is_a_letter(tmp_path):
    content = 'turns\treference\n"Quote is first\tone\nOf 5" of snow?\tsix\n'
    _, examples = first(tmp_path, "x.tsv", content)
    assert [each.turns[0] for each in examples] == ['"Quote is first', 'Of 5" of snow?']
    _, examples = first(tmp_path, "y.tsv", 'turns\treference\n"two\nlines"\tone\n')
    assert examples[0].turns == ("two\nlines",)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("x.csv", "prompt,reference\na,b\nc\n", ["line 3", "1 cells", "2"]),
        ("x.csv", 'prompt,reference\na,b\n"c,d\ne,f\n', ["line 3", "quotation mark"]),
        ("x.csv", "prompt,prompt\na,b\n", ["line 1", "two columns of one name"]),
        ("x.csv", "Nr;Frage\n1;Was ist das?\n", ["'task.fields.turns=\"Frage\"'"]),
        ("x.csv", "source,reference\nA boat.,Ein Boot.\n", ["'task.fields.turns=\"source\"'"]),
        ("x.jsonl", '{"id": 1, "answer": "It is so."}', ["the row has id, answer"]),
        ("x.jsonl", "", ["x.jsonl has no prompt"]),
        ("x.jsonl", '{"turns": "q", "reference": Infinity}', ["line 1", "Infinity"]),
        ("x.pdf", "%PDF-1.7", ["x.pdf", "CSV"]),
        ("x.json", '[\n{"prompt": "a"},\n{"prompt" "b"}]', ["line 3", "no JSON"]),
        (
            "x.jsonl",
            '{"context": "c", "question": "q", "answers": {"text": ["a"]}}',
            ["SQuAD", "--task squad"],
        ),
        ("x.jsonl", '{"question": "q", "query": "SELECT 1", "db_id": "d"}', ["--task spider"]),
        (
            "x.jsonl",
            '{"prompt": "def f():", "entry_point": "f", "test": "t"}',
            ["--task humaneval task.run_code=true"],
        ),
    ],
)
def test_what_cannot_be_read_is_one_line_with_what_helps(name, content, named, tmp_path):
    with pytest.raises(ValueError, match=naming(*named)) as refused:
        first(tmp_path, name, content)
    assert str(refused.value).count("task jsonl") <= 1


def test_zstd_without_its_module_says_what_brings_it(tmp_path, monkeypatch):
    magic = b"\x28\xb5\x2f\xfd"
    monkeypatch.setitem(foreign._MODULES_BY_MAGIC, magic, ("no_such_module",))
    (tmp_path / "x.jsonl.zst").write_bytes(magic)
    with pytest.raises(ValueError, match=naming("Python 3.14", "pip install zstandard")):
        local("jsonl", tmp_path / "x.jsonl.zst").read_examples()


def test_squads_own_file_is_read_by_its_task(tmp_path):
    asked = {"id": "7", "question": "Where?", "answers": [{"text": "Oslo", "answer_start": 0}]}
    paragraph = {"context": "Oslo is there.", "qas": [asked]}
    article = {"title": "Oslo", "paragraphs": [paragraph]}
    _, (example,) = first(tmp_path, "dev.json", json.dumps({"data": [article]}), "squad")
    assert example.references == (("Oslo",),) and "Oslo is there." in example.turns[0]


def test_the_first_field_counts_and_the_line_says_which(tmp_path):
    row = {"text": "t", "question": "q", "prompt": "p", "instruction": "i", "turns": ["u"]}
    asked = []
    for name in ("messages", "conversations", "turns", "instruction", "prompt", "question"):
        whole = {**row, "messages": said("m"), "conversations": said("c"), "answer": "a"}
        left = {key: value for key, value in whole.items() if key not in asked}
        task, (example,) = first(tmp_path, "x.jsonl", lines(left))
        assert example.turns[0] == {"turns": "u"}.get(name, name[0])
        assert f"({name}); references: answer" in task.describe_data([example])
        asked.append(name)


def test_how_many_of_how_many_were_taken_is_said_with_their_references(tmp_path):
    rows = [{"messages": said(f"{n}?", ANSWER)} for n in range(25)]
    task, _ = first(tmp_path, "mine.jsonl", lines(*rows))
    told = "mine.jsonl: 20 of 25 conversations (messages); references: the last answers"
    assert task.describe_data(task.read_examples(20)) == told
    assert task.describe_data(task.read_examples()) == told.replace("20 of 25", "25")


def test_what_was_left_out_is_counted_of_the_rows_up_to_the_last_that_was_taken(tmp_path):
    human = {"from": "human", "value": "?"}
    good, bad = ([*[human] * many, {"from": "gpt", "value": "!"}] for many in (1, 2))
    rows = [{"conversations": bad if n % 5 == 0 else good} for n in range(24)]
    task, _ = first(tmp_path, "mine.jsonl", lines(*rows))
    for limit, taken, out in ((5, "5 of 24", 2), (None, "19 of 24", 5)):
        told = task.describe_data(task.read_examples(limit))
        assert f" {taken} conversations " in told
        assert f"of rows up to here {out} left out" in told


def test_what_the_system_says_comes_from_the_row_else_from_the_setting(tmp_path):
    rows = [{"turns": "q", "system": "Row."}, {"messages": [SYSTEM, *said("q")]}, {"prompt": "q"}]
    task, examples = first(tmp_path, "x.jsonl", lines(*rows), system="Flag.")
    assert [each.system for each in examples] == ["Row.", "Be brief.", "Flag."]
    assert task.format_prompt(examples[0]) == "Row.\nq"
    assert flags_to_overrides("run", ["--system", "Be brief."]) == ['++task.system="Be brief."']
    changed = build_unpinned_settings(compose_config(["++task.system=a", "prompts=1"]))
    same = build_unpinned_settings(compose_config(["++task.system=null", "prompts=1"]))
    plain = build_unpinned_settings(compose_config(["prompts=1"]))
    ids = [job.compute_run_id(job.cells[0]) for job in (changed, same, plain)]
    assert ids[1] == ids[2] != ids[0]


@pytest.mark.parametrize("words", ["task=jsonl", "task=humaneval", "task=mt_bench pair=opt_13b"])
def test_a_file_that_is_named_is_read_whatever_the_tasks_source(words, tmp_path):
    file = written(tmp_path, "comma.csv")
    own = (f"task.source.path={file}", "task.metrics=[]", "task.source.kind=embedded")
    task = build_task(
        OmegaConf.to_container(compose_config([*words.split(), *own]).task, resolve=True)
    )
    assert task.source.kind == "local"
    assert [example.turns[0] for example in task.read_examples()] == ASKED


def test_a_folder_of_several_splits_names_the_setting_that_chooses(tmp_path):
    made = datasets.Dataset.from_list([{"prompt": text} for text in ASKED])
    datasets.DatasetDict({"train": made, "dev": made}).save_to_disk(tmp_path / "both")
    with pytest.raises(ValueError, match=naming("task.source.split=train or dev")):
        local("jsonl", tmp_path / "both").read_examples()
    assert len(local("jsonl", tmp_path / "both", split="dev").read_examples()) == 3
    assert len(local("jsonl", tmp_path / "both" / "train").read_examples()) == 3


def test_rows_with_nothing_in_a_field_of_the_template_are_counted(tmp_path):
    (tmp_path / "pairs.csv").write_text("source,reference\nOne.,Eins.\n,Zwei.\n")
    task = build_task_from_files(str(tmp_path / "pairs.csv"), template="Translate: {source}")
    assert "; 1 with nothing in {source}" in task.describe_data(task.read_examples())
