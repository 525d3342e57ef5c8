"""The order in which a node's children are judged."""

from __future__ import annotations

import torch

from spec_bench.core.tree import Tree, TreeShape
from spec_bench.verify.walk import candidates


def test_children_stand_in_the_order_drawn_and_absent_ones_last() -> None:
    tree = Tree(TreeShape((2, 4), (2, 3)), torch.tensor([7]), "without_replacement")
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([0, 0]), torch.ones(1, 2).bool(), None)
    there = torch.tensor([[True, True, False, True]])
    # Below node 2: 3, 5 (absent) and 6, in this order; below node 1: 4.
    tree.add_level(torch.tensor([[3, 4, 5, 6]]), torch.tensor([1, 0, 1, 1]), there, None)
    order, valid = candidates(tree, 1, torch.tensor([1]), None)
    assert order[valid].tolist() == [0, 3]  # places within the level
    assert valid.tolist() == [[True, True, False]]
    order, valid = candidates(tree, 1, torch.tensor([0]), None)
    assert order[valid].tolist() == [1]
    assert valid.tolist() == [[True, False, False]]
