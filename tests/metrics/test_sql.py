"""SQL texts: where the first statement ends, what it is; result sets, as Spider compares them."""

import time

import pytest

from spec_bench.metrics.execution.sql import first_statement, is_ordered, is_query, same_result

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


@pytest.mark.parametrize("text", ["select 1", "WITH t AS (SELECT 1) SELECT 1", "VALUES (1)"])
def test_what_reads_is_a_query(text):
    assert is_query(text)


@pytest.mark.parametrize("text", ["", "DELETE FROM t", "EXPLAIN SELECT 1", "'select'", "selects"])
def test_what_does_not_read_is_none(text):
    assert not is_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t ORDER BY a",
        "select a from t order\n by a limit 1",
        "SELECT a FROM t UNION SELECT b FROM u ORDER BY 1",
        "SELECT a FROM t ORDER /* so */ BY a",
    ],
)
def test_an_order_at_the_top_level_counts(text):
    assert is_ordered(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t",
        "SELECT a FROM (SELECT a FROM t ORDER BY a)",
        "SELECT row_number() OVER (ORDER BY a) FROM t",
        "SELECT 'order by' FROM t",
        'SELECT a AS "order by" FROM t -- order by',
    ],
)
def test_an_order_inside_does_not(text):
    assert not is_ordered(text)


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


def test_many_equal_columns_are_no_search():
    rows = [(1,) * 200, (2,) * 200]
    assert same_result(rows, rows, order_matters=False)


def test_a_search_without_a_hope_ends_soon():
    # Twelve columns that agree as multisets and hardly ever together.
    wanted = [tuple((row * (column + 1)) % 13 for column in range(12)) for row in range(13)]
    got = [
        tuple((row * (column + 1) + column**2) % 13 for column in range(12)) for row in range(13)
    ]
    began = time.process_time()  # what others do on the machine is not ours
    assert not same_result(wanted, got, order_matters=False)
    assert time.process_time() - began < 10.0
