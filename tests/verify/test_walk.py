"""Which nodes a walk judges, and what typical and stated acceptance make of them."""

import itertools
import math
from functools import partial

import pytest
import torch

from spec_bench.audit.decoders import EnumeratedDraws, outcomes
from spec_bench.core.draws import SeededDraws
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.verify.base import read_verifier
from spec_bench.verify.rules import recursive_rejection
from spec_bench.verify.simulated import TypicalAcceptance, simulated, typical_walk
from spec_bench.verify.walk import Scored, candidates, copies_below, walk_down
from tests.said import naming


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


DOUBLE = SamplingSettings(probability_dtype="float64")


BOUND = 0.3 * math.exp(-(0.5 * math.log(2) + 0.5 * math.log(4)))


@pytest.mark.parametrize(
    ("probs", "rule", "accepted"),
    [
        # H = 0.325 nats: delta exp(-H) = 0.217 > epsilon = 0.09.
        ([0.9, 0.1, 0.0], TypicalAcceptance(), [True, True, False]),
        ([0.92, 0.08], TypicalAcceptance(), [True, False]),
        # Uniform over 20: exp(-H) = 1/20, the threshold is 0.3/20.
        ([0.05] * 20, TypicalAcceptance(), [True] * 20),
        # The threshold is strict; exp(-H) of a fair coin is 1/2, so delta = 1 is the same bound.
        ([0.25] * 4, TypicalAcceptance(epsilon=0.25, delta=1.0), [False] * 4),
        ([0.5, 0.5], TypicalAcceptance(epsilon=1.0, delta=1.0), [False, False]),
        ([0.5, 0.25, 0.25, 0.0], TypicalAcceptance(BOUND + 1e-9, 0.3), [True, True, True, False]),
    ],
)
def test_a_token_is_typical_by_the_smaller_threshold(probs, rule, accepted):
    log_p = torch.tensor(probs, dtype=torch.float64).log().expand(len(probs), -1)
    assert rule.accepts(log_p, torch.arange(len(probs))).tolist() == accepted


def walk_over(logits):
    """Root 0 with children 1 and 2; 1 has child 0; 2 has child 1, which has child 2."""
    tree = Tree(TreeShape((2, 2, 1), (2, 1, 1)), torch.tensor([0]))
    there = torch.ones((1, 2), dtype=torch.bool)
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([[0, 0]]), there, None)
    tree.add_level(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), there, None)
    tree.add_level(torch.tensor([[2]]), torch.tensor([[1]]), there[:, :1], None)
    draws = SeededDraws([torch.Generator().manual_seed(0)])
    result = typical_walk(Scored(tree, logits, DOUBLE, draws), TypicalAcceptance())
    return result.path[0].tolist(), int(result.accepted), int(result.token)


def test_the_longest_typical_path_wins_over_the_first():
    sure = torch.full((1, 6, 3), -30.0, dtype=torch.float64)
    for node, token in ((0, 1), (1, 0), (2, 1), (3, 0), (4, 2), (5, 1)):
        sure[0, node, token] = 0.0
    sure[0, 0, 2] = 0.0  # both children of the root are typical
    path, count, token = walk_over(sure)
    assert (path, count, token) == ([0, 2, 4, 5], 3, 1)


def test_nothing_typical_leaves_a_plain_token_of_the_target():
    logits = torch.full((1, 6, 3), -30.0, dtype=torch.float64)
    logits[0, :, 0] = 0.0
    _, count, token = walk_over(logits)
    assert (count, token) == (0, 0)


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "x"])
def test_thresholds_outside_the_unit_interval_are_refused(value):
    with pytest.raises(ValueError, match=naming("verifier.delta")):
        read_verifier({"rule": "typical", "delta": value}, "decoder 'd': verifier")


P = torch.tensor([[0.4, 0.3, 0.2, 0.1, 0.0]], dtype=torch.float64)
Q = torch.full((1, 1, 5), 0.2, dtype=torch.float64)


def leaves(verdict):
    """P(some child is accepted), by enumeration of the tests in order."""
    draws_of = partial(EnumeratedDraws.first_accepted, level=0, acceptance=verdict.acceptance)
    children = verdict.acceptance.shape[1]
    return sum(p for p, first in outcomes(draws_of) if first.item() < children)


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.8, 1.0])
@pytest.mark.parametrize("children", [1, 2, 3, 4])
def test_a_node_is_left_with_the_stated_probability_for_every_set_of_children(children, acceptance):
    tokens = torch.arange(children).unsqueeze(0)
    for there in itertools.product([True, False], repeat=children):
        valid = torch.tensor([there])
        verdict = simulated(P, Q, tokens, valid, acceptance=acceptance)
        assert leaves(verdict) == pytest.approx(acceptance if any(there) else 0.0, abs=1e-15)
        assert (verdict.acceptance[~valid] == 0).all()
        assert torch.equal(verdict.residual, P)


def test_a_rule_that_is_computed_all_the_same_gives_the_residual():
    tokens, valid = torch.tensor([[0, 4]]), torch.ones(1, 2, dtype=torch.bool)
    rule = partial(recursive_rejection, replacement=False)
    verdict = simulated(P, Q, tokens, valid, acceptance=0.5, computed=rule)
    assert verdict.acceptance.tolist() == [[0.5, 0.0]]
    assert torch.equal(verdict.residual, rule(P, Q, tokens, valid).residual)


def test_a_walk_uses_the_acceptance_of_each_depth():
    rules = tuple(partial(simulated, acceptance=a) for a in (0.8, 0.5))
    tree = Tree(TreeShape((2, 2), (2, 1)), torch.tensor([0]))
    there = torch.ones(1, 2, dtype=torch.bool)
    q = torch.full((1, 2, 1, 3), 1 / 3, dtype=torch.float64)
    both = torch.tensor([0, 0])
    tree.add_level(torch.tensor([[1, 2]]), both, there, q[:, :1])
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([0, 1]), there, q)
    logits = torch.zeros(1, 5, 3, dtype=torch.float64)
    law = [0.0, 0.0, 0.0]
    for probability, result in outcomes(
        lambda draws: walk_down(Scored(tree, logits, DOUBLE, draws), rules)
    ):
        law[result.accepted.item()] += probability
    assert law == pytest.approx([0.2, 0.8 * 0.5, 0.8 * 0.5])
