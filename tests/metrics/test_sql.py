"""SQL as Spider compares it; what a model may write by accident or by design."""

import hashlib
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spec_bench.metrics import CellRecords, summarise
from spec_bench.metrics.execution.sql import (
    SqlExecutionAccuracy,
    SqlQuery,
    extract_query,
    is_same_result,
    run_queries,
)
from spec_bench.metrics.quality import compute_score_columns
from spec_bench.records.types import Generation, SqlReference, StepRecord
from tests.said import naming

ANN, BOB = ("Ann", 1), ("Bob", 2)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (" SELECT 1 ; SELECT 2", "SELECT 1"),
        ("; ;SELECT 1;", "SELECT 1"),
        ("SELECT 'it''s; here'; x", "SELECT 'it''s; here'"),
        ('SELECT ";", `;`, [;] ; x', 'SELECT ";", `;`, [;]'),
        ("SELECT 1 -- ; not yet\n; x", "SELECT 1 -- ; not yet"),
        ("-- ; as asked\nSELECT 1 /* ; */; x", "SELECT 1 /* ; */"),
        ("SELECT 'open ; x", "SELECT 'open ; x"),
        ("SELECT a > = 1 AND b ! = 2", "SELECT a >= 1 AND b != 2"),
        ("SELECT 1\n\nFROM t", "SELECT 1"),
        ("```\nSELECT 1\n\nFROM t\n```", "SELECT 1\n\nFROM t"),
        *((text, "") for text in ("", " ;; -- nothing", "DELETE FROM t", "EXPLAIN SELECT 1")),
        *((text, "") for text in ("'select'", "selects", "With this it is done", "I cannot")),
    ],
)
def test_a_query_begins_a_line_and_ends_at_a_semicolon_outside_quotes_and_comments(text, query):
    assert extract_query(text) == query


@pytest.mark.parametrize(
    "answer",
    [
        "```sql\n{}\n```",
        "```SQL\n{};\n```\nIt counts all; even the young.",
        "~~~\n{}\n~~~",
        "Here is the query:\n{}",
        "The query is: {};",
        "**SQL:** `{}`",
        "With this query you get it:\n\n```sqlite\n{}",
        "Sure!\n\n{}\n\nThis counts the singers.",
        "1. Like this:\n   ```sql\n   {}\n   ```",
        "```{}```",
        "{}; -- all\nThat is it.",
    ],
)
@pytest.mark.parametrize("query", ["SELECT count(*) FROM singer", "select count(*)\nFROM singer"])
def test_a_query_in_an_answer_of_a_chat_is_found_whatever_stands_around_it(answer, query):
    assert " ".join(extract_query(answer.format(query)).split()) == " ".join(query.split())


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ([], [], True),
        ([ANN, BOB], [BOB, ANN], True),
        ([ANN, BOB], [(1, "Ann"), (2, "Bob")], True),
        ([(1, None, b"x")], [(1.0, None, b"x")], True),
        ([(1, 1, 2), (3, 3, 4)], [(4, 3, 3), (2, 1, 1)], True),
        ([("a", None)], [(None, "a")], True),
        ([(2**53 + 1,)], [(2**53 + 1,)], True),
        ([ANN], [], False),
        ([], [ANN], False),
        ([ANN, ANN, BOB], [ANN, BOB, BOB], False),
        ([ANN, BOB], [("Ann", 2), ("Bob", 1)], False),
        ([(1, 2)], [(1,)], False),
        ([(1,)], [("1",)], False),
        ([(1,)], [(None,)], False),
        ([("Ann",)], [("ann",)], False),
        ([("x",)], [(b"x",)], False),
        ([("Ann ",)], [("Ann",)], False),
        ([(0.3,)], [(0.1 + 0.2,)], False),
        ([(2**53 + 1,)], [(float(2**53),)], False),
        (  # columns agree one by one and in pairs, the rows do not
            [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)],
            [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)],
            False,
        ),
        (  # the same rows and the same columns, but not each row as often
            [(0, 0), (0, 0), (1, 1), (1, 1), (0, 1), (1, 0)],
            [(0, 0), (1, 1), (0, 1), (0, 1), (1, 0), (1, 0)],
            False,
        ),
    ],
)
def test_rows_are_the_same_in_any_order_of_rows_and_columns_each_as_often(wanted, got, same):
    assert is_same_result(wanted, got, order_matters=False) == same


def test_the_order_of_rows_counts_where_the_reference_orders():
    assert is_same_result([ANN, BOB], [(1, "Ann"), (2, "Bob")], order_matters=True)
    assert not is_same_result([ANN, BOB], [BOB, ANN], order_matters=True)


def test_a_search_without_a_hope_ends_soon():
    rows = [(1,) * 200, (2,) * 200]
    assert is_same_result(rows, rows, order_matters=False)
    # Twelve columns that agree as multisets and hardly ever together.
    wanted = [tuple(row * (column + 1) % 13 for column in range(12)) for row in range(13)]
    got = [tuple((row * (c + 1) + c**2) % 13 for c in range(12)) for row in range(13)]
    began = time.process_time()  # what others do on the machine is not ours
    assert not is_same_result(wanted, got, order_matters=False)
    assert time.process_time() - began < 10.0


@pytest.fixture
def database(tmp_path):
    """Singers; one without an age, two of one name, one with a byte that is no UTF-8."""
    file = tmp_path / "music.sqlite"
    with sqlite3.connect(file) as connection:
        connection.executescript(
            "CREATE TABLE singer (id INTEGER, name TEXT, age INTEGER, fee REAL);"
            "INSERT INTO singer VALUES (1, 'Ann', 30, 2.0), (2, 'Bob', 20, 1.5),"
            " (3, 'Ann', NULL, 3.0), (4, CAST(x'43C3' AS TEXT), 40, 4.0)"
        )
    connection.close()
    return file


def score(answers, references):
    return SqlExecutionAccuracy().columns(answers, references)["execution_accuracy"].value


def is_right(database, answer, gold):
    return score([answer], [[SqlReference(gold, database)]]) == 1.0


COUNT = "SELECT count(*) FROM singer"
NAMES = "SELECT name FROM singer"


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("select NAME from singer where age > = 30;", f"{NAMES} WHERE age > 25", True),
        ("SELECT fee FROM singer WHERE id = 1", "SELECT 2", True),
        (f"{COUNT}; SELECT 1", "SELECT 4", True),
        (f"-- how many\n{COUNT}", "SELECT count(id) FROM singer", True),
        (f"WITH t AS ({NAMES}) SELECT count(*) FROM t", "SELECT 4", True),
        (f"{NAMES} WHERE id = 4", "SELECT 'C'", True),
        ("VALUES (1), (2)", "SELECT id FROM singer WHERE id < 3", True),
        (
            f"{NAMES} ORDER BY id DESC",
            f"{NAMES} WHERE id IN (SELECT id FROM singer ORDER BY age LIMIT 9)",
            False,  # Spider's script looks for "order by" anywhere in the reference
        ),
        (f"{NAMES} WHERE age > YEAR(CURDATE()) - 1995", f"{NAMES} WHERE age > 25", True),
        (NAMES, f"{NAMES} WHERE id < 4", False),
        (f"{NAMES} ORDER BY id", f"{NAMES} ORDER BY id DESC", False),
        ("SELECT 0", "SELECT NULL", False),
        ("SELECT CAST('Ann' AS BLOB)", "SELECT 'Ann'", False),
        ("SELECT 1 WHERE 0", "SELECT 1", False),
        ("", NAMES, False),
        ("SELECT singers FROM singer", NAMES, False),
    ],
)
def test_a_query_is_right_by_its_result(answer, gold, right, database):
    assert is_right(database, answer, gold) == right


def test_any_of_several_references_may_be_met(database):
    golds = [SqlReference(sql, database) for sql in ("SELECT 1", "SELECT 2")]
    assert score(["SELECT 2"], [golds]) == 1.0


def test_answers_that_do_not_run_and_those_that_do_not_end_are_counted(database):
    endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT max(x) FROM t"
    answers = ["SELECT 4", "SELECT 5", "SELECT", "", endless]
    found = SqlExecutionAccuracy(seconds=0.2).columns(
        answers, [[SqlReference(COUNT, database)]] * 5
    )
    assert {name: interval.value for name, interval in found.items()} == {
        "execution_accuracy": 0.2, "execution_errors": 2.0, "execution_timeouts": 1.0
    }  # fmt: skip
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
    assert is_right(Path(name), "SELECT 4", COUNT)


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
        score(["SELECT 1"], golds)


def test_a_database_that_its_writer_has_not_closed_is_refused(database):
    with sqlite3.connect(database) as writer:
        writer.executescript("PRAGMA journal_mode = WAL; DELETE FROM singer")
        with pytest.raises(ValueError, match=naming("music.sqlite-wal")):
            is_right(database, "SELECT 1", COUNT)
    writer.close()


def test_the_accuracy_and_its_counts_are_columns_of_a_row(database):
    step = StepRecord(nodes=0, depth=0, accepted=0, delivered=1)
    cell = [Generation(name, (1,), "stop", (step,), 0.1, 0.1, 0.0, 0.1) for name in "abcde"]
    texts = dict.fromkeys("abcde", "SELECT") | {"a": "SELECT 4"}
    golds = {name: [SqlReference(COUNT, database)] for name in texts}
    records = CellRecords(cell, texts=texts, references=golds)
    row = summarise(records, ["execution_accuracy"]).row
    assert (row["execution_accuracy"], row["execution_errors"]) == (0.2, 4)
    assert "execution_errors_low" not in row
    version = f"execution_accuracy sqlite:{sqlite3.sqlite_version}|"
    assert row["quality_signature"].startswith(version)


def test_texts_of_sql_have_the_other_scores_too(database):
    gold = SqlReference(NAMES, database)
    assert compute_score_columns("bleu", [str(gold)], [[gold]])[0]["bleu"].value == pytest.approx(
        1.0
    )


# SQL that nobody should run is run, and nothing comes of it; ``{folder}`` holds the databases.


_BOMB = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"
_LETTERS = "'" + "a" * 90 + "b'"
_WILD = "%a" * 40 + "%c"


def by_text(*statements):
    return dict(zip(statements, statements, strict=True))


WRITES = by_text(
    "DELETE FROM pupil", "WITH t AS (SELECT 1) DELETE FROM pupil", "DROP TABLE pupil",
    "UPDATE pupil SET grade = 0", "INSERT INTO pupil VALUES ('x', 'y', 1)",
    "REPLACE INTO pupil VALUES ('x', 'y', 1)",
    f"{_BOMB} INSERT INTO pupil SELECT 'x', 'y', x FROM t", "ALTER TABLE pupil RENAME TO gone",
    "CREATE TABLE mine (x)", "CREATE TEMP TABLE mine AS SELECT * FROM pupil",
    "CREATE TRIGGER t AFTER INSERT ON pupil BEGIN DELETE FROM pupil; END",
    "CREATE VIEW v AS SELECT 1", "CREATE INDEX i ON pupil (name)",
    "CREATE VIRTUAL TABLE f USING fts5(x)", "ATTACH DATABASE '{folder}/new.sqlite' AS other",
    "DETACH DATABASE main", "VACUUM", "VACUUM INTO '{folder}/copy.sqlite'", "REINDEX", "ANALYZE",
    "PRAGMA writable_schema = ON", "PRAGMA journal_mode = WAL", "PRAGMA user_version = 7",
    "SAVEPOINT s", "BEGIN EXCLUSIVE", "COMMIT", "UPDATE sqlite_master SET sql = 'gone'",
    "SELECT 1; DROP TABLE pupil", "SELECT 1 /* ; */ ; DELETE FROM pupil",
    ".shell touch {folder}/new", ".output {folder}/new",
)  # fmt: skip
FILES = by_text(
    "SELECT load_extension('/lib/evil.so')", "SELECT writefile('{folder}/new', 'x')",
    "SELECT readfile('/etc/passwd')", "SELECT edit('x', 'vi')", "SELECT * FROM '/etc/passwd'",
    "SELECT fts3_tokenizer('simple', x'4141414141414141')", "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_table_info('pupil')", "SELECT * FROM sqlite_dbpage",
)  # fmt: skip
# All of these run until they are stopped.
TIME = {
    "recursion without end": f"{_BOMB} SELECT count(*) FROM t",
    "recursion without end, rows kept": f"{_BOMB} SELECT max(x) FROM (SELECT x FROM t ORDER BY 1)",
    "cross join": "SELECT count(*) FROM pupil a, pupil b, pupil c, pupil d, pupil e, pupil f",
    "one long call": "SELECT instr(hex(zeroblob(400000)), hex(zeroblob(200000)) || 'x')",
    "correlated subqueries": (
        "SELECT (SELECT sum((SELECT count(*) FROM pupil c, pupil d, pupil g WHERE c.grade < b.grade"
        " AND d.grade < a.grade)) FROM pupil b, pupil e) FROM pupil a"
    ),
}
# These end in time or not, as the machine is fast.
MEMORY = {
    "sorted cross join": "SELECT a.name FROM pupil a, pupil b, pupil c, teacher d ORDER BY 1",
    "exponential pattern": f"SELECT {_LETTERS} LIKE '{_WILD}'",
    "exponential glob": f"SELECT {_LETTERS} GLOB '{_WILD.replace('%', '*')}'",
    "hex of a zeroblob": "SELECT hex(zeroblob(100000000))",
    "padded printf": "SELECT printf('%.*c', 100000000, 'x')",
    "random blob": "SELECT randomblob(1000000000)",
    "replace that doubles": "SELECT replace(hex(zeroblob(400000)), '0', 'xxxx')",
    "group_concat": f"{_BOMB} SELECT group_concat(hex(randomblob(1000))) FROM t",
    "many long values": f"{_BOMB} SELECT hex(zeroblob(400000)), x FROM t",
    "wide sort of long values": f"{_BOMB} SELECT hex(randomblob(100000)) FROM t ORDER BY 1",
    "aggregate json": f"{_BOMB} SELECT json_group_array(hex(randomblob(1000))) FROM t",
    "many columns": "SELECT " + ", ".join(["*"] * 400) + " FROM pupil",
}
PARSER = {
    "deep nesting": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "deep subqueries": "SELECT * FROM (" * 500 + "SELECT 1" + ")" * 500,
    "long sum": "SELECT " + " + ".join(["1"] * 20000),
    "many unions": " UNION ALL ".join(["SELECT 1"] * 2000),
    "ten million letters": "SELECT '" + "x" * 10_000_000 + "'",
    "ten million brackets": "(" * 10_000_000,
    "nul bytes": "SELECT 1\0; DROP TABLE pupil",
    "nul first": "\0",
    "lone surrogate": "SELECT '\ud800'",
    "open quote": "SELECT 'never closed; DROP TABLE pupil",
    "open comment": "SELECT /* never closed",
    "no regular expressions": "SELECT 'aaaa' REGEXP '(a+)+b'",
    "only semicolons": ";;;;",
    "not SQL": "I cannot answer that.",
}
HOSTILE = WRITES | FILES | TIME | MEMORY | PARSER
HARMLESS_FIRST = [sql for sql in WRITES if sql.startswith("SELECT 1")]  # which runs
# There is no index, so that nothing has to be refused; SQLite takes semicolons for a statement.
NOTHING = {"REINDEX", "only semicolons"}
DATABASES = Path(__file__).parents[2] / "spec_bench" / "embedded" / "tasks" / "spider" / "database"
LIMIT_S = 0.2
KILL_S = 30.0  # after the limit, at most: the alarm, the kill, a new process, on a busy machine


def contents(folder):
    files = filter(Path.is_file, folder.rglob("*"))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Path(shutil.copytree(DATABASES, tmp_path_factory.mktemp("hostile") / "database"))


def asked(folder, *statements, seconds=LIMIT_S):
    database = folder / "school" / "school.sqlite"
    return [
        SqlQuery(database, sql.replace("{folder}", str(folder)), seconds, 100) for sql in statements
    ]


def test_all_of_it_together_scores_nothing_and_leaves_every_database_as_it_was(folder):
    before, began = contents(folder), time.monotonic()
    gold = SqlReference("SELECT name FROM pupil", folder / "school" / "school.sqlite")
    answers = [sql.replace("{folder}", str(folder)) for sql in HOSTILE.values()]
    found = SqlExecutionAccuracy(LIMIT_S).columns([*answers, gold], [[gold]] * (len(answers) + 1))
    assert contents(folder) == before
    # Only the honest answer at the end is right: the process that runs it has been replaced.
    assert found["execution_accuracy"].value == 1 / (len(answers) + 1)
    assert found["execution_timeouts"].value >= len(TIME)
    failed = found["execution_errors"].value + found["execution_timeouts"].value
    assert failed >= len(HOSTILE) - len(HARMLESS_FIRST) - len(MEMORY)
    assert time.monotonic() - began < (len(TIME) + len(MEMORY)) * (LIMIT_S + KILL_S)


@pytest.mark.parametrize("name", [*WRITES, *FILES, *PARSER])
def test_the_process_itself_refuses_what_is_not_reading_and_what_is_no_statement(name, folder):
    before = contents(folder)
    (outcome,) = run_queries(asked(folder, HOSTILE[name]))
    assert outcome.rows == ()
    assert outcome.status == "error" or name in NOTHING
    assert contents(folder) == before


@pytest.mark.parametrize("name", TIME)
def test_a_query_ends_at_its_limit(name, folder):
    began = time.monotonic()
    assert run_queries(asked(folder, TIME[name]))[0].status == "timeout"
    assert time.monotonic() - began < LIMIT_S + KILL_S


def test_a_query_that_wants_much_memory_does_not_get_it(folder):
    script = (
        "import pathlib, resource, sys\n"
        "from spec_bench.metrics.execution.sql import SqlQuery, run_queries\n"
        "PosixPath = pathlib.Path\n"
        "run_queries(eval(sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [sys.executable, "-c", script, repr(asked(folder, *MEMORY.values()))]
    most_kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 1 << 12 < int(most_kib) < 1 << 20


ROWS = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t LIMIT 1000000) "
GREEDY = ROWS + "SELECT max(x) FROM (SELECT x, hex(randomblob(1000)) h FROM t ORDER BY h)"


@pytest.mark.parametrize(
    ("sql", "seconds", "memory", "status", "reason"),
    [
        (TIME["one long call"], LIMIT_S, 1 << 30, "timeout", f"killed after {LIMIT_S} s"),
        (GREEDY, 20, 1 << 26, "error", "the process died with status 1"),
    ],
    ids=["killed", "died"],
)
def test_a_process_that_ends_is_replaced(sql, seconds, memory, status, reason, folder):
    queries = asked(folder, sql, "SELECT name FROM pupil", seconds=seconds)
    ended, next_one = run_queries(queries, memory_bytes=memory)
    assert (ended.status, ended.reason) == (status, reason)
    assert len(next_one.rows) == 40
