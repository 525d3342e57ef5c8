"""The walk that is looked up, a single row's, and rules in closed form say what the loops say."""

import pytest
import torch

from spec_bench.core.draws import SeededDraws
from spec_bench.core.gumbel import laws_without_replacement
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.tree.node_list import NodeList
from spec_bench.tree.widths import IidPaths, StochasticBeam, Widths
from spec_bench.verify.at_once import look_up
from spec_bench.verify.base import rule as rules
from spec_bench.verify.rules import SharedMass, k_seq, ranked, ranked_list, recursive_rejection
from spec_bench.verify.simulated import Simulated
from spec_bench.verify.walk import Scored, walk_down, walk_one_row

VOCAB, ROWS = 9, 40
SETTINGS = SamplingSettings(temperature=1.3, top_p=0.8, probability_dtype="float64")
CASES = {
    "recursive rejection over a beam": (StochasticBeam(3, 3), recursive_rejection),
    "recursive rejection over widths": (Widths((3, 2, 1), False), recursive_rejection),
    "naive over widths": (Widths((2, 2), True), ranked_list),
    "K-SEQ over equal prefixes": (IidPaths(4, 3), k_seq),
    "one-hot nodes": (NodeList(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1))), recursive_rejection),
    "a rule a level": (Widths((2, 1), False), Simulated((0.7, 0.4)).judge(2)),
}


def grown(policy, generator, settings=SETTINGS, drafts=1):
    """Trees of random laws, some nodes cut off by top-p."""
    root = torch.randint(VOCAB, (ROWS,), generator=generator)
    tree = Tree(policy.shape, root, policy.siblings(settings))
    draws = SeededDraws([torch.Generator().manual_seed(row) for row in range(ROWS)])
    for _ in range(policy.shape.depth):
        nodes = tree.frontier.stop - tree.frontier.start
        shape = (ROWS, nodes, drafts, VOCAB)
        logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        policy.grow(tree, log_probs(logits, settings), draws)
    return tree


@pytest.mark.parametrize("name", CASES)
def test_the_path_looked_up_is_the_path_walked(name):
    policy, rule = CASES[name]
    generator = torch.Generator().manual_seed(0)
    tree = grown(policy, generator)
    shape = (ROWS, policy.shape.size, VOCAB)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    results = []
    for find in (walk_down, look_up):
        draws = SeededDraws([torch.Generator().manual_seed(row) for row in range(ROWS)])
        results.append(find(Scored(tree, logits, SETTINGS, draws, policy.merge_copies), rule))
    walked, looked_up = results
    assert looked_up.accepted.tolist() == walked.accepted.tolist()
    assert looked_up.token.tolist() == walked.token.tolist()
    assert len(set(walked.accepted.tolist())) > 1
    for row, count in enumerate(walked.accepted.tolist()):
        found = [result.path[row, : count + 1] for result in results]
        assert tree.tokens[row, found[0]].tolist() == tree.tokens[row, found[1]].tolist()


def alone(tree, row):
    """One row of several."""
    mine = slice(row, row + 1)
    one = Tree(tree.shape, tree.tokens[mine, 0], tree.siblings)
    one.tokens, one.parent, one.valid = tree.tokens[mine], tree.parent[mine], tree.valid[mine]
    one.q = [None if law is None else law[mine] for law in tree.q]
    one.log_q = [None if law is None else law[mine] for law in tree.log_q]
    return one


RECURSIVE, NAIVE = rules["recursive_rejection"], rules["naive"]
SINGLE = {name: (policy, judge, 1) for name, (policy, judge) in CASES.items()} | {
    "two drafts": (Widths((3, 2), True), RECURSIVE(replacement=True).judge(2), 2),
    "child by child over a beam": (StochasticBeam(3, 3), RECURSIVE().judge(3), 1),
    "child by child, naive": (Widths((3, 2, 1), False), NAIVE().judge(3), 1),
    "child by child, one-hot": (CASES["one-hot nodes"][0], RECURSIVE().judge(2), 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SINGLE)
def test_a_single_rows_path_is_the_one_walked_beside_others(name, dtype):
    policy, rule, drafts = SINGLE[name]
    settings = SamplingSettings(temperature=1.3, top_p=0.8, probability_dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    tree = grown(policy, generator, settings, drafts)
    shape = (ROWS, policy.shape.size, VOCAB)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    draws = SeededDraws([torch.Generator().manual_seed(row) for row in range(ROWS)])
    merge = policy.merge_copies
    walked = walk_down(Scored(tree, logits, settings, draws, merge), rule)
    for row, count in enumerate(walked.accepted.tolist()):
        own, mine = SeededDraws([torch.Generator().manual_seed(row)]), logits[row : row + 1]
        found = walk_one_row(Scored(alone(tree, row), mine, settings, own, merge), rule)
        assert (found.accepted.tolist(), found.token.tolist()) == ([count], [walked.token[row]])
        paths = (each[: count + 1] for each in (found.path[0], walked.path[row]))
        assert torch.equal(*(tree.tokens[row, path] for path in paths))
    assert len(set(walked.accepted.tolist())) > 1


@pytest.mark.parametrize("name", ["recursive_rejection", "naive"])
def test_a_verdict_child_by_child_is_the_whole_one_to_the_last_bit(name):
    """A child without a chance, one that is sure, and a law of which nothing is left among them."""
    generator = torch.Generator().manual_seed(3)
    judge = rules[name]().judge(1)
    p, q = (4 * torch.randn((2, 300, VOCAB), generator=generator)).softmax(dim=-1)
    p[:20], q[20:40] = q[:20], torch.eye(VOCAB)[0]
    tokens = torch.rand((300, VOCAB), generator=generator).argsort(dim=-1)[:, :3]
    laws = laws_without_replacement(q.log(), tokens)
    whole = judge(p, laws, tokens, torch.ones_like(tokens, dtype=torch.bool))
    for row in range(300):
        left, chances = p[row : row + 1], []
        for child, token in enumerate(tokens[row].tolist()):
            law = laws[row : row + 1, child]
            chances.append(judge.steps.accepts(left, law, token))
            left = judge.steps.leaves(left, law, token)
        assert chances == whole.acceptance[row].tolist()
        assert torch.equal(left[0], whole.residual[row])


def test_ranked_list_in_closed_form_is_the_loop_with_copies_and_absent_children():
    generator = torch.Generator().manual_seed(1)
    p = (3 * torch.randn((200, 5), generator=generator, dtype=torch.float64)).softmax(dim=-1)
    tokens = torch.randint(5, (200, 4), generator=generator)
    there = torch.arange(4) < torch.randint(5, (200, 1), generator=generator)
    loop, closed = ranked_list(p, None, tokens, there), ranked(p, tokens, there)
    assert torch.allclose(closed.acceptance, loop.acceptance, atol=1e-12)
    assert torch.allclose(closed.residual, loop.residual, atol=1e-12)


def test_nothing_cancels_where_the_first_child_has_nearly_all_mass():
    p = torch.tensor([[1.0, 3e-12, 1e-12]])
    verdict = ranked(p, torch.tensor([[0, 1]]), torch.tensor([[True, True]]))
    assert verdict.acceptance[0].tolist() == pytest.approx([1.0, 0.75])
    assert verdict.residual[0].tolist() == pytest.approx([0, 0, 1])


def test_shared_mass_from_one_sort_is_its_definition():
    generator = torch.Generator().manual_seed(2)
    p, q = torch.randn((2, 6, 50), generator=generator, dtype=torch.float64).softmax(dim=-1)
    rho = 1 + 3 * torch.rand((6, 7), generator=generator, dtype=torch.float64)
    expected = torch.minimum(q.unsqueeze(1), p.unsqueeze(1) / rho.unsqueeze(2)).sum(dim=-1)
    assert torch.allclose(SharedMass(p, q, p / q)(rho), expected, atol=1e-14)
