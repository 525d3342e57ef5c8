"""Trees whose nodes hang elsewhere in every row are judged as the same trees level by level."""

from itertools import pairwise

import pytest
import torch

from spec_bench.audit.toys import random_history
from spec_bench.core.draws import SeededDraws
from spec_bench.core.tree import FlatShape, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.tree.dynamic import BestNodes, BestSlots
from spec_bench.verify.at_once import look_up
from spec_bench.verify.by_position import by_position_walk, looked_up
from spec_bench.verify.path_rule import path_walk, traversal
from spec_bench.verify.rules import recursive_rejection
from spec_bench.verify.simulated import TypicalAcceptance
from spec_bench.verify.walk import Scored, walk_down, walk_one_row
from tests.tree.test_dynamic import PROMPTS, planted

VOCAB = 5
SETTINGS = SamplingSettings(temperature=1.3, top_p=0.95, probability_dtype="float64")
POLICIES = [BestNodes(3, 4, 9), BestNodes(3, 5, 7, gain=0.2), BestSlots(4, 4, 8)]
TYPICAL = TypicalAcceptance(0.3, 0.5)
WALKS = {
    "node by node": (walk_down, recursive_rejection),
    "whole paths": (path_walk, traversal),
    "typical": (TYPICAL.walk, TYPICAL.judge(5)),
}


def trees(policy):
    return planted(policy, random_history(VOCAB, seed=7, sharpness=2), PROMPTS, SETTINGS)


def levelled(tree, row):
    """One row's tree as it would have grown, and the node of the flat one that each of its is."""
    depths = [
        int(depth) if there else -1
        for depth, there in zip(tree.depths[row], tree.valid[row], strict=True)
    ]
    levels = [[n for n, at in enumerate(depths) if at == level] for level in range(max(depths) + 1)]
    shape = TreeShape(tuple(map(len, levels[1:])), tree.shape.children, True)
    made = Tree(shape, tree.tokens[row : row + 1, 0], tree.siblings)
    for level, (above, below) in enumerate(pairwise(levels)):
        parent = torch.tensor([above.index(int(tree.parent[row, node])) for node in below])
        law = tree.log_q[level]
        if law is not None:
            first = tree.shape.level(level).start
            law = law[row : row + 1, [node - first for node in above]]
        there = torch.ones((1, len(below)), dtype=torch.bool)
        made.add_level(tree.tokens[row : row + 1, below], parent, there, None, law)
    return made, [node for level in levels for node in level]


def trees_of_row(tree, row):
    """A batch of one of a batch's flat trees."""
    assert isinstance(tree.shape, FlatShape) and tree.own_depths is not None
    one = slice(row, row + 1)
    below = (tree.tokens, tree.parent, tree.own_depths, tree.valid)
    laws = None if tree.log_q[0] is None else torch.cat(tree.log_q[:2], dim=1)[one]  # type: ignore[arg-type]
    parts = tuple(part[one, 1:] for part in below)
    made = Tree.of_nodes(tree.shape, tree.tokens[one, 0], parts, laws)  # type: ignore[arg-type]
    made.siblings = tree.siblings
    return made


def logits_of(tree, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (*tree.tokens.shape, VOCAB)
    return 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)


def walked(walk, tree, logits, rule, seeds):
    draws = SeededDraws([torch.Generator().manual_seed(seed) for seed in seeds])
    return walk(Scored(tree, logits, SETTINGS, draws), rule)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("name", WALKS)
def test_a_row_of_a_batch_takes_the_path_that_its_levels_alone_would(name, policy):
    walk, rule = WALKS[name]
    tree, lengths = trees(policy), set()
    assert len(set(tree.depths.amax(dim=1).tolist())) > 1 or not getattr(policy, "gain", None)
    for seed in range(12):
        logits = logits_of(tree, seed)
        found = walked(walk, tree, logits, rule, [seed, seed + 1, seed + 2])
        for row in range(len(PROMPTS)):
            alone, nodes = levelled(tree, row)
            own = walked(walk, alone, logits[row : row + 1, nodes], rule, [seed + row])
            count = int(own.accepted)
            if name == "node by node":  # as a CPU walks a single row
                single = trees_of_row(tree, row)
                one = walked(walk_one_row, single, logits[row : row + 1], rule, [seed + row])
                assert (int(one.accepted), int(one.token)) == (count, int(own.token))
            assert int(found.accepted[row]) == count
            assert int(found.token[row]) == int(own.token)
            path = [nodes[node] for node in own.path[0, : count + 1].tolist()]
            assert found.path[row, : count + 1].tolist() == path
            lengths.add(count)
    assert len(lengths) > 2


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    ("walk", "at_once", "rule"),
    [(walk_down, look_up, recursive_rejection), (by_position_walk, looked_up, 6)],
)
def test_the_path_looked_up_is_the_path_walked(walk, at_once, rule, policy):
    tree, lengths = trees(policy), set()
    for seed in range(20):
        results = [
            walked(find, tree, logits_of(tree, seed), rule, [seed, 50, 100 + seed])
            for find in (walk, at_once)
        ]
        one, other = results
        assert other.accepted.tolist() == one.accepted.tolist()
        assert other.token.tolist() == one.token.tolist()
        for row, count in enumerate(one.accepted.tolist()):
            assert torch.equal(other.path[row, : count + 1], one.path[row, : count + 1])
            lengths.add(count)
    assert len(lengths) > 2
