"""SQL as Spider compares it; what a model may write by accident or by design."""

import hashlib
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.execution.sql import (
    ExecutionAccuracy,
    Query,
    first_statement,
    is_ordered,
    is_query,
    run,
    same_result,
)
from spec_bench.metrics.quality import quality_columns
from spec_bench.records.types import Generation, SqlReference, StepRecord
from tests.metrics.hostile import FILES, HARMLESS_FIRST, HOSTILE, MEMORY, PARSER, TIME, WRITES
from tests.said import naming

ANN, BOB = ("Ann", 1), ("Bob", 2)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("SELECT 1", "SELECT 1"),
        (" SELECT 1 ; SELECT 2", "SELECT 1"),
        ("; ;SELECT 1;", "SELECT 1"),
        ("SELECT ';' ; x", "SELECT ';'"),
        ("SELECT 'it''s; here'; x", "SELECT 'it''s; here'"),
        ('SELECT ";", `;`, [;] ; x', 'SELECT ";", `;`, [;]'),
        ("SELECT 1 -- ; not yet\n; x", "SELECT 1 -- ; not yet"),
        ("/* ; */ SELECT 1 /* ; */; x", "SELECT 1 /* ; */"),
        ("SELECT 'open ; x", "SELECT 'open ; x"),
        ("SELECT a > = 1 AND b ! = 2", "SELECT a >= 1 AND b != 2"),
        ("", ""),
        (" ;; -- nothing", ""),
    ],
)
def test_a_statement_ends_at_a_semicolon_outside_quotes_and_comments(text, first):
    assert first_statement(text) == first


@pytest.mark.parametrize(
    ("text", "query"),
    [
        *((text, True) for text in ("select 1", "WITH t AS (SELECT 1) SELECT 1", "VALUES (1)")),
        *(
            (text, False)
            for text in ("", "DELETE FROM t", "EXPLAIN SELECT 1", "'select'", "selects")
        ),
    ],
)
def test_what_reads_alone_is_a_query(text, query):
    assert is_query(text) == query


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n by a limit 1", True),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", True),
        ("SELECT a FROM t ORDER /* so */ BY a", True),
        ("SELECT a FROM t", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'order by' FROM t", False),
        ('SELECT a AS "order by" FROM t -- order by', False),
    ],
)
def test_an_order_counts_at_the_top_level_alone(text, ordered):
    assert is_ordered(text) == ordered


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ([], []),
        ([ANN, BOB], [BOB, ANN]),
        ([ANN, BOB], [(1, "Ann"), (2, "Bob")]),
        ([(1,)], [(1.0,)]),
        ([(None,)], [(None,)]),
        ([(b"x",)], [(b"x",)]),
        ([(1, 1, 2), (3, 3, 4)], [(4, 3, 3), (2, 1, 1)]),
        ([("a", None)], [(None, "a")]),
        ([(2**53 + 1,)], [(2**53 + 1,)]),
    ],
)
def test_order_of_columns_and_rows_does_not_count(wanted, got):
    assert same_result(wanted, got, order_matters=False)


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ([ANN], []),
        ([], [ANN]),
        ([ANN, ANN, BOB], [ANN, BOB, BOB]),
        ([ANN, BOB], [("Ann", 2), ("Bob", 1)]),
        ([(1, 2)], [(1,)]),
        ([(1,)], [("1",)]),
        ([(1,)], [(None,)]),
        ([("Ann",)], [("ann",)]),
        ([("x",)], [(b"x",)]),
        ([("Ann ",)], [("Ann",)]),
        ([(0.3,)], [(0.1 + 0.2,)]),
        ([(2**53 + 1,)], [(float(2**53),)]),
        # Columns agree one by one and in pairs, the rows do not.
        (
            [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)],
            [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)],
        ),
        # The same rows and the same columns, but not each row as often.
        (
            [(0, 0), (0, 0), (1, 1), (1, 1), (0, 1), (1, 0)],
            [(0, 0), (1, 1), (0, 1), (0, 1), (1, 0), (1, 0)],
        ),
    ],
)
def test_other_values_or_other_counts_of_rows_differ(wanted, got):
    assert not same_result(wanted, got, order_matters=False)


def test_the_order_of_rows_counts_where_the_reference_orders():
    assert same_result([ANN, BOB], [(1, "Ann"), (2, "Bob")], order_matters=True)
    assert not same_result([ANN, BOB], [BOB, ANN], order_matters=True)


def test_a_search_without_a_hope_ends_soon():
    rows = [(1,) * 200, (2,) * 200]
    assert same_result(rows, rows, order_matters=False)
    # Twelve columns that agree as multisets and hardly ever together.
    wanted = [tuple((row * (column + 1)) % 13 for column in range(12)) for row in range(13)]
    got = [
        tuple((row * (column + 1) + column**2) % 13 for column in range(12)) for row in range(13)
    ]
    began = time.process_time()  # what others do on the machine is not ours
    assert not same_result(wanted, got, order_matters=False)
    assert time.process_time() - began < 10.0


# Execution accuracy on small databases, from the texts to the columns.


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
        (
            "SELECT name FROM singer ORDER BY id DESC",
            "SELECT name FROM singer WHERE id IN (SELECT id FROM singer ORDER BY age LIMIT 9)",
        ),
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


@pytest.mark.parametrize(
    ("gold", "named"),
    [
        ("SELECT x FROM y", "no such table"),
        *((gold, "no query") for gold in ("", "DELETE FROM singer", "PRAGMA user_version")),
    ],
)
def test_a_reference_that_does_not_run_is_refused_by_its_text(gold, named, database):
    with pytest.raises(ValueError, match=naming(repr(gold), "music.sqlite", named)):
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
    version = f"execution_accuracy sqlite:{sqlite3.sqlite_version}|"
    assert row["quality_signature"].startswith(version)


def test_texts_of_sql_have_the_other_scores_too(database):
    gold = SqlReference("SELECT name FROM singer", database)
    assert quality_columns("bleu", [str(gold)], [[gold]])[0]["bleu"].value == pytest.approx(1.0)


# It is run, and nothing comes of it.


DATABASES = Path(__file__).parents[2] / "spec_bench" / "embedded" / "tasks" / "spider" / "database"
LIMIT_S = 0.2
KILL_S = 30.0  # after the limit, at most: the alarm, the kill, a new process, on a busy machine


def contents(folder):
    """The digest of every file below a folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the databases, alone in a folder."""
    return Path(shutil.copytree(DATABASES, tmp_path_factory.mktemp("hostile") / "database"))


def asked(folder, *statements):
    database = folder / "school" / "school.sqlite"
    return [
        Query(database, sql.replace("{folder}", str(folder)), LIMIT_S, 100) for sql in statements
    ]


def ran(folder, sql):
    return run(asked(folder, sql))[0]


def test_all_of_it_together_scores_nothing_and_leaves_every_database_as_it_was(folder):
    before, began = contents(folder), time.monotonic()
    gold = SqlReference("SELECT name FROM pupil", folder / "school" / "school.sqlite")
    answers = [sql.replace("{folder}", str(folder)) for sql in HOSTILE.values()]
    found = ExecutionAccuracy(LIMIT_S).columns([*answers, gold], [[gold]] * (len(answers) + 1))
    assert contents(folder) == before
    # Only the honest answer at the end is right: the process that runs it has been replaced.
    assert found["execution_accuracy"].value == 1 / (len(answers) + 1)
    assert found["execution_timeouts"].value >= len(TIME)
    failed = found["execution_errors"].value + found["execution_timeouts"].value
    assert failed >= len(HOSTILE) - len(HARMLESS_FIRST) - len(MEMORY)
    assert time.monotonic() - began < (len(TIME) + len(MEMORY)) * (LIMIT_S + KILL_S)


# There is no index, so that nothing has to be refused; SQLite takes semicolons for a statement.
NOTHING = {"reindex", "only semicolons"}


@pytest.mark.parametrize("name", [*WRITES, *FILES, *PARSER])
def test_the_process_itself_refuses_what_is_not_reading_and_what_is_no_statement(name, folder):
    before = contents(folder)
    outcome = ran(folder, HOSTILE[name])
    assert outcome.rows == ()
    assert outcome.status == "error" or name in NOTHING
    assert contents(folder) == before


@pytest.mark.parametrize("name", TIME)
def test_a_query_ends_at_its_limit(name, folder):
    began = time.monotonic()
    assert ran(folder, TIME[name]).status == "timeout"
    assert time.monotonic() - began < LIMIT_S + KILL_S


def test_a_query_that_wants_much_memory_does_not_get_it(folder):
    found = ran_apart(asked(folder, *MEMORY.values()))
    assert 1 << 12 < int(found) < 1 << 20


def ran_apart(queries):
    """The most KiB that a process had which ran one of the queries."""
    script = (
        "import pathlib, resource, sys\n"
        "from spec_bench.metrics.execution.sql import Query, run\n"
        "PosixPath = pathlib.Path\n"
        "run(eval(sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [sys.executable, "-c", script, repr(queries)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_process_that_was_killed_is_replaced(folder):
    killed, next_one = run(asked(folder, TIME["one long call"], "SELECT name FROM pupil"))
    assert (killed.status, killed.reason) == ("timeout", f"killed after {LIMIT_S} s")
    assert len(next_one.rows) == 40


def test_a_process_that_dies_is_an_error_and_is_replaced(folder):
    rows = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t LIMIT 1000000) "
    greedy = rows + "SELECT max(x) FROM (SELECT x, hex(randomblob(1000)) h FROM t ORDER BY h)"
    queries = [
        replace(each, seconds=20) for each in asked(folder, greedy, "SELECT name FROM pupil")
    ]
    died, next_one = run(queries, memory=1 << 26)
    assert (died.status, died.reason) == ("error", "the process died with status 1")
    assert len(next_one.rows) == 40
