"""The small world that the embedded models live in: reproducible, consistent, held out."""

import itertools
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from transformers import PreTrainedTokenizerFast

from scripts.family.world.batches import batches
from scripts.family.world.databases import SCHEMAS, build
from scripts.family.world.evaluation import seen_in_training
from scripts.family.world.questions import questions
from scripts.family.world.samples import TASKS, draw_sample, turns

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "spec_bench" / "embedded"


def shipped(task):
    lines = (EMBEDDED / "tasks" / f"{task}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def database(name):
    return EMBEDDED / "tasks" / "spider" / "database" / name / f"{name}.sqlite"


def tokenizer():
    return PreTrainedTokenizerFast.from_pretrained(EMBEDDED / "models" / "target")


@pytest.mark.parametrize("task", TASKS)
def test_a_seed_fixes_the_text_and_another_seed_changes_it(task):
    one, same, other = (
        [draw_sample(task, rng, i) for i in range(20)] for rng in map(Random, (7, 7, 8))
    )
    assert one == same
    assert one != other


def test_batches_are_the_same_from_the_start_whenever_they_are_asked_for():
    backend = tokenizer().backend_tokenizer
    first, again = (
        [ids.tolist() for ids, _ in itertools.islice(batches(backend, 5, 1024, pool=64), 4)]
        for _ in range(2)
    )
    assert first == again


@pytest.mark.parametrize("task", TASKS)
def test_at_least_a_hundred_different_samples_ship(task):
    prompts = {turns(task, sample)[0][0] for sample in shipped(task)}
    assert len(prompts) == len(shipped(task)) >= 100


def test_translations_stories_and_questions_on_them_are_not_in_the_training_text():
    names = tokenizer()
    text = itertools.islice(batches(names.backend_tokenizer, 100, 4096), 120)
    shares = seen_in_training(names, EMBEDDED / "tasks", [text])
    assert [shares[t] for t in ("wmt18_deen", "wmt14_ende", "xsum", "squad")] == [0, 0, 0, 0]
    # The check can fail: few different questions exist about a database.
    assert shares["spider"] > 0.3


def test_the_questions_that_ship_are_those_of_the_worlds_seed():
    assert shipped("spec_bench") == list(questions(2))
    assert list(questions(3, each=2)) != list(questions(2, each=2))


def test_squad_answers_stand_where_they_are_said_to_stand():
    samples = shipped("squad")
    for sample in samples:
        answers = sample["answers"]
        for text, start in zip(answers["text"], answers["answer_start"], strict=True):
            assert sample["context"][start : start + len(text)] == text
    unanswerable = sum(not sample["answers"]["text"] for sample in samples) / len(samples)
    assert 0.1 < unanswerable < 0.5


def test_spider_queries_run_on_the_databases_that_ship():
    rows = 0
    for sample in shipped("spider"):
        file = database(sample["db_id"])
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            rows += len(connection.execute(sample["query"]).fetchall())
    assert rows > len(shipped("spider"))


@pytest.mark.parametrize("db", SCHEMAS)
def test_databases_depend_on_their_names_alone(db, tmp_path):
    build(db, tmp_path / "again.sqlite")
    dumps = []
    for file in (tmp_path / "again.sqlite", database(db)):
        with closing(sqlite3.connect(file)) as connection:
            dumps.append(list(connection.iterdump()))
    assert dumps[0] == dumps[1]


@pytest.mark.slow
def test_a_toy_family_trains_resumes_and_ships(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "family" / "train.py", "--quick"]
    command += ["--work", tmp_path / "work", "--out", tmp_path / "out"]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    for name in ("target", "draft", "draft_distilled"):
        assert (tmp_path / "out" / "models" / name / "model.safetensors").is_file()
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    (tmp_path / "out" / "MODEL_CARD.md").unlink()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    assert (tmp_path / "out" / "MODEL_CARD.md").read_text() == card
