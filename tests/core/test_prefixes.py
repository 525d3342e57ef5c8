"""Prefix merging: the paper's example, and a plain trie on ten thousand random beams."""

import torch

from spec_bench.core.tree import beams_apart, merge_prefixes, prefix_match

BEAMS = torch.tensor([[[91, 92, 93, 95], [91, 92, 94, 96], [91, 92, 93, 97]]])


def test_the_papers_example():
    assert prefix_match(BEAMS).tolist() == [[[0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 2]]]


def test_the_papers_example_as_a_tree():
    tree = merge_prefixes(torch.tensor([90]), BEAMS)
    assert tree.shape.levels == (1, 1, 2, 3)
    assert tree.tokens.tolist() == [[90, 91, 92, 93, 94, 95, 96, 97]]
    assert tree.parent.tolist() == [[0, 0, 1, 2, 2, 3, 4, 3]]
    assert tree.ancestors[0, 7].nonzero().flatten().tolist() == [0, 1, 2, 3, 7]


def trie_of(beams):
    """Distinct prefixes by length, the plain way."""
    return [{tuple(beam[: size + 1].tolist()) for beam in beams} for size in range(beams.shape[1])]


def paths_of(tree, row):
    levels = []
    tokens, parents = tree.tokens[row].tolist(), tree.parent[row].tolist()  # type: ignore[attr-defined]
    paths = {0: ()}
    for level in range(tree.shape.depth):  # type: ignore[attr-defined]
        found = []
        for node in range(tree.shape.starts[level + 1], tree.shape.starts[level + 2]):  # type: ignore[attr-defined]
            paths[node] = (*paths[parents[node]], tokens[node])
            if tree.valid[row, node]:  # type: ignore[attr-defined]
                found.append(paths[node])
        assert len(found) == len(set(found)), "a prefix twice"
        levels.append(set(found))
    return levels


def test_merging_equals_a_trie_on_ten_thousand_random_beams():
    generator = torch.Generator().manual_seed(0)
    rows = 0
    for width, length, vocab in ((1, 3, 2), (4, 5, 2), (8, 5, 3), (15, 5, 4), (3, 1, 5)):
        beams = torch.randint(0, vocab, (2000, width, length), generator=generator)
        tree = merge_prefixes(torch.zeros(2000, dtype=torch.long), beams)
        for row in range(2000):
            assert paths_of(tree, row) == trie_of(beams[row])
        rows += 2000
    assert rows == 10_000


def test_siblings_keep_the_order_of_the_beams():
    beams = torch.tensor([[[5, 1], [7, 1], [5, 2], [6, 1]]])
    tree = merge_prefixes(torch.tensor([0]), beams)
    assert tree.tokens.tolist() == [[0, 5, 7, 6, 1, 1, 2, 1]]
    assert tree.parent.tolist() == [[0, 0, 0, 0, 1, 2, 1, 3]]


def test_unmerged_beams_are_chains():
    tree = beams_apart(torch.tensor([90]), BEAMS)
    assert tree.shape.levels == (3, 3, 3, 3)
    assert tree.parent.tolist() == [[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
