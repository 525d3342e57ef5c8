"""A tree one can draw, with its mask written out."""

import torch

from spec_bench.core.tree import FlatShape, Tree, TreeShape


def test_ancestors_of_a_two_level_tree():
    #        0            tokens: root 9
    #      1   2          5 6
    #     3     4  5      7 | 8 8
    shape = TreeShape(levels=(2, 3), children=(2, 2))
    tree = Tree(shape, torch.tensor([9]))
    there = torch.ones(1, 2, dtype=torch.bool)
    tree.add_level(torch.tensor([[5, 6]]), torch.tensor([0, 0]), there, None)
    there = torch.ones(1, 3, dtype=torch.bool)
    tree.add_level(torch.tensor([[7, 8, 8]]), torch.tensor([[0, 1, 1]]), there, None)
    assert tree.tokens.tolist() == [[9, 5, 6, 7, 8, 8]]
    assert tree.parent.tolist() == [[0, 0, 0, 1, 2, 2]]
    assert tree.ancestors[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [1, 0, 1, 0, 0, 1],
    ]
    assert shape.node_depth == (0, 1, 1, 2, 2, 2)
    assert shape.starts == (0, 1, 3, 6)
    assert shape.size == 6


def test_children_of_an_absent_node_are_absent():
    tree = Tree(TreeShape((2, 2), (2, 1)), torch.tensor([0]))
    one = torch.tensor([[True, False]])
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([0, 0]), one, None)
    both = torch.ones(1, 2, dtype=torch.bool)
    tree.add_level(torch.tensor([[3, 4]]), torch.tensor([0, 1]), both, None)
    assert tree.valid.tolist() == [[True, True, False, True, False]]


def test_a_tree_of_known_nodes_is_the_one_that_grows_level_by_level():
    # The first row has two children and one grandchild, the second a chain of three.
    tokens = torch.tensor([[5, 6, 7], [5, 7, 8]])
    parent = torch.tensor([[0, 0, 2], [0, 1, 2]])
    depth = torch.tensor([[1, 1, 2], [1, 2, 3]])
    there = torch.tensor([[True, True, True], [True, True, False]])
    shape = FlatShape.of(3, 3, (2, 2, 2), busy=1)
    tree = Tree.of_nodes(shape, torch.tensor([9, 9]), (tokens, parent, depth, there), None)
    assert tree.tokens.tolist() == [[9, 5, 6, 7], [9, 5, 7, 8]]
    assert tree.ancestors.int().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
    ]
    assert tree.depths.tolist() == [[0, 1, 1, 2], [0, 1, 2, 3]]
    assert tree.own_sizes() is not None
    assert tree.own_sizes().tolist() == [[3, 2], [2, 2]]  # type: ignore[union-attr]
    assert (shape.level(0), shape.level(3)) == (slice(0, 1), slice(1, 4))


def test_a_root_only_tree_has_no_levels():
    tree = Tree(TreeShape((), ()), torch.tensor([4, 5]))
    assert tree.tokens.tolist() == [[4], [5]]
    assert tree.shape.depth == 0
