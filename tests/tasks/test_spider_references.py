"""Spider's references know their databases, and what is missing is said before anything runs."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys

import huggingface_hub
import pytest

from spec_bench.jobs.config.settings import examples_digest, stated
from spec_bench.records.types import SqlReference
from spec_bench.tasks import build_task
from spec_bench.tasks.source import EMBEDDED
from spec_bench.tasks.spider import databases_digest
from tests.said import naming

from .conftest import config

ROW = {"db_id": "shop", "question": "How many?", "query": "SELECT count(*) FROM customer"}
SHIPPED = EMBEDDED / "spider" / "database"


def task_of(folder, row, **values):
    file = folder / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return build_task({**config("spider", kind="local", path=str(file)), **values})


def check(*arguments):
    """Exit status and output of the command."""
    command = [sys.executable, "-m", "spec_bench", "spider", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_every_embedded_reference_names_the_database_that_its_row_names():
    for example in build_task(config("spider")).examples():
        ((gold,),) = example.references
        assert isinstance(gold, SqlReference)
        name = example.meta["db_id"]
        assert gold.database == SHIPPED / name / f"{name}.sqlite"
        assert gold == example.meta["query"]


def test_the_databases_lie_where_the_user_says(tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "mine")
    task = task_of(tmp_path, ROW, database=str(tmp_path / "mine"))
    ((gold,),) = task.examples()[0].references
    assert gold.database == tmp_path / "mine" / "shop" / "shop.sqlite"


def test_a_given_schema_does_not_stand_in_for_a_database_that_is_stated(tmp_path):
    row = {**ROW, "schema": "customer(name)"}
    with pytest.raises(ValueError, match=naming("line 1", "shop.sqlite")):
        task_of(tmp_path, row).examples()
    task = task_of(tmp_path, row, scores=["exact_match"])
    assert task.references(task.examples()[0]) == [ROW["query"]]


def test_a_row_without_a_database_is_named(tmp_path):
    row = {"schema": "customer(name)", "question": "How many?", "query": "SELECT 1"}
    with pytest.raises(ValueError, match=naming("line 1", "'db_id'")):
        task_of(tmp_path, row).examples()


def test_where_the_archive_of_databases_cannot_be_had_a_folder_is_asked_for(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    task = build_task(config("spider", kind="hub"))
    with pytest.raises(ValueError, match=naming("spider_data.zip", "task.database")):
        _ = task.database_folder


def test_the_hubs_rows_need_databases_from_somewhere():
    task = build_task(config("spider", kind="hub") | {"databases": None})
    with pytest.raises(ValueError, match=naming("task.database")):
        _ = task.database_folder


def test_a_database_with_other_contents_is_another_cell(tmp_path):
    shutil.copytree(SHIPPED, tmp_path / "database")
    task = task_of(tmp_path, ROW)
    before = tuple(task.examples())
    assert stated(before)["databases"] == databases_digest([tmp_path / "database/shop/shop.sqlite"])
    then = stated(before)
    with sqlite3.connect(tmp_path / "database" / "shop" / "shop.sqlite") as connection:
        connection.execute("DELETE FROM customer")
    connection.close()
    after = stated(tuple(task.examples()))
    assert after["databases"] != then["databases"]
    assert {**after, "databases": ""} == {**then, "databases": ""}


def test_examples_that_ask_no_database_are_stated_as_ever():
    examples = tuple(build_task(config("xsum")).examples(3))
    assert stated(examples) == {"count": 3, "digest": examples_digest(examples)}


def test_the_digest_is_that_of_the_files_digests_by_name():
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.parent.name}/{file.name}\n"
        for file in sorted(SHIPPED.glob("*/*.sqlite"))
    ]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert databases_digest(sorted(SHIPPED.glob("*/*.sqlite"), reverse=True)) == expected


def test_the_check_prints_the_digest_of_a_good_folder():
    digest = databases_digest(SHIPPED.glob("*/*.sqlite"))
    status, said = check(SHIPPED)
    assert status == 0
    assert said.splitlines() == ["4 databases, 0 unreadable or empty", f"databases sha256 {digest}"]
    assert check(SHIPPED, "--expect", digest)[0] == 0


def test_the_check_refuses_another_digest_and_another_archive(tmp_path):
    status, said = check(SHIPPED, "--expect", "00")
    assert status == 1
    assert said.endswith(", expected 00\n")
    (tmp_path / "spider_data.zip").write_bytes(b"no archive")
    status, said = check(SHIPPED, "--archive", tmp_path / "spider_data.zip")
    assert status == 1
    assert "spider_data.zip sha256 " in said
    assert ", expected 00636695" in said


def test_the_check_wants_the_databases_that_rows_ask(tmp_path):
    rows = tmp_path / "dev.json"
    rows.write_text(json.dumps([ROW, ROW]))
    status, said = check(SHIPPED, "--rows", rows)
    assert (status, said.splitlines()[0]) == (0, "1 databases, 0 unreadable or empty")
    rows.write_text(json.dumps([{**ROW, "db_id": "zoo"}]))
    status, said = check(SHIPPED, "--rows", rows)
    assert status == 2
    assert "zoo.sqlite; found city, farm, school, shop" in said


def test_the_check_names_a_file_that_is_no_database(tmp_path):
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "torn.sqlite").write_bytes(b"half a download")
    status, said = check(tmp_path)
    assert status == 1
    assert "torn.sqlite: file is not a database" in said
