"""Grids of trees: which configurations they hold, and what is refused."""

import pytest

from spec_bench.jobs.config.cells import configurations, expand_grid

GRID = {"decoder": "mcsd_wor", "factors": [1, 2], "most": 2, "depths": [1, 2], "order": "any"}


def test_a_grid_holds_every_tree_with_at_most_so_many_paths():
    assert configurations([1, 2], 2, [1, 2], "any") == [(1,), (2,), (1, 1), (1, 2), (2, 1)]


def test_the_monotone_rule_leaves_out_trees_that_branch_more_further_down():
    assert configurations([1, 2], 2, [1, 2], "non_increasing") == [(1,), (2,), (1, 1), (2, 1)]


def test_a_grid_becomes_cells_and_other_cells_stay_as_they_are():
    assert expand_grid("sd:3") == ["sd:3"]
    assert expand_grid({"decoder": "sd"}) == [{"decoder": "sd"}]
    trees = ["1", "2", "1-1", "1-2", "2-1"]
    assert expand_grid({"grid": GRID}) == [f"mcsd_wor:{tree}" for tree in trees]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": [0, 1]}, r"grid.factors\[0\] must be .* got 0"),
        ({"depths": []}, r"grid.depths must be"),
        ({"most": "many"}, "grid.most must be .* got 'many'"),
        ({"order": "falling"}, "any, non_increasing, got 'falling'"),
        ({"colour": 1}, "unknown setting grid.colour; grid has decoder, depths, factors"),
    ],
)
def test_a_wrong_grid_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        expand_grid({"grid": {**GRID, **change}})
