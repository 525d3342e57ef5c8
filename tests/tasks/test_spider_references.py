"""Spider's references know their databases, and what is missing is said before anything runs."""

import hashlib
import json
import shutil
import sqlite3

import huggingface_hub
import pytest

from spec_bench.jobs.config.settings import examples_digest, stated
from spec_bench.records.types import SqlReference
from spec_bench.tasks import build_task
from spec_bench.tasks.source import EMBEDDED
from spec_bench.tasks.spider import databases_digest, main
from tests.said import naming

from .conftest import config, local, written

ROW = {"db_id": "shop", "question": "How many?", "query": "SELECT count(*) FROM customer"}
SHIPPED = EMBEDDED / "spider" / "database"


def task_of(folder, row, **values):
    return local("spider", written(folder / "rows.jsonl", row), **values)


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


def test_the_check_says_what_is_there_and_what_is_wrong(tmp_path, capsys):
    def check(*arguments):
        status, said = main(list(map(str, arguments))), capsys.readouterr()
        return status, said.out + said.err

    good = "4 databases, 0 unreadable or empty\ndatabases sha256 "
    digest = databases_digest(SHIPPED.glob("*/*.sqlite"))
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
