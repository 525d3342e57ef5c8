"""Stated acceptance is met exactly, whatever children a node has."""

import itertools
from functools import partial

import pytest
import torch

from spec_bench.audit.decoders import EnumeratedDraws, outcomes
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.verify.rules import recursive_rejection
from spec_bench.verify.simulated import simulated
from spec_bench.verify.walk import Scored, walk_down

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
    settings = SamplingSettings(probability_dtype="float64")
    law = [0.0, 0.0, 0.0]
    for probability, result in outcomes(
        lambda draws: walk_down(Scored(tree, logits, settings, draws), rules)
    ):
        law[result.accepted.item()] += probability
    assert law == pytest.approx([0.2, 0.8 * 0.5, 0.8 * 0.5])
