"""Trees one can draw, masks written out; prefixes merged as a plain trie does."""

import pytest
import torch

from spec_bench.core.beam_tree import build_merged_beam_tree, build_separate_beam_tree
from spec_bench.core.tree import Tree, TreeShape, VariableLevelShape


def test_ancestors_of_a_two_level_tree():
    #        0            tokens: root 9
    #      1   2          5 6
    #     3     4  5      7 | 8 8
    shape = TreeShape(levels=(2, 3), children=(2, 2))
    tree = Tree(shape, torch.tensor([9]))
    there = torch.ones(1, 3, dtype=torch.bool)
    tree.add_level(torch.tensor([[5, 6]]), torch.tensor([0, 0]), there[:, :2], None)
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
    assert shape.node_depths == (0, 1, 1, 2, 2, 2)
    assert shape.starts == (0, 1, 3, 6)
    assert shape.size == 6


def grow(shape, parents, absent, constants):
    """A tree of two rows with a node of the first level absent in one, all others there."""
    tree = Tree(shape, torch.tensor([9, 8]), parents=parents if constants else None)
    for level, count in enumerate(shape.levels):
        tokens = torch.arange(2 * count).view(2, count)
        there = torch.ones(2, count, dtype=torch.bool)
        there[1, -1] = level > 0 or not absent
        places = torch.tensor(parents[shape.level(level + 1)]) - shape.starts[level]
        told = None if constants else places
        tree.add_level(tokens, told, there if absent or not constants else None, None)
    return tree


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize(
    ("shape", "parents"),
    [
        (TreeShape((1, 1, 1), (1, 1, 1)), (0, 0, 1, 2)),
        (TreeShape((2, 4, 4), (2, 2, 1)), (0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6)),
        (TreeShape((3, 3), (3, 3)), (0, 0, 0, 0, 1, 2, 3)),  # three paths
        (TreeShape((), ()), (0,)),
    ],
)
def test_a_tree_of_constant_parents_is_the_one_that_is_told_them(shape, parents, absent):
    assert shape.even_parents == parents
    constants, told = (grow(shape, parents, absent, given) for given in (True, False))
    assert told.parent.tolist() == [list(parents)] * 2
    for name in ("tokens", "parent", "valid", "ancestors"):
        assert torch.equal(getattr(constants, name), getattr(told, name)), name
    assert len(told.list_varying_tensors()) == 2 + len(
        constants.list_varying_tensors()
    )  # those that processes tell each other


def test_a_policys_constant_parents_are_not_written_to():
    shape = TreeShape((2, 2), (2, 1))
    tree = Tree(shape, torch.tensor([9]), parents=shape.even_parents)
    there = torch.ones(1, 2, dtype=torch.bool)
    for places in ([1, 1], [1, 0]):  # told otherwise
        tree.add_level(torch.tensor([[5, 6]]), torch.tensor(places), there, None)
    assert tree.parent.tolist() == [[0, 0, 0, 1, 2]]
    assert Tree(shape, torch.tensor([9]), parents=shape.even_parents).parent.tolist() == [
        [0, 0, 0, 1, 2]
    ]


def test_children_of_an_absent_node_are_absent():
    tree = Tree(TreeShape((2, 2), (2, 1)), torch.tensor([0]))
    one = torch.tensor([[True, False]])
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([0, 0]), one, None)
    both = torch.ones(1, 2, dtype=torch.bool)
    tree.add_level(torch.tensor([[3, 4]]), torch.tensor([0, 1]), both, None)
    assert tree.valid.tolist() == [[True, True, False, True, False]]


def test_a_tree_of_known_nodes_is_the_one_that_grows_level_by_level():
    # The first row has two children and one grandchild, the second a chain of three.
    tokens = torch.tensor([[9, 5, 6, 7], [9, 5, 7, 8]])
    parent = torch.tensor([[0, 0, 0, 2], [0, 0, 1, 2]])
    there = torch.tensor([[True, True, True, True], [True, True, True, False]])
    shape = VariableLevelShape((3, 3, 3), (2, 2, 2))
    tree = Tree.from_nodes(shape, tokens, parent, there, "iid")
    tree.row_depths = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 3]])
    assert tree.tokens.tolist() == [[9, 5, 6, 7], [9, 5, 7, 8]]
    assert tree.ancestors.int().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
    ]
    assert tree.depths.tolist() == [[0, 1, 1, 2], [0, 1, 2, 3]]
    assert tree.count_nodes_and_levels().tolist() == [[3, 2], [2, 2]]
    assert (shape.level(0), shape.level(3)) == (slice(0, 1), slice(1, 4))


def prefixes(tree, row):
    tokens, parents = tree.tokens[row].tolist(), tree.parent[row].tolist()
    paths, levels = {0: ()}, []
    for level in range(tree.shape.depth):
        nodes = range(tree.shape.starts[level + 1], tree.shape.starts[level + 2])
        paths |= {node: (*paths[parents[node]], tokens[node]) for node in nodes}
        found = [paths[node] for node in nodes if tree.valid[row, node]]
        assert len(found) == len(set(found)), "a prefix twice"
        levels.append(set(found))
    return levels


def test_merging_equals_a_trie_on_ten_thousand_random_beams():
    generator = torch.Generator().manual_seed(0)
    rows = 0
    for width, length, vocab in ((1, 3, 2), (4, 5, 2), (8, 5, 3), (15, 5, 4), (3, 1, 5)):
        beams = torch.randint(0, vocab, (2000, width, length), generator=generator)
        tree = build_merged_beam_tree(torch.zeros(2000, dtype=torch.long), beams)
        for row, own in enumerate(beams.tolist()):
            sizes = range(1, length + 1)
            assert prefixes(tree, row) == [{tuple(beam[:n]) for beam in own} for n in sizes]
        rows += 2000
    assert rows == 10_000


def test_the_papers_beams_as_a_tree_and_as_chains():
    beams = torch.tensor([[[91, 92, 93, 95], [91, 92, 94, 96], [91, 92, 93, 97]]])
    tree = build_merged_beam_tree(torch.tensor([90]), beams)
    assert tree.tokens.tolist() == [[90, 91, 92, 93, 94, 95, 96, 97]]
    assert tree.parent.tolist() == [[0, 0, 1, 2, 2, 3, 4, 3]]
    assert tree.ancestors[0, 7].nonzero().flatten().tolist() == [0, 1, 2, 3, 7]
    assert build_separate_beam_tree(torch.tensor([90]), beams).parent.tolist() == [
        [0] * 4 + [*range(1, 10)]
    ]
