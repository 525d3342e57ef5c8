"""Medusa's sparse tree is built from the accuracies of heads and ranks."""

from itertools import product
from math import prod

import pytest

from spec_bench.tree.node_list import greedy_node_list
from tests.said import naming

ACCURACIES = [[0.6, 0.2, 0.05], [0.5, 0.25, 0.1], [0.4, 0.1, 0.0]]


def worth(path):
    return prod(head[rank] for head, rank in zip(ACCURACIES, path, strict=False))


def test_the_first_nodes_are_those_of_the_largest_products():
    # 0.6, 0.3 = 0.6 * 0.5, 0.2, 0.15 = 0.6 * 0.25, 0.12 = 0.6 * 0.5 * 0.4, 0.1 = 0.2 * 0.5
    assert greedy_node_list(ACCURACIES, 6) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


@pytest.mark.parametrize("nodes", range(1, 40))
def test_no_tree_of_that_size_expects_to_accept_more_and_every_parent_comes_first(nodes):
    every = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    paths = greedy_node_list(ACCURACIES, nodes)
    assert len(set(paths)) == nodes
    for place, path in enumerate(paths):
        assert len(path) == 1 or path[:-1] in paths[:place]
    best = sorted(map(worth, every), reverse=True)[:nodes]
    assert sum(map(worth, paths)) == pytest.approx(sum(best))


def test_of_equal_worth_the_shallower_node_is_taken_and_heads_may_differ_in_ranks():
    assert greedy_node_list([[1.0, 1.0], [1.0, 1.0]], 2) == [(0,), (1,)]
    assert greedy_node_list([[0.5], [0.9, 0.8]], 3) == [(0,), (0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("accuracies", "nodes", "named"),
    [
        (ACCURACIES, 0, ("0 nodes", "1 to 39")),
        (ACCURACIES, 40, ("40 nodes", "1 to 39")),
        ([[51.0, 12.0]], 1, ("0 and 1", "51")),
    ],
)
def test_what_the_heads_cannot_make_and_what_is_no_share_are_refused(accuracies, nodes, named):
    with pytest.raises(ValueError, match=naming(*named)):
        greedy_node_list(accuracies, nodes)
