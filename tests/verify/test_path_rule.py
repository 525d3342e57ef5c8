"""Traversal and block rules: exact, no worse than rejection, unlike what is commonly written."""

from functools import partial

import pytest
import torch

from spec_bench.audit.path_rules import (
    PrefixLaws,
    compute_last_node_and_token_laws,
    compute_path_rule_error,
    enumerate_path_rule_error,
    enumerate_trees,
    iter_path_rule_cases,
    make_random_prefix_laws,
)
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.verify import device_walk, path_rule
from spec_bench.verify.path_rule import sort_post_order, traversal
from spec_bench.verify.rules import naive, recursive_rejection

CASES = {name: (judge, law) for name, judge, law in iter_path_rule_cases()}


@pytest.mark.parametrize("name", CASES)
def test_blocks_have_the_targets_law_under_models_that_forget_nothing(name):
    error, cases = enumerate_path_rule_error(*CASES[name])
    assert error <= TOLERANCE
    assert cases == 15


def accepted_tokens(rule, tables, widths, law):
    """E[accepted draft tokens] of a whole-path rule."""
    trees = enumerate_trees(tables, widths, law)
    depth = torch.tensor(trees.tree.shape.node_depths, dtype=torch.float64)
    return float(trees.probability @ (compute_last_node_and_token_laws(rule, trees)[0] @ depth))


def top_down(trees, judge):
    """E[accepted draft tokens] of a node rule, tested from the root down."""
    tree, shape = trees.tree, trees.tree.shape
    reach = torch.zeros_like(trees.p[..., 0])
    reach[:, 0] = 1
    for level, width in enumerate(shape.children):
        for place, node in enumerate(range(shape.starts[level], shape.starts[level + 1])):
            first = shape.starts[level + 1] + place * width
            below = slice(first, first + width)
            log_q, q = tree.log_q[level], tree.q[level]
            law = log_q[:, place, None].exp() if log_q is not None else None
            law = q[:, place] if q is not None else law
            verdict = judge(trees.p[:, node], law, tree.tokens[:, below], tree.valid[:, below])
            missed = (1 - verdict.acceptance).cumprod(1)
            missed = torch.cat([torch.ones_like(missed[:, :1]), missed[:, :-1]], dim=1)
            reach[:, below] = reach[:, node, None] * missed * verdict.acceptance
    return float(trees.probability @ reach.sum(dim=1)) - 1


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_traversal_accepts_no_less_than_rejection_from_the_root_down(count):
    for seed in range(count):
        widths = ((2, 1, 1), (2, 2), (1, 1, 1), (3, 1), (2,))[seed % 5]
        law = ("iid", "without_replacement")[seed // 5 % 2]
        tables = make_random_prefix_laws(2 if len(widths) == 3 else 3, len(widths), seed)
        rejection = partial(recursive_rejection, replacement=law == "iid")
        plain = top_down(enumerate_trees(tables, widths, law), rejection)
        assert accepted_tokens(traversal, tables, widths, law) >= plain - 1e-12


def test_one_hot_proposals_gain_nothing():
    tables = make_random_prefix_laws(3, 2, seed=5)
    trees = enumerate_trees(tables, (2, 2), "deterministic")
    same = accepted_tokens(traversal, tables, (2, 2), "deterministic")
    assert same == pytest.approx(top_down(trees, naive), abs=1e-12)


def test_the_example_of_block_verification_has_its_printed_expectations():
    """Two tokens, whatever came before: 10/9 accepted token by token, 11/9 as a block."""
    p, q = torch.tensor([1, 2]).double() / 3, torch.tensor([2, 1]).double() / 3
    tables = PrefixLaws(
        [p.expand(2**d, 2) for d in range(3)], [q.expand(2**d, 3, 2) for d in range(2)]
    )
    trees = enumerate_trees(tables, (1, 1), "iid")
    assert top_down(trees, partial(recursive_rejection, replacement=True)) == pytest.approx(
        10 / 9, abs=1e-12
    )
    assert accepted_tokens(traversal, tables, (1, 1), "iid") == pytest.approx(11 / 9, abs=1e-12)


def test_a_node_is_tested_after_its_descendants_and_absent_ones_last():
    tree = Tree(TreeShape((2, 3), (2, 2)), torch.tensor([7]), "without_replacement")
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([0, 0]), None, None)
    there = torch.tensor([[True, False, True]])
    # Root 0; 1 and 2 below it; 3 below node 2, 4 absent, 5 below node 1.
    tree.add_level(torch.tensor([[3, 4, 5]]), torch.tensor([1, 0, 0]), there, None)
    assert sort_post_order(tree).tolist() == [[5, 1, 3, 2, 4, 0]]


@pytest.mark.parametrize("sharpness", [1.0, 100.0])  # as temperatures of 1 and 0.01
def test_chances_in_single_precision_are_those_of_double(sharpness):
    generator = torch.Generator().manual_seed(0)
    rows, widths = 6, (3, 2, 1)
    shape = TreeShape((3, 6, 6), widths)
    logits = sharpness * torch.randn((2, rows, shape.size, 40), generator=generator).double()
    success = []
    for dtype in (torch.float32, torch.float64):
        target, draft = logits.to(dtype).log_softmax(dim=-1)
        tree = Tree(shape, torch.zeros(rows, dtype=torch.long), "without_replacement")
        for level, width in enumerate(widths):
            log_q = draft[:, shape.level(level)]
            best = logits[1, :, shape.level(level)].topk(width, dim=-1).indices.flatten(1)
            parent = torch.arange(log_q.shape[1]).repeat_interleave(width)
            tree.add_level(best, parent, None, None, log_q)
        success.append(traversal(tree, target.exp()).success)
    assert 0 < success[1].mean() < 1
    torch.testing.assert_close(success[0], success[1], atol=1e-4, rtol=1e-3)


# What is commonly written instead; wrong quotas and residuals are among tests/mutants.yaml.


def first_failure(tree, p):
    """Of a chain: on from the root until a node fails, instead of the longest that succeeds."""
    verdict = traversal(tree, p)
    chance = verdict.success.flip(1)  # the order of a chain is from its leaf up
    reach = chance.cumprod(1)
    after = torch.cat([1 - chance[:, 1:], torch.ones_like(chance[:, :1])], dim=1)
    last = reach * after
    missed = 1 - last.flip(1).cumsum(1) + last.flip(1)
    return verdict._replace(success=last.flip(1) / missed.clamp(min=1e-300))


def test_a_wrong_end_of_the_block_is_caught():
    assert (
        compute_path_rule_error(
            first_failure, make_random_prefix_laws(2, 3, seed=1), (1, 1, 1), "iid"
        )
        > 0.01
    )


def reversed_siblings(tree, children, there):
    return children.flip(-1), there.flip(-1)


def without_copies(tree, children, there):
    """Copies are dropped while q stays."""
    tokens = tree.tokens.unsqueeze(1).gather(-1, children)
    same = (tokens.unsqueeze(-1) == tokens.unsqueeze(-2)).tril(-1).any(dim=-1)
    return children, there & ~same


@pytest.mark.parametrize(
    ("wrong", "law"), [(reversed_siblings, "without_replacement"), (without_copies, "iid")]
)
def test_wrong_siblings_are_caught(monkeypatch, wrong, law):
    right = path_rule.list_children
    monkeypatch.setattr(
        path_rule, "list_children", lambda tree, **more: wrong(tree, *right(tree, **more))
    )
    found = [
        compute_path_rule_error(traversal, make_random_prefix_laws(3, 1, seed), (2,), law)
        for seed in range(5)
    ]
    assert max(found) > 1e-3


DEPTH = 4


def closed(tree, p):
    return device_walk.verify_chain_by_blocks(tree, p)


@pytest.mark.parametrize("law", ["iid", "without_replacement", "deterministic"])
def test_the_closed_form_is_the_loop_with_absent_nodes_at_its_end(law):
    trees = enumerate_trees(make_random_prefix_laws(2, DEPTH, 7), (1,) * DEPTH, law)
    tree = trees.tree
    length = (3 * torch.arange(len(tree.tokens)) + 2) % (DEPTH + 1)
    tree.valid &= torch.arange(DEPTH + 1) <= length.unsqueeze(1)
    assert not tree.valid.all()
    loop, found = traversal(tree, trees.p), closed(tree, trees.p)
    assert torch.equal(found.order, loop.order)
    assert torch.allclose(found.success, loop.success, atol=1e-12)
    laws = [
        residual / residual.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        for residual in (found.residual, loop.residual)
    ]
    assert torch.allclose(*laws, atol=1e-12)


def test_a_token_that_the_target_never_says_ends_all_behind_it():
    trees = enumerate_trees(make_random_prefix_laws(2, 2, 1), (1, 1), "iid")
    p = torch.zeros_like(trees.p)
    p[..., 0] = 1.0  # token 1 has no chance, wherever it stands
    success = closed(trees.tree, p).success
    never = trees.tree.tokens[:, 1] == 1
    assert never.any()
    assert success[never].count_nonzero() == 0
    assert success.isfinite().all()
