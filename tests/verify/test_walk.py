"""Walks and node rules: by hand, and looked up, a single row's and in closed form as by loops."""

import itertools
import math
from functools import partial
from itertools import pairwise

import pytest
import torch

from spec_bench.audit.decoders import EnumeratedDraws, enumerate_outcomes
from spec_bench.core.draws import SeededSource
from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.predrawn import DrawRecorder
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings, warped_log_probs
from spec_bench.tree.dynamic import BestNodes, BestSlots, DynamicTree
from spec_bench.tree.node_list import NodeList
from spec_bench.tree.widths import IidPaths, StochasticBeam, WidthsPolicy
from spec_bench.verify.base import rule
from spec_bench.verify.by_position import follow_target_tokens, follow_target_tokens_at_once
from spec_bench.verify.children import list_children
from spec_bench.verify.device_walk import walk_at_once
from spec_bench.verify.path_rule import traversal, walk_by_path_rule
from spec_bench.verify.rules import (
    SortedKSeqOverlap,
    find_k_seq_rho,
    k_seq,
    naive,
    naive_closed_form,
    recursive_rejection,
)
from spec_bench.verify.simulated import SimulatedAcceptance, simulate, solve_uniform_acceptance
from spec_bench.verify.typical import TypicalAcceptance, walk_by_typicality
from spec_bench.verify.walk import (
    ScoredTree,
    compute_draft_distribution,
    list_child_places,
    mark_accepted_copies,
    walk_down,
)
from tests.said import naming
from tests.toys import random_history
from tests.tree.grown import PROMPTS, planted

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


def random_laws(generator):
    return torch.randn(2, 64, 10, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


@pytest.mark.parametrize("children", [1, 4])
def test_rho_solves_its_equation_and_lies_between_one_and_k(children):
    p, q = random_laws(torch.Generator().manual_seed(0))
    rho = find_k_seq_rho(p, q, torch.full((64, 1), float(children), dtype=torch.float64), rounds=10)
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
    naive(p, q, tokens, THERE)
    k_seq(p, q, tokens, THERE)
    assert torch.equal(p, P)
    assert torch.equal(q, Q)


def test_each_childs_own_law_gives_the_verdict_that_the_first_childs_gives():
    generator = torch.Generator().manual_seed(0)
    p, q = random_laws(generator)
    tokens = torch.rand(64, 10, generator=generator).argsort(dim=-1)[:, :3]
    there = torch.ones(64, 3, dtype=torch.bool)
    own = compute_sibling_distributions(q.log(), tokens)
    each = recursive_rejection(p, own, tokens, there, replacement=False)
    first = recursive_rejection(p, q.unsqueeze(1), tokens, there, replacement=False)
    assert torch.allclose(each.acceptance, first.acceptance, atol=1e-12)
    assert torch.allclose(each.residual, first.residual, atol=1e-12)


def test_a_child_whose_probability_underflows_is_accepted_once_it_is_likeliest():
    # The draft is sure of token 0 and next of token 1, the target is sure of token 1.
    log_q = (torch.tensor([[3.0, 2.0, 0.0]]) / 0.01).log_softmax(dim=-1)
    p = torch.tensor([[0.0, 1.0, 0.0]])
    tokens = torch.tensor([[0, 1]])
    own = compute_sibling_distributions(log_q, tokens)
    verdict = recursive_rejection(p, own, tokens, THERE, replacement=False)
    assert verdict.acceptance.tolist() == [[0.0, 1.0]]
    assert log_q.exp()[0, 1] < 1e-38


# Walks.


def test_children_stand_in_the_order_drawn_and_absent_ones_last():
    tree = Tree(TreeShape((2, 4), (2, 3)), torch.tensor([7]), "without_replacement")
    tree.add_level(torch.tensor([[1, 2]]), torch.tensor([0, 0]), None, None)
    there = torch.tensor([[True, True, False, True]])
    # Below node 2: 3, 5 (absent) and 6, in this order; below node 1: 4.
    tree.add_level(torch.tensor([[3, 4, 5, 6]]), torch.tensor([1, 0, 1, 1]), there, None)
    order, valid = list_child_places(tree, 1, torch.tensor([1]), None)
    assert order[valid].tolist() == [0, 3]  # places within the level
    assert valid.tolist() == [[True, True, False]]
    order, valid = list_child_places(tree, 1, torch.tensor([0]), None)
    assert order[valid].tolist() == [1]
    assert valid.tolist() == [[True, False, False]]


def test_distinct_siblings_are_each_drawn_from_what_the_ones_before_them_left():
    tree = Tree(TreeShape((3,), (3,)), torch.tensor([7]), "without_replacement")
    there = torch.ones(1, 3).bool()
    tree.add_level(torch.tensor([[1, 0, 2]]), torch.tensor([0] * 3), there, None, P.log()[:, None])
    first = torch.tensor([0])
    law = compute_draft_distribution(tree, 0, first, first, tree.tokens[:, 1:])
    assert law is not None
    assert law[0].tolist() == [
        pytest.approx(each) for each in ([0.5, 0.3, 0.2], [5 / 7, 0, 2 / 7], [0, 0, 1])
    ]


@pytest.mark.parametrize(
    ("walk", "rule"),
    [
        (follow_target_tokens, 2),
        (follow_target_tokens_at_once, 2),
        (walk_by_typicality, TypicalAcceptance(0.3, 0.5)),
    ],
)
def test_a_guess_that_is_not_there_is_never_hit(walk, rule):
    """Two rows go on with token 0, which the first guesses; the second has no guess."""
    tree = Tree(TreeShape((1,), (1,)), torch.tensor([1, 1]), "deterministic")
    there = torch.tensor([[True], [False]])
    tree.add_level(torch.tensor([[0], [0]]), torch.tensor([0]), there, None)
    logits = torch.tensor([0.0, -9.0, -9.0]).expand(2, 2, 3)
    result = walk(ScoredTree(tree, logits, SamplingSettings(temperature=0), draws_of(0, 1)), rule)
    assert result.accepted.tolist() == [1, 0]
    assert result.token.tolist() == [0, 0]


def test_nodes_of_one_text_are_of_one_level():
    """Paths 7-6 and 5-6 behind a 7: the first node's text is not the root's."""
    tree = Tree(TreeShape((2, 2), (2, 1)), torch.tensor([7]), "iid")
    tree.add_level(torch.tensor([[7, 5]]), torch.tensor([0, 0]), None, None)
    tree.add_level(torch.tensor([[6, 6]]), torch.tensor([0, 1]), None, None)
    numbers, real = list_children(tree, merge_copies=True)
    found = [line[mask].tolist() for line, mask in zip(numbers[0], real[0], strict=True)]
    assert found == [[1, 2], [3], [4]]


@pytest.mark.parametrize(
    ("walk", "rule"),
    [(walk_down, naive), (walk_by_path_rule, traversal), (walk_by_typicality, TypicalAcceptance())],
)
def test_a_tree_that_ended_early_draws_as_many_numbers_as_a_whole_one(walk, rule):
    asked = []
    for levels in (1, 3):
        tree = Tree(TreeShape((1,) * levels, (1, 1, 1)), torch.tensor([1]), "deterministic")
        for _ in range(levels):
            tree.add_level(torch.tensor([[0]]), torch.tensor([0]), None, None)
        draws = DrawRecorder([torch.Generator()])
        walk(ScoredTree(tree, torch.zeros(1, levels + 1, 3), SamplingSettings(), draws), rule)
        asked.append(draws.requests)
    assert asked == [[(False, 4)]] * 2


def test_a_rule_for_one_draft_is_refused_where_two_share_a_nodes_children():
    two = rule["k_seq"]()
    two.check("iid_paths", TreeShape((2,), (2,)), "iid", 1)
    with pytest.raises(ValueError, match=naming("'k_seq'", "drafter.drafts is 2")):
        two.check("iid_paths", TreeShape((2,), (2,)), "iid", 2)


def test_copies_of_a_node_are_below_copies_of_its_parent_and_hold_its_token():
    """Paths 4-6, 4-6 and 5-6: after 4 the accepted 6 has two copies, and not the one below 5."""
    tree = Tree(TreeShape((3, 3), (3, 1)), torch.tensor([7]), "iid")
    tree.add_level(torch.tensor([[4, 4, 5]]), torch.tensor([0, 0, 0]), None, None)
    tree.add_level(torch.tensor([[6, 6, 6]]), torch.tensor([0, 1, 2]), None, None)
    first = mark_accepted_copies(tree, 0, None, torch.tensor([[4]]))
    assert first.tolist() == [[True, True, False]]
    assert mark_accepted_copies(tree, 1, first, torch.tensor([[6]])).tolist() == [
        [True, True, False]
    ]
    assert mark_accepted_copies(tree, 1, ~first, torch.tensor([[6]])).tolist() == [
        [False, False, True]
    ]


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
    draws = SeededSource([torch.Generator().manual_seed(0)])
    found = walk_by_typicality(ScoredTree(tree, logits, DOUBLE, draws), TypicalAcceptance())
    assert found.path[0, : int(found.accepted) + 1].tolist() == path
    assert found.token.tolist() == [token]


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "x"])
def test_thresholds_outside_the_unit_interval_are_refused(value):
    with pytest.raises(ValueError, match=naming("verifier.delta")):
        rule.build_from_block({"rule": "typical", "delta": value}, "rule", "decoder 'd': verifier")


FIVE = torch.tensor([[0.4, 0.3, 0.2, 0.1, 0.0]], dtype=torch.float64)
EVEN = torch.full((1, 1, 5), 0.2, dtype=torch.float64)


def leaves(verdict):
    """P(some child is accepted), by enumeration of the tests in order."""
    draws_of = partial(EnumeratedDraws.first_accepted, level=0, acceptance=verdict.acceptance)
    children = verdict.acceptance.shape[1]
    return sum(p for p, first in enumerate_outcomes(draws_of) if first.item() < children)


@pytest.mark.parametrize("depth", [1, 2, 5, 30])
def test_the_acceptance_of_a_block_efficiency_inverts_the_geometric_sum(depth):
    for acceptance in (0.0, 0.37, 0.9, 1.0):
        tau = sum(acceptance**level for level in range(depth + 1))
        assert solve_uniform_acceptance(tau, depth) == pytest.approx(acceptance, abs=1e-12)


@pytest.mark.parametrize(("tau", "depth"), [(0.9, 3), (4.1, 3), (1.0, 0)])
def test_a_block_efficiency_that_no_acceptance_gives_is_refused(tau, depth):
    with pytest.raises(ValueError, match=f"depth {depth} has a block efficiency between 1 and"):
        solve_uniform_acceptance(tau, depth)


@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.8, 1.0])
@pytest.mark.parametrize("children", [1, 2, 3, 4])
def test_a_node_is_left_with_the_stated_probability_for_every_set_of_children(children, acceptance):
    tokens = torch.arange(children).unsqueeze(0)
    for there in itertools.product([True, False], repeat=children):
        valid = torch.tensor([there])
        verdict = simulate(FIVE, EVEN, tokens, valid, acceptance=acceptance)
        assert leaves(verdict) == pytest.approx(acceptance if any(there) else 0.0, abs=1e-15)
        assert (verdict.acceptance[~valid] == 0).all()
        assert torch.equal(verdict.residual, FIVE)


def test_a_rule_that_is_computed_all_the_same_gives_the_residual():
    tokens, valid = torch.tensor([[0, 4]]), torch.ones(1, 2, dtype=torch.bool)
    rule = partial(recursive_rejection, replacement=False)
    verdict = simulate(FIVE, EVEN, tokens, valid, acceptance=0.5, timed_rule=rule)
    assert verdict.acceptance.tolist() == [[0.5, 0.0]]
    assert torch.equal(verdict.residual, rule(FIVE, EVEN, tokens, valid).residual)


def test_a_walk_uses_the_acceptance_of_each_depth():
    rules = SimulatedAcceptance((0.8, 0.5)).judge(2)
    tree = Tree(TreeShape((2, 2), (2, 1)), torch.tensor([0]))
    q = torch.full((1, 2, 1, 3), 1 / 3, dtype=torch.float64)
    for parents, law in (([0, 0], q[:, :1]), ([0, 1], q)):
        tree.add_level(torch.tensor([[1, 2]]), torch.tensor(parents), THERE, law)
    logits = torch.zeros(1, 5, 3, dtype=torch.float64)
    law = [0.0, 0.0, 0.0]
    for probability, result in enumerate_outcomes(
        lambda draws: walk_down(ScoredTree(tree, logits, DOUBLE, draws), rules)
    ):
        law[result.accepted.item()] += probability
    assert law == pytest.approx([0.2, 0.8 * 0.5, 0.8 * 0.5])


VOCAB, ROWS = 9, 39
FLAT = {
    "likeliest nodes": BestNodes(3, 4, 9),
    "likeliest nodes while they pay": BestNodes(3, 5, 7, gain=0.2),
    "slots": BestSlots(4, 4, 8),
}
CASES = {
    "recursive rejection over a beam": (StochasticBeam(3, 3), recursive_rejection),
    "recursive rejection over widths": (WidthsPolicy((3, 2, 1), False), recursive_rejection),
    "naive over widths": (WidthsPolicy((2, 2), True), naive),
    "K-SEQ over equal prefixes": (IidPaths(4, 3), k_seq),
    "one-hot nodes": (NodeList(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1))), recursive_rejection),
    "a rule a level": (WidthsPolicy((2, 1), False), SimulatedAcceptance((0.7, 0.4)).judge(2)),
} | {name: (policy, recursive_rejection) for name, policy in FLAT.items()}


def warm(dtype="float64"):
    return SamplingSettings(temperature=1.3, top_p=0.8, probability_dtype=dtype)


def grown(policy, settings, drafts=1):
    """Trees of random laws, some nodes cut off by top-p, and the target's logits at their nodes."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return 2 * torch.randn((ROWS, *shape, VOCAB), generator=generator, dtype=torch.float64)

    if isinstance(policy, DynamicTree):
        model = random_history(VOCAB, seed=7, sharpness=2)
        tree = planted(policy, model, PROMPTS * (ROWS // 3), settings)
        return tree, normal(tree.shape.size)
    root = torch.randint(VOCAB, (ROWS,), generator=generator)
    tree = Tree(policy.shape, root, policy.siblings(settings), policy.parents)
    for _ in range(policy.shape.depth):
        nodes = tree.frontier.stop - tree.frontier.start
        policy.grow_level(
            tree, warped_log_probs(normal(nodes, drafts), settings), draws_of(*range(ROWS))
        )
    return tree, normal(tree.shape.size)


def draws_of(*seeds):
    return SeededSource([torch.Generator().manual_seed(seed) for seed in seeds])


def paths_of(result, tree, merged=False):
    """Where each row's walk ended: nodes, or of merged copies their tokens, and the last token."""
    nodes = zip(result.path, result.accepted.tolist(), strict=True)
    nodes = [path[: count + 1] for path, count in nodes]
    found = [tree.tokens[row, path] if merged else path for row, path in enumerate(nodes)]
    return [
        (part.tolist(), token) for part, token in zip(found, result.token.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("policy", "rule", "walks"),
    [(policy, rule, (walk_down, walk_at_once)) for policy, rule in CASES.values()]
    + [
        (policy, 6, (follow_target_tokens, follow_target_tokens_at_once))
        for policy in FLAT.values()
    ],
)
def test_the_path_looked_up_is_the_path_walked(policy, rule, walks):
    tree, logits = grown(policy, warm())
    merged = policy.walk_merges_copies
    scored = [ScoredTree(tree, logits, warm(), draws_of(*range(ROWS)), merged) for _ in walks]
    results = [find(given, rule) for find, given in zip(walks, scored, strict=True)]
    walked, found = (paths_of(result, tree, merged) for result in results)
    assert found == walked
    assert len({len(path) for path, _ in walked}) > 1


def levelled(tree, row):
    """One row's tree as it would have grown, and the node of the flat one that each of its is."""
    there = tree.valid[row].tolist()
    depths = [depth if there[n] else -1 for n, depth in enumerate(tree.depths[row].tolist())]
    levels = [[n for n, at in enumerate(depths) if at == level] for level in range(max(depths) + 1)]
    shape = TreeShape(tuple(map(len, levels[1:])), tree.shape.children, True)
    made = Tree(shape, tree.tokens[row : row + 1, 0], tree.siblings)
    for level, (above, below) in enumerate(pairwise(levels)):
        parent = torch.tensor([above.index(int(tree.parent[row, node])) for node in below])
        law = tree.log_q[level]
        if law is not None:
            first = tree.shape.level(level).start
            law = law[row : row + 1, [node - first for node in above]]
        all_there = torch.ones((1, len(below)), dtype=torch.bool)
        made.add_level(tree.tokens[row : row + 1, below], parent, all_there, None, law)
    return made, [node for level in levels for node in level]


TYPICAL = TypicalAcceptance(0.3, 0.5)


@pytest.mark.parametrize("policy", FLAT.values(), ids=FLAT)
@pytest.mark.parametrize(
    ("walk", "rule"),
    [
        (walk_down, recursive_rejection),
        (walk_by_path_rule, traversal),
        (TYPICAL.walk, TYPICAL.judge(5)),
    ],
)
def test_a_row_of_a_batch_takes_the_path_that_its_levels_alone_would(walk, rule, policy):
    tree, logits = grown(policy, warm())
    assert len(set(tree.depths.amax(dim=1).tolist())) > 1 or not getattr(policy, "gain", None)
    together = walk(ScoredTree(tree, logits, warm(), draws_of(*range(ROWS))), rule)
    wanted = paths_of(together, tree)
    for row in range(ROWS):
        own, nodes = levelled(tree, row)
        at = logits[row : row + 1, nodes]
        ((path, token),) = paths_of(walk(ScoredTree(own, at, warm(), draws_of(row)), rule), own)
        assert ([nodes[node] for node in path], token) == wanted[row]
    assert len({len(path) for path, _ in wanted}) > 2


def test_ranked_list_in_closed_form_is_the_loop_with_copies_and_absent_children():
    generator = torch.Generator().manual_seed(1)
    p = (3 * torch.randn((200, 5), generator=generator, dtype=torch.float64)).softmax(dim=-1)
    tokens = torch.randint(5, (200, 4), generator=generator)
    there = torch.rand((200, 4), generator=generator) < 0.7
    loop, closed = naive(p, None, tokens, there), naive_closed_form(p, tokens, there)
    assert torch.allclose(closed.acceptance, loop.acceptance, atol=1e-12)
    assert torch.allclose(closed.residual, loop.residual, atol=1e-12)


def test_nothing_cancels_where_the_first_child_has_nearly_all_mass():
    p = torch.tensor([[1.0, 3e-12, 1e-12]])
    verdict = naive_closed_form(p, torch.tensor([[0, 1]]), torch.tensor([[True, True]]))
    assert verdict.acceptance[0].tolist() == pytest.approx([1.0, 0.75])
    assert verdict.residual[0].tolist() == pytest.approx([0, 0, 1])


def test_shared_mass_from_one_sort_is_its_definition():
    generator = torch.Generator().manual_seed(2)
    p, q = torch.randn((2, 6, 50), generator=generator, dtype=torch.float64).softmax(dim=-1)
    rho = 1 + 3 * torch.rand((6, 7), generator=generator, dtype=torch.float64)
    expected = torch.minimum(q.unsqueeze(1), p.unsqueeze(1) / rho.unsqueeze(2)).sum(dim=-1)
    assert torch.allclose(SortedKSeqOverlap(p, q, p / q)(rho), expected, atol=1e-14)
