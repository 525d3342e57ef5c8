"""Node rules on numbers one can check by hand, whose proofs are in tests/audit; which nodes a walk
judges, and what typical and stated acceptance make of them.
"""

import itertools
import math
from functools import partial

import pytest
import torch

from spec_bench.audit.decoders import EnumeratedDraws, outcomes
from spec_bench.core.draws import SeededDraws
from spec_bench.core.gumbel import laws_without_replacement
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.verify.base import read_verifier
from spec_bench.verify.rules import k_seq, optimal_rho, ranked_list, recursive_rejection
from spec_bench.verify.simulated import TypicalAcceptance, simulated, typical_walk
from spec_bench.verify.walk import Scored, candidates, copies_below, walk_down
from tests.said import naming

P = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
Q = torch.tensor([[[0.2, 0.2, 0.6]]], dtype=torch.float64)
THERE = torch.ones(1, 2, dtype=torch.bool)


def test_recursive_rejection_uses_the_updated_draft_distribution():
    tokens = torch.tensor([[2, 1]])
    verdict = recursive_rejection(P, Q, tokens, THERE, replacement=False)
    # First: 0.2/0.6. Then p = norm(0.3, 0.1, 0) = (0.75, 0.25, 0), q = (0.5, 0.5, 0).
    assert verdict.acceptance[0].tolist() == pytest.approx([1 / 3, 0.5])
    # Residual: norm(max(0, (0.25, -0.25, 0))).
    assert verdict.residual[0].tolist() == pytest.approx([1, 0, 0])


@pytest.mark.parametrize("children", [1, 4])
def test_rho_solves_its_equation_and_lies_between_one_and_k(children):
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 64, 10, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    rho = optimal_rho(p, q, torch.full((64, 1), float(children), dtype=torch.float64), rounds=10)
    beta = torch.minimum(q, p / rho).sum(-1, keepdim=True)
    assert torch.allclose(1 - (1 - beta) ** children, rho * beta, atol=1e-9)
    assert ((rho >= 1) & (rho <= children)).all()


def test_a_draft_without_mass_left_accepts_nothing_and_leaves_the_residual():
    # Below the smallest normal number a share of what is left means nothing.
    q = torch.tensor([[[0.0, -95.0, -95.0]]]).softmax(-1)
    assert 0 < q[0, 0, 1] < torch.finfo(torch.float32).tiny
    p = torch.tensor([[0.5, 0.3, 0.2]])
    verdict = recursive_rejection(p, q, torch.tensor([[0, 1]]), THERE, replacement=False)
    assert verdict.acceptance[0].tolist() == [0.5, 0.0]
    assert verdict.residual[0].tolist() == pytest.approx([0.0, 0.6, 0.4])


def test_rules_do_not_write_to_their_arguments():
    tokens = torch.tensor([[2, 1]])
    p, q = P.clone(), Q.clone()
    for replacement in (True, False):
        recursive_rejection(p, q, tokens, THERE, replacement=replacement)
    ranked_list(p, q, tokens, THERE)
    k_seq(p, q, tokens, THERE)
    assert torch.equal(p, P)
    assert torch.equal(q, Q)


def test_each_childs_own_law_gives_the_verdict_that_the_first_childs_gives():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 64, 10, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    tokens = torch.rand(64, 10, generator=generator).argsort(dim=-1)[:, :3]
    there = torch.ones(64, 3, dtype=torch.bool)
    own = laws_without_replacement(q.log(), tokens)
    each = recursive_rejection(p, own, tokens, there, replacement=False)
    first = recursive_rejection(p, q.unsqueeze(1), tokens, there, replacement=False)
    assert torch.allclose(each.acceptance, first.acceptance, atol=1e-12)
    assert torch.allclose(each.residual, first.residual, atol=1e-12)


def test_a_child_whose_probability_underflows_is_accepted_once_it_is_likeliest():
    # The draft is sure of token 0 and next of token 1, the target is sure of token 1.
    log_q = (torch.tensor([[3.0, 2.0, 0.0]]) / 0.01).log_softmax(dim=-1)
    p = torch.tensor([[0.0, 1.0, 0.0]])
    tokens = torch.tensor([[0, 1]])
    own = laws_without_replacement(log_q, tokens)
    verdict = recursive_rejection(p, own, tokens, THERE, replacement=False)
    assert verdict.acceptance.tolist() == [[0.0, 1.0]]
    assert log_q.exp()[0, 1] < 1e-38


# Walks.


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


@pytest.mark.parametrize(
    ("sure", "path", "token"),
    [
        ([[1, 2], [0], [1], [0], [2], [1]], [0, 2, 4, 5], 1),  # of two typical paths the longer
        ([[0]] * 6, [0], 0),  # nothing is typical: a plain token of the target
    ],
)
def test_the_longest_path_of_typical_tokens_is_taken(sure, path, token):
    # Root 0 with children 1 and 2; 1 has child 0; 2 has child 1, which has child 2.
    tree = Tree(TreeShape((2, 2, 1), (2, 1, 1)), torch.tensor([0]))
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([[0, 0]]), THERE, None)
    tree.add_level(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), THERE, None)
    tree.add_level(torch.tensor([[2]]), torch.tensor([[1]]), THERE[:, :1], None)
    logits = torch.full((1, 6, 3), -30.0, dtype=torch.float64)
    for node, tokens in enumerate(sure):
        logits[0, node, tokens] = 0.0
    draws = SeededDraws([torch.Generator().manual_seed(0)])
    found = typical_walk(Scored(tree, logits, DOUBLE, draws), TypicalAcceptance())
    assert found.path[0, : int(found.accepted) + 1].tolist() == path
    assert found.token.tolist() == [token]


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "x"])
def test_thresholds_outside_the_unit_interval_are_refused(value):
    with pytest.raises(ValueError, match=naming("verifier.delta")):
        read_verifier({"rule": "typical", "delta": value}, "decoder 'd': verifier")


FIVE = torch.tensor([[0.4, 0.3, 0.2, 0.1, 0.0]], dtype=torch.float64)
EVEN = torch.full((1, 1, 5), 0.2, dtype=torch.float64)


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
        verdict = simulated(FIVE, EVEN, tokens, valid, acceptance=acceptance)
        assert leaves(verdict) == pytest.approx(acceptance if any(there) else 0.0, abs=1e-15)
        assert (verdict.acceptance[~valid] == 0).all()
        assert torch.equal(verdict.residual, FIVE)


def test_a_rule_that_is_computed_all_the_same_gives_the_residual():
    tokens, valid = torch.tensor([[0, 4]]), torch.ones(1, 2, dtype=torch.bool)
    rule = partial(recursive_rejection, replacement=False)
    verdict = simulated(FIVE, EVEN, tokens, valid, acceptance=0.5, computed=rule)
    assert verdict.acceptance.tolist() == [[0.5, 0.0]]
    assert torch.equal(verdict.residual, rule(FIVE, EVEN, tokens, valid).residual)


def test_a_walk_uses_the_acceptance_of_each_depth():
    rules = tuple(partial(simulated, acceptance=a) for a in (0.8, 0.5))
    tree = Tree(TreeShape((2, 2), (2, 1)), torch.tensor([0]))
    q = torch.full((1, 2, 1, 3), 1 / 3, dtype=torch.float64)
    for parents, law in (([0, 0], q[:, :1]), ([0, 1], q)):
        tree.add_level(torch.tensor([[1, 2]]), torch.tensor(parents), THERE, law)
    logits = torch.zeros(1, 5, 3, dtype=torch.float64)
    law = [0.0, 0.0, 0.0]
    for probability, result in outcomes(
        lambda draws: walk_down(Scored(tree, logits, DOUBLE, draws), rules)
    ):
        law[result.accepted.item()] += probability
    assert law == pytest.approx([0.2, 0.8 * 0.5, 0.8 * 0.5])
