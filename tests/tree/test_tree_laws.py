"""Every policy's trees have the law of its definition; wrong ones are caught; the best are best."""

import heapq
import math
import random
from itertools import combinations, product

import pytest
import torch
from scipy.stats import chisquare

from spec_bench.audit.catalogue import SETTINGS, WARM, iter_audit_cases
from spec_bench.audit.decoders import FALSE_ALARM_RATE, enumerate_decoder_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.draws import SeededSource
from spec_bench.decode.config import read_decoder
from spec_bench.tree.base import AuditTree, GrownTree, policy
from spec_bench.tree.chain import DynamicChain
from spec_bench.tree.dynamic import BestNodes, BestSlots
from spec_bench.tree.node_list import (
    FittedList,
    build_medusa_list,
    build_sequoia_list,
    compute_expected_accepted_tokens,
    pool_rising_rates,
)
from spec_bench.tree.widths import IidPaths, StochasticBeam, WidthsPolicy
from tests.families import decoder_settings
from tests.said import naming
from tests.toys import random_history
from tests.tree import laws
from tests.tree.definitions import DEFINITIONS
from tests.tree.grown import PROMPTS, REQUESTS, planted, watched
from tests.tree.laws import forest, likeliest, nodes_of

PAST = (0, 1, 1, 0, 1, 0, 0, 1)
MORE = {  # what a policy does beside its audit cases, by the fields of the policy
    "best_nodes": [((3, 3, 6), {})],
    # In the other prompt the 1 alone came before the longer 0 1, after which the text soon ends.
    "guessed": [((2, 3), {"prompt": PAST}), ((1, 3), {"prompt": (1, 2, 0, 1, 0, 1)})],
    "head_beams": [((3, 3), {}), ((3, 3, False), {})],
    "iid_paths": [((2, 3, merged), {"vocab": 2}) for merged in (False, True)]
    + [((3, 2, True), {"vocab": 2})],
    "node_list": [((((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 1, 0)),), {})],
    "top_and_sample": [(((2, 2),), {}), (((3, 1), 2), {}), (((4,), 2), {})],
    "widths": [(((2, 2), replacement), {"vocab": 2}) for replacement in (False, True)]
    + [((children, True), {"vocab": 2, "drafts": 2}) for children in ((2, 1), (3,))],
}
COLD = "temperature 1, draft at 0"
FAST = ("temperature 1.5, top-p 0.9", COLD)


def cases():
    """Small trees of every registered policy that grows some, under all settings."""
    for name, kind in policy.items():
        if issubclass(kind, GrownTree):
            more = [AuditTree(kind(*fields), **rest) for fields, rest in MORE.get(name, [])]
            for tree, label in product([*kind.audit_cases(), *more], SETTINGS):
                if not (tree.enumerable or label == COLD):
                    continue
                marks = () if label in FAST else pytest.mark.slow
                known = laws.drafters(tree)
                for who in known:
                    said = f"{tree.policy}, {label}" + (f", {who}" if len(known) > 1 else "")
                    yield pytest.param(tree, label, who, marks=marks, id=said)


@pytest.mark.parametrize(("tree", "label", "who"), cases())
def test_a_policys_trees_have_the_law_of_its_definition(tree, label, who):
    settings = SETTINGS[label]
    found = laws.grown(tree, settings, kind=who)
    defined = laws.defined(DEFINITIONS[tree.policy.name], tree, settings, who)
    assert sum(defined.values()) == pytest.approx(1)
    assert laws.distance(found, defined) <= 1e-12


@pytest.mark.parametrize(
    ("width", "depth", "vocab", "label"),
    [
        (2, 2, 3, "temperature 1"),
        (2, 2, 3, "temperature 1.5, top-p 0.9"),
        (2, 3, 2, "temperature 1"),
        (3, 2, 2, "temperature 1"),
    ],
)
def test_stochastic_beams_are_drawn_by_their_definitions_law(width, depth, vocab, label):
    tree = AuditTree(StochasticBeam(width, depth), vocab)
    law = laws.defined(DEFINITIONS["stochastic_beam"], tree, SETTINGS[label])
    found = laws.counted(tree, SETTINGS[label], rows=1000, times=4)
    assert {*found} <= {*law}
    count = found.total()
    likely = [each for each, chance in law.items() if chance * count >= 5]
    wanted = [count * law[each] for each in likely]
    seen = [found[each] for each in likely]
    if rest := count - sum(seen):
        wanted, seen = [*wanted, count - sum(wanted)], [*seen, rest]
    assert chisquare(seen, wanted).pvalue >= FALSE_ALARM_RATE
    assert len(likely) > 5


@pytest.mark.parametrize("case", iter_audit_cases("exact_beam"), ids=lambda case: case.name)
def test_draft_beams_are_drawn_out_of_all_that_continue_the_layer_above(case):
    found = laws.drafted_beams(case.config, case.tree)
    defined = laws.defined(DEFINITIONS[case.tree.policy.name], case.tree, WARM)
    assert laws.distance(found, defined) <= 1e-12


LM = {"kind": "language_model"}
REJECTION = {"rule": "recursive_rejection", "replacement": False}
TRAVERSAL = {"rule": "traversal"}


class CutByToken(BestSlots):
    """A slot is kept for the probability of the token that was drawn into it."""

    def propose_children(self, tree, scores, parent_scores, draws, **more):
        tokens, score, _, log_q = super().propose_children(
            tree, scores, parent_scores, draws, **more
        )
        return tokens, score, score, log_q


class ReversedSlots(BestSlots):
    """Siblings are tested in the reverse of the order drawn."""

    def propose_children(self, tree, scores, parent_scores, draws, **more):
        tokens, score, value, log_q = super().propose_children(
            tree, scores, parent_scores, draws, **more
        )
        return tokens.flip(-1), score.flip(-1), value, log_q


class Reranked(WidthsPolicy):
    """Siblings are drawn, and then tested from the draft's likeliest on."""

    def grow_level(self, tree, scores, draws):
        super().grow_level(tree, scores, draws)
        nodes, width = tree.frontier, self.widths[tree.grown - 1]
        tokens = tree.tokens[:, nodes].unflatten(1, (-1, width))
        order = scores[:, :, 0].gather(-1, tokens).sort(dim=-1, descending=True).indices
        tree.tokens[:, nodes] = tokens.gather(-1, order).flatten(1)


class Dropped(DynamicChain):
    """The token that stopped the chain is not verified."""

    def grow_tree(self, context):
        tree = super().grow_tree(context)
        for level in range(tree.shape.depth):
            q = tree.q[level]
            assert q is not None
            token = tree.tokens[:, level + 1 : level + 2]
            tree.valid[:, level + 1] &= (q[:, 0, 0].gather(1, token) >= self.confidence).squeeze(1)
        return tree


class MergedAlone(IidPaths):
    """Equal prefixes are merged, and a child's law stays q, its earlier siblings in it."""

    def siblings(self, settings):
        return "iid"

    def grow_level(self, tree, scores, draws):
        super().grow_level(tree, scores, draws)
        tree.q[-1], tree.log_q[-1] = scores.exp(), None


SLOTS = {"policy": "best_slots", "width": 2, "depth": 1, "total": 2}
CHAIN = {"policy": "dynamic_chain", "depth": 3, "confidence": 0.4}
PATHS = {"policy": "iid_paths", "paths": 2, "depth": 2, "merged": True}
DISTINCT = {"policy": "widths", "widths": [2], "replacement": False}
WRONG = [
    (CutByToken(2, 1, 1), SLOTS | {"total": 1}, REJECTION),
    (CutByToken(2, 1, 1), SLOTS | {"total": 1}, TRAVERSAL),
    (ReversedSlots(2, 1, 2), SLOTS, REJECTION),
    (ReversedSlots(2, 1, 2), SLOTS, TRAVERSAL),
    (Reranked((2,), False), DISTINCT, REJECTION),
    (Reranked((2,), False), DISTINCT, TRAVERSAL),
    (Dropped(3, 0.4), CHAIN, REJECTION),
    (Dropped(3, 0.4), CHAIN, TRAVERSAL),
    (MergedAlone(2, 2, True), PATHS, TRAVERSAL),
]


def error_of(tree, verifier, alter):
    given = {"name": "altered", "drafter": LM, "tree": tree, "verifier": verifier}
    return enumerate_decoder_error(
        read_decoder(given, WARM), WARM, vocab=3, seed=3, modify_decoder=alter
    )[0]


@pytest.mark.parametrize(
    ("policy", "tree", "verifier"),
    WRONG,
    ids=[f"{type(policy).__name__}, {verifier['rule']}" for policy, _, verifier in WRONG],
)
def test_a_wrong_tree_is_caught(policy, tree, verifier):
    def alter(decoder):
        decoder.policy = policy

    assert error_of(tree, verifier, alter) > 5e-3
    assert error_of(tree, verifier, None) <= TOLERANCE


ACCURACIES = [[0.6, 0.2, 0.05], [0.5, 0.25, 0.1], [0.4, 0.1, 0.0]]


@pytest.mark.parametrize("settings", [WARM, SETTINGS["temperature 1.5, top-p 0.9"]])
@pytest.mark.parametrize(
    ("fields", "vocab", "sharpness"),
    [
        ((2, 4, 7), 5, 1.5),
        ((3, 3, 5), 5, 1.5),
        ((1, 3, 3), 5, 1.5),
        ((2, 3, 40), 5, 1.5),
        ((4, 2, 9), 2, 1.5),  # more children than tokens
        ((3, 5, 6, 0.3), 4, 3),  # rows draft on while that pays
    ],
)
def test_a_batchs_trees_of_likeliest_nodes_are_the_definitions(fields, vocab, sharpness, settings):
    policy, model = BestNodes(*fields), random_history(vocab, seed=3, sharpness=sharpness)
    prompts = [tuple(token % vocab for token in prompt) for prompt in PROMPTS]
    tree = planted(policy, model, prompts, settings)
    made = [forest(tree, row) for row in range(3)]
    assert made == [likeliest(policy, model, prompt) for prompt in prompts]
    depths = {max(map(len, nodes_of(each))) for each in made}
    assert len(depths) > 1 or policy.gain is None


def test_no_tree_of_so_many_nodes_has_more_of_the_drafts_probability():
    """OPT-Tree's theorem, and the nodes are found by looking at as many as are kept."""
    model = random_history(3, seed=2)
    every = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    tree = planted(BestNodes(6, 3, 6), model, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        laws = {
            path: model.compute_continuation_law(prompt, len(path), WARM)[path] for path in every
        }
        assert nodes_of(forest(tree, row)) == sorted(sorted(every, key=laws.get)[-6:])


# DySpec's tree, found level by level, is the one that its heap of open slots makes.


class SameNoise(SeededSource):
    """The same noise for every node of a level, so that a heap can be given it too."""

    def __init__(self, noise):
        super().__init__([])
        self._noise, self._level = noise, -1

    def gumbel(self, like, counts=None, best=None):
        self._level += 1
        return self._noise[self._level].expand_as(like)


def heap_tree(model, prompt, noise, total):
    """DySpec's Algorithm: pop the best slot, draw into it, open the slots below and beside it."""

    def order(path):
        log_q = model.logits[model.find_logits_index((*prompt, *path))].log_softmax(-1)
        ranked = (log_q + noise[len(path)]).sort(descending=True).indices.tolist()
        return [(token, math.exp(float(log_q[token]))) for token in ranked]

    heap = [(-1.0, 0, (), 0)]  # -value, depth, node, sibling
    found = set()
    while len(found) < total:
        value, depth, node, sibling = heapq.heappop(heap)
        drawn = order(node)
        token, mass = drawn[sibling]
        left = 1 - sum(q for _, q in drawn[:sibling])
        child = (*node, token)
        found.add(child)
        if depth + 1 < len(noise):
            heapq.heappush(heap, (value * mass / left, depth + 1, child, 0))
        if sibling + 1 < len(drawn):
            heapq.heappush(heap, (value * (1 - mass / left), depth, node, sibling + 1))
    return sorted(found)


@pytest.mark.parametrize(
    ("fields", "sharpness", "deep"),
    [((7, 5, total), 1.5, False) for total in (1, 4, 7)]
    + [((14, 14, 14), sharpness, sharpness > 1) for sharpness in (0.1, 3, 12)],  # unbounded
)
def test_the_slots_of_largest_value_are_those_that_the_heap_takes(fields, sharpness, deep):
    policy, model = BestSlots(*fields), random_history(4, seed=1, sharpness=sharpness)
    deepest = 0
    for trial in range(3):
        generator = torch.Generator().manual_seed(trial)
        noise = 2 * torch.randn((policy.depth, 4), generator=generator, dtype=torch.float64)
        tree = planted(policy, model, PROMPTS, draws=SameNoise(noise))
        for row, prompt in enumerate(PROMPTS):
            found = nodes_of(forest(tree, row))
            assert found == heap_tree(model, prompt, noise, policy.total)
            deepest = max(deepest, *map(len, found))
    assert (deepest > 6) == deep


def test_a_row_of_an_unbounded_tree_draws_what_it_would_draw_alone():
    policy, model = BestSlots(9, 9, 9), random_history(4, seed=3, sharpness=3)
    generators = [torch.Generator().manual_seed(row) for row in range(3)]
    together = planted(policy, model, PROMPTS, draws=SeededSource(generators))
    depths = set()
    for row, prompt in enumerate(PROMPTS):
        own = torch.Generator().manual_seed(row)
        alone = planted(policy, model, [prompt], draws=SeededSource([own]))
        assert forest(alone) == forest(together, row)
        assert torch.equal(own.get_state(), generators[row].get_state())
        depths.add(int(alone.depths.max()))
    assert len(depths) > 1


def test_as_many_levels_are_run_as_the_unbounded_tree_is_deep():
    decoder, draft, seen = watched("dyspec", 1, width=10, depth=10, total=10)
    passes, forward = 0, draft.forward

    def counting(*arguments, **more):
        nonlocal passes
        passes += not more.get("prefill", False)
        return forward(*arguments, **more)

    draft.forward = counting
    answers = decoder.generate(REQUESTS[:2], seed=0)
    recorded = [step.depth for answer in answers for step in answer.steps]
    assert recorded == [int(tree.depths.max()) for tree, _ in seen]
    assert sum(recorded) == passes
    assert len(set(recorded)) > 1


@pytest.mark.parametrize(
    ("name", "spec", "said", "fields"),
    [
        ("opt_tree", "10x6@59", "10x6@59", (10, 6, 59)),
        ("dyspec", None, "@24", (24, 24, 24)),
        ("dyspec", "@9", "@9", (9, 9, 9)),
        ("dyspec", "5x6@14", "5x6@14", (5, 6, 14)),
    ],
)
def test_a_shorthand_says_frontier_levels_and_nodes(name, spec, said, fields):
    tree = read_decoder(decoder_settings(name, spec)).tree
    assert (tree.spec, (tree.width, tree.depth, tree.total)) == (said, fields)
    assert tree.shape.depth == tree.depth


@pytest.mark.parametrize(
    ("name", "spec", "said"),
    [("opt_tree", spec, (spec, "WxL@N")) for spec in ("4x3", "4x3@0.5", "7")]
    + [("dyspec", "@200", ("total",))],  # more cache than a tree can be worth
)
def test_another_shorthand_is_refused(name, spec, said):
    with pytest.raises(ValueError, match=naming(*said)):
        read_decoder(decoder_settings(name, spec))


# The best tree for given acceptances.


def test_a_tree_is_worth_the_product_along_each_path():
    assert compute_expected_accepted_tokens([(0,), (1,), (0, 0)], [0.6, 0.3]) == pytest.approx(
        0.6 + 0.3 + 0.36
    )
    assert compute_expected_accepted_tokens([], [0.6, 0.3]) == 0


@pytest.mark.parametrize(
    ("acceptance", "nodes"),
    [
        # 0.6, 0.36, 0.3, 0.216; (0, 1) and (1, 0) are worth 0.18.
        ([0.6, 0.3], [(0,), (1,), (0, 0), (0, 0, 0)]),
        # Where estimates do not fall, a later sibling still never stands without an earlier one.
        ([0.1, 0.2, 0.6], [(0,), (1,), (2,)]),
    ],
)
def test_the_best_tree_by_hand(acceptance, nodes):
    assert build_sequoia_list(acceptance, len(nodes)) == nodes


def test_no_tree_of_so_many_nodes_is_worth_more():
    numbers = random.Random(0)
    every = [path for depth in (1, 2, 3, 4) for path in product(range(2), repeat=depth)]
    for _ in range(6):
        acceptance = sorted((numbers.random() for _ in range(2)), reverse=True)
        for size in (1, 3, 4):
            best = max(
                compute_expected_accepted_tokens(chosen, acceptance)
                for chosen in combinations(every, size)
                if all(
                    (not node[:-1] or node[:-1] in chosen)
                    and (node[-1] == 0 or (*node[:-1], node[-1] - 1) in chosen)
                    for node in chosen
                )
            )
            found = compute_expected_accepted_tokens(
                build_sequoia_list(acceptance, size), acceptance
            )
            assert found == pytest.approx(best, abs=1e-12)


def test_a_trees_depth_has_no_bound_but_its_nodes():
    assert max(map(len, build_sequoia_list([0.95, 0.01], 30))) > 20


def test_estimates_that_do_not_fall_are_averaged():
    assert pool_rising_rates([0.5, 0.1, 0.3, 0.05]) == pytest.approx([0.5, 0.2, 0.2, 0.05])
    assert pool_rising_rates([0.1, 0.2, 0.6]) == pytest.approx([0.3, 0.3, 0.3])


def test_a_fitted_tree_that_was_not_filled_in_grows_nothing():
    assert read_decoder(decoder_settings("sequoia", "@9")).spec == "@9"
    with pytest.raises(ValueError, match=naming("as many as total, 9", "got 2")):
        FittedList(((0,), (1,)), 9)
    with pytest.raises(ValueError, match="no tree of 9 nodes was fitted"):
        _ = FittedList(total=9).level_ranks_and_parents


# Medusa's sparse tree, of the accuracies of heads and ranks.


def worth(path):
    return math.prod(head[rank] for head, rank in zip(ACCURACIES, path, strict=False))


def test_the_first_nodes_are_those_of_the_largest_products():
    # 0.6, 0.3 = 0.6 * 0.5, 0.2, 0.15 = 0.6 * 0.25, 0.12 = 0.6 * 0.5 * 0.4, 0.1 = 0.2 * 0.5
    assert build_medusa_list(ACCURACIES, 6) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


@pytest.mark.parametrize("nodes", range(1, 40))
def test_no_tree_of_that_size_expects_to_accept_more_and_every_parent_comes_first(nodes):
    every = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    paths = build_medusa_list(ACCURACIES, nodes)
    assert len(set(paths)) == nodes
    for place, path in enumerate(paths):
        assert len(path) == 1 or path[:-1] in paths[:place]
    best = sorted(map(worth, every), reverse=True)[:nodes]
    assert sum(map(worth, paths)) == pytest.approx(sum(best))


def test_of_equal_worth_the_shallower_node_is_taken_and_heads_may_differ_in_ranks():
    assert build_medusa_list([[1.0, 1.0], [1.0, 1.0]], 2) == [(0,), (1,)]
    assert build_medusa_list([[0.5], [0.9, 0.8]], 3) == [(0,), (0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("accuracies", "nodes", "named"),
    [
        (ACCURACIES, 0, ("0 nodes", "1 to 39")),
        (ACCURACIES, 40, ("40 nodes", "1 to 39")),
        ([[51.0, 12.0]], 1, ("0 and 1", "51")),
    ],
)
def test_what_the_heads_cannot_make_and_what_is_no_share_are_refused(accuracies, nodes, named):
    with pytest.raises(ValueError, match=naming(*named)):
        build_medusa_list(accuracies, nodes)
