"""Equality of result sets as Spider's execution match has it, on literal rows."""

from __future__ import annotations

import time

import pytest

from spec_bench.metrics.execution.sql import same_result

ANN, BOB = ("Ann", 1), ("Bob", 2)


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
def test_order_of_columns_and_rows_does_not_count(wanted: list, got: list) -> None:
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
def test_other_values_or_other_counts_of_rows_differ(wanted: list, got: list) -> None:
    assert not same_result(wanted, got, order_matters=False)


def test_the_order_of_rows_counts_where_the_reference_orders() -> None:
    assert same_result([ANN, BOB], [(1, "Ann"), (2, "Bob")], order_matters=True)
    assert not same_result([ANN, BOB], [BOB, ANN], order_matters=True)


def test_many_equal_columns_are_no_search() -> None:
    rows = [(1,) * 200, (2,) * 200]
    assert same_result(rows, rows, order_matters=False)


def test_a_search_without_a_hope_ends_soon() -> None:
    # Twelve columns that agree as multisets and hardly ever together.
    wanted = [tuple((row * (column + 1)) % 13 for column in range(12)) for row in range(13)]
    got = [
        tuple((row * (column + 1) + column**2) % 13 for column in range(12)) for row in range(13)
    ]
    began = time.process_time()  # what others do on the machine is not ours
    assert not same_result(wanted, got, order_matters=False)
    assert time.process_time() - began < 10.0
