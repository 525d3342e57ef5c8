"""The best tree for given acceptances: by programme, by heap and by trying every tree."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from spec_bench.tree.best_list import best_list, best_size, expected_accepted, pooled
from spec_bench.tree.node_list import greedy_node_list

TWO_LEVELS = [[0.6, 0.3], [0.5, 0.2]]


def test_a_tree_is_worth_the_product_along_each_path() -> None:
    assert expected_accepted([(0,), (1,), (0, 0)], TWO_LEVELS) == pytest.approx(0.6 + 0.3 + 0.3)
    assert expected_accepted([], TWO_LEVELS) == 0


def test_the_best_tree_of_three_nodes_by_hand() -> None:
    # 0.6 and 0.3 below the root; 0.6 * 0.5 = 0.3 below the first: any two of the three 0.3 tie.
    found = best_list(TWO_LEVELS, 3)
    assert found.accepted == pytest.approx(1.2)
    assert found.nodes == ((0,), (1,), (0, 0))


def test_no_tree_of_so_many_nodes_is_worth_more() -> None:
    numbers = random.Random(0)
    every = [path for depth in (1, 2, 3) for path in product(range(2), repeat=depth)]
    for _ in range(6):
        acceptance = [[numbers.random() for _ in range(2)] for _ in range(3)]
        for size in (1, 3, 5):
            best = max(
                expected_accepted(chosen, acceptance)
                for chosen in combinations(every, size)
                if all(
                    (not node[:-1] or node[:-1] in chosen)
                    and (node[-1] == 0 or (*node[:-1], node[-1] - 1) in chosen)
                    for node in chosen
                )
            )
            assert best_list(acceptance, size).accepted == pytest.approx(best, abs=1e-12)


def test_where_acceptance_falls_with_rank_a_heap_finds_the_same_worth() -> None:
    numbers = random.Random(1)
    for _ in range(20):
        acceptance = [sorted((numbers.random() for _ in range(3)), reverse=True) for _ in range(4)]
        heap = greedy_node_list(acceptance, 9)
        assert best_list(acceptance, 9).accepted == pytest.approx(
            expected_accepted(heap, acceptance), abs=1e-12
        )


def test_estimates_that_do_not_fall_are_averaged() -> None:
    (flat,) = pooled([[0.5, 0.1, 0.3, 0.05]])
    assert flat == pytest.approx([0.5, 0.2, 0.2, 0.05])
    (one,) = pooled([[0.1, 0.2, 0.6]])
    assert one == pytest.approx([0.3, 0.3, 0.3])


def test_the_size_chosen_pays_for_itself() -> None:
    acceptance = [[0.7, 0.2, 0.05]] * 4
    free = best_size(acceptance, [1, 2, 4, 8], lambda levels: 1.0)
    dear = best_size(acceptance, [1, 2, 4, 8], lambda levels: 1.0 + sum(levels))
    assert (len(free.nodes), len(dear.nodes)) == (8, 1)
    slow_draft = best_size(acceptance, [1, 2, 4, 8], lambda levels: 1.0 + 10 * len(levels))
    assert max(map(len, slow_draft.nodes)) == 1
