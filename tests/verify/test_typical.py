"""Typical acceptance by hand: strict threshold, the entropy's part, the longest path."""

import math

import pytest
import torch

from spec_bench.core.draws import SeededDraws
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.verify.base import read_verifier
from spec_bench.verify.simulated import TypicalAcceptance, typical_walk
from spec_bench.verify.walk import Scored
from tests.said import naming

DOUBLE = SamplingSettings(probability_dtype="float64")


def accepted(probs, rule):
    log_p = torch.tensor(probs, dtype=torch.float64).log().expand(len(probs), -1)
    return rule.accepts(log_p, torch.arange(len(probs))).tolist()


def test_a_sharp_law_has_the_hard_threshold():
    # H = 0.325 nats: delta exp(-H) = 0.217 > epsilon = 0.09.
    assert accepted([0.9, 0.1, 0.0], TypicalAcceptance()) == [True, True, False]
    assert accepted([0.92, 0.08], TypicalAcceptance()) == [True, False]


def test_a_flat_law_has_a_threshold_below_its_probabilities():
    # Uniform over 20: exp(-H) = 1/20, the threshold is 0.3/20.
    assert all(accepted([0.05] * 20, TypicalAcceptance()))


def test_the_threshold_is_strict():
    rule = TypicalAcceptance(epsilon=0.25, delta=1.0)
    assert accepted([0.25] * 4, rule) == [False] * 4
    # exp(-H) of a fair coin is 1/2, so delta = 1 is the same bound.
    assert accepted([0.5, 0.5], TypicalAcceptance(epsilon=1.0, delta=1.0)) == [False, False]


def test_entropy_is_in_nats():
    bound = 0.3 * math.exp(-(0.5 * math.log(2) + 0.5 * math.log(4)))
    rule = TypicalAcceptance(epsilon=bound + 1e-9, delta=0.3)
    assert accepted([0.5, 0.25, 0.25, 0.0], rule) == [True, True, True, False]


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
