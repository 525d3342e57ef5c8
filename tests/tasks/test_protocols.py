"""What stands before a question, what of an answer is scored, and what a paper's authors asked."""

import json

import pandas as pd
import pytest
from hydra import compose, initialize_config_dir

from spec_bench.jobs.config.compose import (
    parse_request,
    register_config_plugins,
    to_hydra_arguments,
)
from spec_bench.jobs.config.settings import build_settings
from spec_bench.metrics.metric import metric
from spec_bench.records.types import Generation
from spec_bench.report.papers.paper import get_table, load_paper
from spec_bench.report.tables.build import build_tables_by_setting
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.settings.configs import get_conf_dir, get_experiments_dir, list_conf_dirs, read_yaml
from spec_bench.tasks import build_task
from tests.commands import report
from tests.question_files import written
from tests.report.rows import embedded, squad
from tests.said import naming

from .conftest import config, local

HOUSES = [
    {"translation": {"de": f"{de}.", "en": f"{en}."}}
    for de, en in (("Rot", "Red"), ("Blau", "Blue"), ("Kalt", "Cold"), ("Warm", "Warm"))
]


def asked(*words):
    """The checked settings of a command line."""
    register_config_plugins()
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        return parse_request(compose("config", overrides=to_hydra_arguments(list(words))))


def houses(tmp_path, name="houses", rows=HOUSES, **more):
    return local("wmt18_deen", written(tmp_path / f"{name}.jsonl", *rows), **more)


def test_what_is_scored_ends_at_a_text_behind_which_decoding_goes_on(tmp_path, plain_tokenizer):
    task = houses(tmp_path, stop=[], score_until=["\n"])
    assert task.extract_scored_text(" Red.\nAnd more") == "Red."
    assert task.make_stop_criteria(plain_tokenizer).stop_texts == ()
    assert houses(tmp_path, stop=["\n"], score_until=[";"]).extract_scored_text("a; b\nc") == "a"


def test_shots_of_a_file_stand_before_each_question_with_their_answers(tmp_path, plain_tokenizer):
    shots = written(tmp_path / "shots.jsonl", *HOUSES[2:])
    task = houses(tmp_path, rows=HOUSES[:1], shots=2, shots_from=str(shots))
    (example,) = task.read_examples()
    asks = "Translate German to English:\nGerman: {}.\nEnglish:"
    told = f"{asks.format('Kalt')} Cold.\n{asks.format('Warm')} Warm.\n{asks.format('Rot')}"
    assert task.format_prompt(example) == told
    roles = [each["role"] for each in task.list_messages(example)]
    assert roles == ["user", "assistant"] * 2 + ["user"]


def test_without_a_file_shots_are_the_last_rows_which_are_not_asked(tmp_path):
    task = houses(tmp_path, shots=1)
    examples = task.read_examples()
    assert [each.references[0][0] for each in examples] == ["Red.", "Blue.", "Cold."]
    assert examples[0].shots[0][1] == "Warm."
    assert "1 worked examples before each" in task.describe_data(examples)


def test_the_hubs_shots_are_of_the_split_that_the_task_names():
    values = config("wmt18_deen", kind="hub")
    source = build_task(values | {"shots": 5})._worked_examples_source
    assert (source.split, source.hub.data_files) == (
        "validation",
        "de-en/validation-*.parquet",
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"shots": 4}, "task.shots=4: houses.jsonl has 4 rows"),
        ({"shots": -1}, "task.shots"),
        ({"shots": 1, "shots_from": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"schema_line": "{table} of {what}"}, "task.schema_line"),
        ({"prompt_limit": 0}, "task.prompt_limit"),
    ],
)
def test_bad_shots_and_limits_are_refused_by_name(tmp_path, more, said):
    with pytest.raises(ValueError, match=naming(said)):
        houses(tmp_path, **more).read_examples()


def test_a_prompt_is_cut_behind_so_many_tokens(tmp_path, plain_tokenizer):
    task = houses(tmp_path, prompt_limit=10)
    assert len(task.encode(task.read_examples()[0], plain_tokenizer)) == 10


def test_many_questions_of_one_topic_are_said_to_be_of_one(tmp_path):
    rows = [
        {"id": str(n), "title": "Oslo", "context": "c", "question": "q", "answers": {"text": ["a"]}}
        for n in range(20)
    ]
    task = local("squad", written(tmp_path / "squad.jsonl", *rows))
    assert "of 1 title alone" in task.describe_data(task.read_examples())


def test_shots_are_in_the_digest_of_prompts_and_defaults_in_no_run_id():
    def made(*words):
        given = asked("task=xsum", "prompts=2", "cells=[sd:2]", *words)
        settings = build_settings(given, list_conf_dirs())
        return settings.prompts_digest, settings.compute_run_id(settings.cells[0])

    plain = made()
    assert made("task.shots=0", "task.score_until=[]", "prompts=2") == plain
    digest, run_id = made("task.shots=1")
    assert digest != plain[0] and run_id != plain[1]
    scored = made("task.score_until=[x]")
    assert scored[0] == plain[0] and scored[1] != plain[1]


def test_prompts_may_be_all():
    assert asked("prompts=all").prompts is None


def test_authors_is_refused_where_no_recipe_says_what_they_did():
    for words in (["protocol=authors"], ["protocol=authors", "dsbd=one_cache", "task=xsum"]):
        with pytest.raises(ValueError, match=naming("protocol")):
            asked(*words)
    assert asked("dsbd=null").protocol == "clean"


def test_dsbds_authors_ask_squad_one_with_an_example_and_let_answers_run_on(plain_tokenizer):
    given = asked("dsbd=one_cache", "protocol=authors", "task=squad")
    task = build_task(given.task)
    assert given.protocol == "authors" and given.generation["max_new_tokens"] == 200
    assert task.source.hub.path == "rajpurkar/squad" and task.instruction is None
    assert (task.stop, task.score_until, task.prompt_limit) == ((), ("\n",), 512)
    assert {"sd:4", "dsbd_one_cache:3x3@0.9", "dsbd_one_cache:2x3@0.9"} <= {*given.cells}
    prompt = task.format_prompt(task.read_examples(1)[0])
    assert prompt.startswith("[INST] <<SYS>>") and prompt.count("Question:") == 2


def test_dsbds_authors_write_a_line_for_each_table_and_score_up_to_a_semicolon():
    task = build_task(asked("dsbd=fronts", "protocol=authors", "task=spider").task)
    prompt = task.format_prompt(task.read_examples(1)[0])
    assert prompt.count("columns = [*,") > 3 and prompt.endswith("\nSQL:")
    assert task.extract_scored_text(" SELECT 1; SELECT 2") == "SELECT 1"


def test_mcsds_authors_ask_bare_prompts_of_chat_models_too(chat_tokenizer, tmp_path):
    prompts = tmp_path / "wmt_ende.json"
    prompts.write_text(json.dumps(["Input: Red.\nOutput: ", "Input: Blue.\nOutput: "]))
    given = asked("mcsd=search", "protocol=authors", "task=wmt_mcsd", f"task.source.path={prompts}")
    task = build_task(given.task)
    example, _ = task.read_examples()
    assert chat_tokenizer.decode(task.encode(example, chat_tokenizer)) == (
        "<s>Input: Red.\nOutput: "
    )
    assert task.name == "wmt14_ende" and task.stop == ()
    alpaca = build_task(asked("mcsd=acceptance", "protocol=authors", "task=alpaca").task)
    assert not alpaca.uses_chat_template(chat_tokenizer) and alpaca.plain == "{turn}"
    wrapped = build_task(asked("mcsd=ablation", "protocol=authors", "task=wmt14_ende").task)
    assert wrapped.format_prompt(wrapped.read_examples(1)[0]).endswith("\nOutput: ")


def test_redrafters_authors_ask_first_turns_and_rsds_protocol_guesses_examples():
    turns = asked("redrafter=beams", "protocol=authors", "task=mt_bench")
    assert turns.task["later_turns"] == "none"
    assert asked("rsd=exp2", "protocol=authors", "task=wmt18_deen").task["shots"] == 5


PROTOCOLS = sorted(get_experiments_dir().glob("*/protocol/authors_*.yaml"))


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_an_authors_recipe_has_a_recipe_and_a_note_under_its_tables(path):
    paper = path.parents[1]
    assert (paper / f"{path.stem.removeprefix('authors_')}.yaml").is_file()
    told = load_paper(paper.name).protocols
    assert told.clean and told.authors and any("ours" in each.lower() for each in told.authors)
    for task in (path.parent / "task").glob("*.yaml"):
        assert read_yaml(task)["protocol"] == "authors"


def test_a_table_keeps_protocols_apart_and_shows_the_one_that_is_asked_for(tmp_path):
    theirs = {"protocol": "authors", "run_id": "theirs", "token_rate_end_to_end": 30.0}
    rows = [squad("ar", token_rate=50.0), squad("ar", token_rate=70.0, **theirs)]
    folder = tmp_path / "dsbd-one-cache"
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "results.csv", index=False)
    table = get_table("dsbd/1")
    titles = [
        sheet.title
        for sheet in build_tables_by_setting(table, MeasuredRows.read_below(tmp_path), "embedded")
    ]
    assert len(titles) == 2 and any("protocol authors" in title for title in titles)
    assert any("protocol clean" in title for title in titles)
    (sheet,) = build_tables_by_setting(
        table, MeasuredRows.read_below(tmp_path, protocol="authors"), "embedded"
    )
    assert 30.0 in [place["value"] for place in sheet.places]
    assert any(note.startswith("Protocol authors: ") for note in sheet.notes)
    assert all("protocol=authors" in each for each in sheet.commands)


def test_the_least_width_that_dsbds_code_tries_is_asked_as_its_recipe_says():
    text = (get_experiments_dir() / "dsbd/protocol/authors_fronts.yaml").read_text("utf-8")
    (told,) = (line for line in text.split("\n") if "cells=[" in line)
    given = asked("dsbd=fronts", "protocol=authors", "task=squad", told.strip("# "))
    (_, cell) = build_settings(given, list_conf_dirs()).cells
    tree = cell.config.tree
    assert (cell.title, tree.width, tree.depth, tree.least) == ("dsbd least=2 3x3@0.9", 3, 3, 2)


def test_mcsds_speed_ups_count_the_prefill_as_its_authors_do(tmp_path, capsys):
    theirs = {"protocol": "authors", "task": "alpaca", "temperature": 1.0}
    numbers = {"speedup": 1.75, "speedup_end_to_end": 1.25, "block_efficiency": 2.0}
    cells = [embedded("ar", **theirs), embedded("mcsd", "4-2-1", **theirs, **numbers)]
    (tmp_path / "mcsd-ablation").mkdir()
    pd.DataFrame(cells).to_csv(tmp_path / "mcsd-ablation/results.csv", index=False)
    told = ["table", "mcsd/4", "--pair", "embedded", "--protocol", "authors"]
    report((*told, "--results", str(tmp_path)))
    shown = capsys.readouterr().out
    assert "1.25" in shown and "1.75" not in shown
    notes = " ".join(shown.split())
    assert "for trees of one level" in notes and "prefill left out" not in notes


def test_perplexity_by_prompt_weighs_prompts_alike():
    def answer(name, tokens, nats):
        return Generation(name, (1,) * tokens, "stop", (), 0.0, 1.0, 0.0, 0.0, log_likelihood=-nats)

    both = [answer("a", 1, 0.0), answer("b", 3, 6.0)]
    assert metric["perplexity_by_prompt"].function(both).value == pytest.approx(2.718281828)
    assert metric["perplexity"].function(both).value == pytest.approx(4.4816890703)
