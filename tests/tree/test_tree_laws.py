"""Every policy's trees have the law of its definition, siblings in order; wrong ones are caught."""

from itertools import product

import pytest
from scipy.stats import chisquare

from spec_bench.audit.catalogue import SETTINGS, WARM, beam_cases
from spec_bench.audit.decoders import FALSE_ALARM_RATE, enumerated_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.decode.config import read_decoder
from spec_bench.tree.base import AuditTree, GrownTree, policy
from spec_bench.tree.chain import DynamicChain
from spec_bench.tree.dynamic import BestSlots
from spec_bench.tree.widths import IidPaths, StochasticBeam, Widths
from tests.tree import laws
from tests.tree.definitions import DEFINITIONS

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
    """The first W distinct beginnings, level by level, of whole sequences drawn one by one."""
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


@pytest.mark.parametrize("case", beam_cases(), ids=lambda case: case.name)
def test_draft_beams_are_drawn_out_of_all_that_continue_the_layer_above(case):
    found = laws.drafted_beams(case.config, case.tree)
    defined = laws.defined(DEFINITIONS[case.tree.policy.name], case.tree, WARM)
    assert laws.distance(found, defined) <= 1e-12


LM = {"kind": "language_model"}
REJECTION = {"rule": "recursive_rejection", "replacement": False}
TRAVERSAL = {"rule": "traversal"}


class CutByToken(BestSlots):
    """A slot is kept for the probability of the token that was drawn into it."""

    def children(self, tree, scores, above, draws, **more):
        tokens, score, _, log_q = super().children(tree, scores, above, draws, **more)
        return tokens, score, score, log_q


class ReversedSlots(BestSlots):
    """Siblings are tested in the reverse of the order drawn."""

    def children(self, tree, scores, above, draws, **more):
        tokens, score, value, log_q = super().children(tree, scores, above, draws, **more)
        return tokens.flip(-1), score.flip(-1), value, log_q


class Reranked(Widths):
    """Siblings are drawn, and then tested from the draft's likeliest on."""

    def grow(self, tree, scores, draws):
        super().grow(tree, scores, draws)
        nodes, width = tree.frontier, self.widths[tree.grown - 1]
        tokens = tree.tokens[:, nodes].unflatten(1, (-1, width))
        order = scores[:, :, 0].gather(-1, tokens).sort(dim=-1, descending=True).indices
        tree.tokens[:, nodes] = tokens.gather(-1, order).flatten(1)


class Dropped(DynamicChain):
    """The token that stopped the chain is not verified."""

    def plant(self, ground):
        tree = super().plant(ground)
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

    def grow(self, tree, scores, draws):
        super().grow(tree, scores, draws)
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
    return enumerated_error(read_decoder(given, WARM), WARM, vocab=3, seed=3, alter=alter)[0]


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
