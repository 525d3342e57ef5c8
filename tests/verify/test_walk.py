"""Which nodes a walk judges next, and in which order."""

import torch

from spec_bench.core.tree import Tree, TreeShape
from spec_bench.verify.walk import candidates, copies_below


def test_children_stand_in_the_order_drawn_and_absent_ones_last():
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


def test_copies_of_a_node_are_below_copies_of_its_parent_and_hold_its_token():
    """Paths 4-6, 4-6 and 5-6: after 4 the accepted 6 has two copies, and not the one below 5."""
    tree = Tree(TreeShape((3, 3), (3, 1)), torch.tensor([7]), "iid")
    there = torch.ones(1, 3).bool()
    tree.add_level(torch.tensor([[4, 4, 5]]), torch.tensor([0, 0, 0]), there, None)
    tree.add_level(torch.tensor([[6, 6, 6]]), torch.tensor([0, 1, 2]), there, None)
    first = copies_below(tree, 0, None, torch.tensor([[4]]))
    assert first.tolist() == [[True, True, False]]
    assert copies_below(tree, 1, first, torch.tensor([[6]])).tolist() == [[True, True, False]]
    assert copies_below(tree, 1, ~first, torch.tensor([[6]])).tolist() == [[False, False, True]]
