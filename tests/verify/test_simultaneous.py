"""The walk that is looked up, a single row's, trees whose nodes hang elsewhere in every row, and
rules in closed form: all say what the loops say, level by level.
"""

from itertools import pairwise

import pytest
import torch

from spec_bench.audit.toys import random_history
from spec_bench.core.draws import SeededDraws
from spec_bench.core.gumbel import laws_without_replacement
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.tree.dynamic import BestNodes, BestSlots, DynamicTree
from spec_bench.tree.node_list import NodeList
from spec_bench.tree.widths import IidPaths, StochasticBeam, Widths
from spec_bench.verify.base import rule as rules
from spec_bench.verify.by_position import by_position_walk, looked_up
from spec_bench.verify.path_rule import path_walk, traversal
from spec_bench.verify.rules import SharedMass, k_seq, ranked, ranked_list, recursive_rejection
from spec_bench.verify.simulated import Simulated, TypicalAcceptance
from spec_bench.verify.simultaneous import look_up
from spec_bench.verify.walk import Scored, walk_down, walk_one_row
from tests.tree.test_dynamic import PROMPTS, planted

VOCAB, ROWS = 9, 39
FLAT = {
    "likeliest nodes": BestNodes(3, 4, 9),
    "likeliest nodes while they pay": BestNodes(3, 5, 7, gain=0.2),
    "slots": BestSlots(4, 4, 8),
}
CASES = {
    "recursive rejection over a beam": (StochasticBeam(3, 3), recursive_rejection),
    "recursive rejection over widths": (Widths((3, 2, 1), False), recursive_rejection),
    "naive over widths": (Widths((2, 2), True), ranked_list),
    "K-SEQ over equal prefixes": (IidPaths(4, 3), k_seq),
    "one-hot nodes": (NodeList(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1))), recursive_rejection),
    "a rule a level": (Widths((2, 1), False), Simulated((0.7, 0.4)).judge(2)),
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
    tree = Tree(policy.shape, root, policy.siblings(settings))
    for _ in range(policy.shape.depth):
        nodes = tree.frontier.stop - tree.frontier.start
        policy.grow(tree, log_probs(normal(nodes, drafts), settings), draws_of(*range(ROWS)))
    return tree, normal(tree.shape.size)


def draws_of(*seeds):
    return SeededDraws([torch.Generator().manual_seed(seed) for seed in seeds])


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
    [(policy, rule, (walk_down, look_up)) for policy, rule in CASES.values()]
    + [(policy, 6, (by_position_walk, looked_up)) for policy in FLAT.values()],
)
def test_the_path_looked_up_is_the_path_walked(policy, rule, walks):
    tree, logits = grown(policy, warm())
    merged = policy.merge_copies
    scored = [Scored(tree, logits, warm(), draws_of(*range(ROWS)), merged) for _ in walks]
    results = [find(given, rule) for find, given in zip(walks, scored, strict=True)]
    walked, found = (paths_of(result, tree, merged) for result in results)
    assert found == walked
    assert len({len(path) for path, _ in walked}) > 1


def alone(tree, row):
    """One row of several."""
    one, mine = tree.copy(), slice(row, row + 1)
    for name, part in vars(tree).items():
        if isinstance(part, torch.Tensor):
            setattr(one, name, part[mine])
    one.q, one.log_q = (
        [None if law is None else law[mine] for law in held] for held in (tree.q, tree.log_q)
    )
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
    settings, merged = warm(dtype), policy.merge_copies
    tree, logits = grown(policy, settings, drafts)
    together = walk_down(Scored(tree, logits, settings, draws_of(*range(ROWS)), merged), rule)
    for row, wanted in enumerate(paths_of(together, tree, merged)):
        one, at = alone(tree, row), logits[row : row + 1]
        found = walk_one_row(Scored(one, at, settings, draws_of(row), merged), rule)
        assert paths_of(found, one, merged) == [wanted]


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
    [(walk_down, recursive_rejection), (path_walk, traversal), (TYPICAL.walk, TYPICAL.judge(5))],
)
def test_a_row_of_a_batch_takes_the_path_that_its_levels_alone_would(walk, rule, policy):
    tree, logits = grown(policy, warm())
    assert len(set(tree.depths.amax(dim=1).tolist())) > 1 or not getattr(policy, "gain", None)
    together = walk(Scored(tree, logits, warm(), draws_of(*range(ROWS))), rule)
    wanted = paths_of(together, tree)
    for row in range(ROWS):
        own, nodes = levelled(tree, row)
        at = logits[row : row + 1, nodes]
        ((path, token),) = paths_of(walk(Scored(own, at, warm(), draws_of(row)), rule), own)
        assert ([nodes[node] for node in path], token) == wanted[row]
    assert len({len(path) for path, _ in wanted}) > 2


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
