"""Every policy's trees have the law of its definition, tree by tree, siblings in their order.

A tree that has lost some of its nodes may still be verified without loss; here it shows.
"""

from itertools import product

import pytest
from scipy.stats import chisquare

from spec_bench.audit.catalogue import SETTINGS, WARM, beam_cases
from spec_bench.audit.decoders import FALSE_ALARM_RATE
from spec_bench.tree.base import AuditTree, GrownTree, policy
from spec_bench.tree.widths import StochasticBeam
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
