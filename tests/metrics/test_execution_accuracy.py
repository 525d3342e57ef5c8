"""Execution accuracy on small databases, from the texts to the columns."""

import sqlite3
from pathlib import Path

import pytest

from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.execution import ExecutionAccuracy
from spec_bench.metrics.quality import quality_columns
from spec_bench.records.types import Generation, SqlReference, StepRecord
from tests.said import naming


@pytest.fixture
def database(tmp_path):
    """Singers; one without an age, two of one name, one with a byte that is no UTF-8."""
    file = tmp_path / "music.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE singer (id INTEGER, name TEXT, age INTEGER, fee REAL)")
        connection.executemany(
            "INSERT INTO singer VALUES (?, ?, ?, ?)",
            [(1, "Ann", 30, 2.0), (2, "Bob", 20, 1.5), (3, "Ann", None, 3.0)],
        )
        connection.execute("INSERT INTO singer VALUES (4, CAST(x'43C3' AS TEXT), 40, 4.0)")
    connection.close()
    return file


def is_right(database, answer, gold):
    return ExecutionAccuracy().score([answer], [[SqlReference(gold, database)]]).value == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("select NAME from singer where age > 25", "SELECT name FROM singer WHERE age >= 30"),
        ("SELECT name FROM singer ORDER BY id DESC", "SELECT name FROM singer"),
        ("SELECT age, name FROM singer", "SELECT name, age FROM singer"),
        ("SELECT fee FROM singer WHERE id = 1", "SELECT 2"),
        ("SELECT name FROM singer WHERE age > = 30;", "SELECT name FROM singer WHERE age >= 30"),
        ("SELECT count(*) FROM singer; SELECT 1", "SELECT 4"),
        ("-- how many\nSELECT count(*) FROM singer", "SELECT count(id) FROM singer"),
        ("SELECT name FROM singer WHERE id = 9", "SELECT id, age FROM singer WHERE id = 8"),
        ("WITH t AS (SELECT name FROM singer) SELECT count(*) FROM t", "SELECT 4"),
        ("SELECT name FROM singer WHERE id = 4", "SELECT 'C'"),
        ("VALUES (1), (2)", "SELECT id FROM singer WHERE id < 3"),
    ],
)
def test_another_query_with_the_same_result_is_right(answer, gold, database):
    assert is_right(database, answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("SELECT name FROM singer", "SELECT name FROM singer WHERE id < 4"),
        ("SELECT DISTINCT name FROM singer", "SELECT name FROM singer"),
        ("SELECT name FROM singer ORDER BY id", "SELECT name FROM singer ORDER BY id DESC"),
        ("SELECT name, id FROM singer", "SELECT name FROM singer"),
        ("SELECT '2'", "SELECT 2"),
        ("SELECT 'ann'", "SELECT 'Ann'"),
        ("SELECT 0.1 + 0.2", "SELECT 0.3"),
        ("SELECT 0", "SELECT NULL"),
        ("SELECT CAST('Ann' AS BLOB)", "SELECT 'Ann'"),
        ("SELECT 1 WHERE 0", "SELECT 1"),
        ("", "SELECT name FROM singer"),
        ("SELECT singers FROM singer", "SELECT name FROM singer"),
    ],
)
def test_a_query_with_another_result_is_wrong(answer, gold, database):
    assert not is_right(database, answer, gold)


def test_a_subquery_in_order_does_not_make_the_order_of_rows_matter(database):
    gold = "SELECT name FROM singer WHERE id IN (SELECT id FROM singer ORDER BY age LIMIT 9)"
    assert is_right(database, "SELECT name FROM singer ORDER BY id DESC", gold)


def test_any_of_several_references_may_be_met(database):
    golds = [SqlReference(sql, database) for sql in ("SELECT 1", "SELECT 2")]
    assert ExecutionAccuracy().score(["SELECT 2"], [golds]).value == 1.0


def test_answers_that_do_not_run_and_those_that_do_not_end_are_counted(database):
    endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t"
    answers = ["SELECT 4", "SELECT 5", "SELECT", "", endless]
    golds = [[SqlReference("SELECT count(*) FROM singer", database)]] * len(answers)
    found = ExecutionAccuracy(seconds=0.2).columns(answers, golds)
    assert {name: interval.value for name, interval in found.items()} == {
        "execution_accuracy": 0.2,
        "execution_errors": 2.0,
        "execution_timeouts": 1.0,
    }
    accuracy = found["execution_accuracy"]
    assert 0 < accuracy.low < 0.2 < accuracy.high < 1


def test_a_reference_that_does_not_run_is_refused_by_its_text(database):
    with pytest.raises(ValueError, match=naming("'SELECT x FROM y'", "no such table")):
        is_right(database, "SELECT 1", "SELECT x FROM y")


@pytest.mark.parametrize("gold", ["", "DELETE FROM singer", "PRAGMA user_version"])
def test_a_reference_that_is_no_query_is_refused(gold, database):
    with pytest.raises(ValueError, match=naming("music.sqlite", "no query")):
        is_right(database, "SELECT 1 WHERE 0", gold)


@pytest.mark.parametrize("name", ["music.sqlite", "with blank #1 50%?.sqlite"])
def test_a_database_may_have_any_name_and_a_relative_path(name, database, monkeypatch):
    monkeypatch.chdir(database.rename(database.with_name(name)).parent)
    assert is_right(Path(name), "SELECT 4", "SELECT count(*) FROM singer")


@pytest.mark.parametrize(
    ("golds", "message"),
    [
        ([[]], "prompt 0 has no reference"),
        ([["SELECT 1"]], "a reference of prompt 0 names no database"),
        (["SELECT 1"], "references of prompt 0 must be a list"),
        ([], "1 predictions but references for 0 prompts"),
    ],
)
def test_references_that_cannot_be_asked_are_refused(golds, message):
    with pytest.raises(ValueError, match=message):
        ExecutionAccuracy().score(["SELECT 1"], golds)


def test_a_database_that_its_writer_has_not_closed_is_refused(database):
    with sqlite3.connect(database) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("DELETE FROM singer")
        writer.commit()
        with pytest.raises(ValueError, match=naming("music.sqlite-wal")):
            is_right(database, "SELECT 1", "SELECT count(*) FROM singer")
    writer.close()


def test_the_accuracy_and_its_counts_are_columns_of_a_row(database):
    step = StepRecord(nodes=0, depth=0, accepted=0, delivered=1)
    cell = [Generation(name, (1,), "stop", (step,), 0.1, 0.1, 0.0, 0.1) for name in "abcde"]
    texts = dict.fromkeys("abcde", "SELECT") | {"a": "SELECT 4"}
    golds = {name: [SqlReference("SELECT count(*) FROM singer", database)] for name in texts}
    row = summarise(CellRecords(cell, texts=texts, references=golds), ["execution_accuracy"])
    assert (row["execution_accuracy"], row["execution_errors"]) == (0.2, 4)
    assert 0 < row["execution_accuracy_low"] < 0.2 < row["execution_accuracy_high"] < 1
    assert "execution_errors_low" not in row
    assert str(row["quality_signature"]).startswith(f"execution_accuracy sqlite:{_version()}|")


def test_texts_of_sql_have_the_other_scores_too(database):
    gold = SqlReference("SELECT name FROM singer", database)
    assert quality_columns("bleu", [str(gold)], [[gold]])[0]["bleu"].value == pytest.approx(1.0)


def _version():
    return sqlite3.sqlite_version
