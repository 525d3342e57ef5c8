"""SQL texts: where the first statement ends, and whether it orders its rows."""

from __future__ import annotations

import pytest

from spec_bench.metrics.execution.sql import first_statement, is_ordered, is_query


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
def test_a_statement_ends_at_a_semicolon_outside_quotes_and_comments(text: str, first: str) -> None:
    assert first_statement(text) == first


@pytest.mark.parametrize("text", ["select 1", "WITH t AS (SELECT 1) SELECT 1", "VALUES (1)"])
def test_what_reads_is_a_query(text: str) -> None:
    assert is_query(text)


@pytest.mark.parametrize("text", ["", "DELETE FROM t", "EXPLAIN SELECT 1", "'select'", "selects"])
def test_what_does_not_read_is_none(text: str) -> None:
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
def test_an_order_at_the_top_level_counts(text: str) -> None:
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
def test_an_order_inside_does_not(text: str) -> None:
    assert not is_ordered(text)
