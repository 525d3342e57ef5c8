"""The best tree for given acceptances: by hand and by trying every tree."""

import random
from itertools import combinations, product

import pytest

from spec_bench.decode.config import read_decoder
from spec_bench.tree.node_list import FittedList, best_list, expected_accepted, pooled
from tests.families import decoder_settings
from tests.said import naming


def test_a_tree_is_worth_the_product_along_each_path():
    assert expected_accepted([(0,), (1,), (0, 0)], [0.6, 0.3]) == pytest.approx(0.6 + 0.3 + 0.36)
    assert expected_accepted([], [0.6, 0.3]) == 0


def test_the_best_tree_of_four_nodes_by_hand():
    # 0.6, 0.36, 0.3, 0.216; (0, 1) and (1, 0) are worth 0.18.
    assert best_list([0.6, 0.3], 4) == [(0,), (1,), (0, 0), (0, 0, 0)]


def test_no_tree_of_so_many_nodes_is_worth_more():
    numbers = random.Random(0)
    every = [path for depth in (1, 2, 3, 4) for path in product(range(2), repeat=depth)]
    for _ in range(6):
        acceptance = sorted((numbers.random() for _ in range(2)), reverse=True)
        for size in (1, 3, 4):
            best = max(
                expected_accepted(chosen, acceptance)
                for chosen in combinations(every, size)
                if all(
                    (not node[:-1] or node[:-1] in chosen)
                    and (node[-1] == 0 or (*node[:-1], node[-1] - 1) in chosen)
                    for node in chosen
                )
            )
            found = expected_accepted(best_list(acceptance, size), acceptance)
            assert found == pytest.approx(best, abs=1e-12)


def test_a_trees_depth_has_no_bound_but_its_nodes():
    assert max(map(len, best_list([0.95, 0.01], 30))) > 20


def test_estimates_that_do_not_fall_are_averaged():
    assert pooled([0.5, 0.1, 0.3, 0.05]) == pytest.approx([0.5, 0.2, 0.2, 0.05])
    assert pooled([0.1, 0.2, 0.6]) == pytest.approx([0.3, 0.3, 0.3])
    # The best tree of what is averaged has no hole: a later sibling never without an earlier one.
    assert best_list([0.1, 0.2, 0.6], 3) == [(0,), (1,), (2,)]


def test_a_fitted_tree_that_was_not_filled_in_grows_nothing():
    settings = decoder_settings("sequoia", "@9")
    assert read_decoder(settings).spec == "@9"
    with pytest.raises(ValueError, match=naming("as many as total, 9", "got 2")):
        FittedList(((0,), (1,)), 9)
    with pytest.raises(ValueError, match="no tree of 9 nodes was fitted"):
        _ = FittedList(total=9).levels
