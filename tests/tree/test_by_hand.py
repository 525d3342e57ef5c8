"""Trees small enough to be written down: which nodes there are, of given numbers and draws."""

import math
from types import SimpleNamespace

import pytest
import torch

from spec_bench.core.host_device import CommittedTokens
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.base import DraftState
from spec_bench.tree.base import GrowthContext
from spec_bench.tree.beams import HeadBeams
from spec_bench.tree.chain import DynamicChain
from spec_bench.tree.dynamic import BestNodes, BestSlots
from spec_bench.tree.node_list import SampledList, pool_rising_rates
from spec_bench.tree.widths import StochasticBeam, TopAndSample
from spec_bench.verify.children import find_nodes_with_children
from spec_bench.verify.path_rule import compute_child_distributions

EXACT = SamplingSettings(probability_dtype="float64")


class Drafts(DraftState):
    """The same probabilities behind every node; whole beams where they are given."""

    def __init__(self, probs, beams=()):
        self._logits = torch.tensor(probs, dtype=torch.float64).log()
        self._beams = torch.tensor([beams])

    def root_logits(self, committed):
        return self._logits.expand(len(committed), 1, 1, -1)

    def frontier_logits(self, tree, committed):
        nodes = tree.frontier
        return self._logits.expand(len(committed), nodes.stop - nodes.start, 1, -1)

    def search_beams(self, roots, width, length):
        return self._beams


def given(*numbers):
    """Draws that hand out these, one for each call."""
    left = iter(torch.tensor(each, dtype=torch.float64) for each in numbers)
    return SimpleNamespace(
        gumbel=lambda like, *_: next(left).view_as(like),
        categorical=lambda probs, count: next(left).long().view(*probs.shape[:2], count),
    )


def planted(policy, drafts, draws=None, settings=EXACT):
    context = GrowthContext(
        drafts, CommittedTokens([[0]]), torch.device("cpu"), settings, draws or given()
    )
    return policy.grow_tree(context)


def paths(tree):
    """The tokens from below the root to each node that is there."""
    found = {0: ()}
    for node in tree.valid[0].nonzero().flatten().tolist()[1:]:
        found[node] = (*found[int(tree.parent[0, node])], int(tree.tokens[0, node]))
    return [*found.values()][1:]


def kool(value, perturbed):
    """Children's values, given that the largest is their parent's (Kool et al. 2019, eq. 23)."""
    largest = max(perturbed)
    parts = [math.exp(-value) - math.exp(-largest) + math.exp(-each) for each in perturbed]
    return [-math.log(each) for each in parts]


def test_a_stochastic_beam_goes_on_by_values_whose_largest_below_a_node_is_the_nodes_own():
    law, above = [0.5, 0.25, 0.25], [[0.4, -1.0, 0.1], [2.0, 0.5, 1.5], [3.0, 2.5, 2.8]]
    draws = given(above[0], above[1:])
    tree = planted(StochasticBeam(2, 2), Drafts(law), draws)
    # Below the root, whose value is 0: tokens 0 and 2 by decreasing log q + noise.
    first = kool(0.0, [math.log(q) + noise for q, noise in zip(law, above[0], strict=True)])
    (one, two), (best, second) = [0, 2], [first[0], first[2]]
    assert paths(tree)[:2] == [(one,), (two,)] and first[0] == pytest.approx(0)
    below = {}
    for token, value, noise in ((one, best, above[1]), (two, second, above[2])):
        log_q = math.log(law[token])
        values = kool(value, [log_q + math.log(q) + g for q, g in zip(law, noise, strict=True)])
        assert max(values) == pytest.approx(value)
        below |= {(token, child): each for child, each in enumerate(values)}
    wanted = sorted(below, key=below.get, reverse=True)[:2]
    assert paths(tree)[2:] == wanted
    # Untruncated, the second node's best child would be the first of all.
    assert wanted == [(one, 0), (one, 2)]
    assert tree.carried[1][0].tolist() == pytest.approx([below[path] for path in wanted])


def test_two_children_drawn_beside_the_best_have_its_distribution_without_the_best():
    tree = planted(TopAndSample((3,), sampled=2), Drafts([0.5, 0.3, 0.2]), given([2.0, 1.0]))
    assert paths(tree) == [(2,), (1,), (0,)]
    laws = compute_child_distributions(
        tree, 0, find_nodes_with_children(tree, 0), tree.tokens[:, None, 1:]
    )
    assert laws is not None
    assert laws[0, 0].tolist() == [pytest.approx([0, 0.6, 0.4])] * 2  # the third is one-hot


def test_where_the_best_are_all_that_is_left_nothing_is_drawn_beside_them():
    settings = SamplingSettings(top_k=2, probability_dtype="float64")
    tree = planted(TopAndSample((3,)), Drafts([0.5, 0.3, 0.2]), given([2.0]), settings)
    assert paths(tree) == [(0,), (1,)]


@pytest.mark.parametrize(
    ("confidence", "path", "levels"),
    [(0.0, 0.2, 3), (0.5, None, 5), (0.51, None, 1), (0.0, 0.125, 4), (0.0, None, 5)],
)
def test_a_chain_stops_after_the_token_by_which_its_confidences_product_is_too_small(
    confidence, path, levels
):
    settings = SamplingSettings(draft_temperature=0, probability_dtype="float64")
    draws = given(*[[0.0]] * 5)
    chain = DynamicChain(5, confidence, path)
    tree = planted(chain, Drafts([0.5, 0.5]), draws, settings)
    assert tree.shape.depth == levels  # 1/2, 1/4, 1/8 and so on
    with pytest.raises(StopIteration):  # all five levels' numbers are drawn in any case
        draws.categorical(torch.ones(1, 1, 2), 1)


def test_a_rank_beyond_the_tokens_that_top_k_leaves_is_no_child():
    settings = SamplingSettings(top_k=1, probability_dtype="float64")
    noise = [0.0, 0.0, 0.0]
    policy = SampledList(((0,), (1,), (0, 0), (1, 0)))
    tree = planted(policy, Drafts([0.5, 0.3, 0.2]), given(noise, [noise] * 2), settings)
    assert paths(tree) == [(0,), (0, 0)]


@pytest.mark.parametrize(("gain", "levels"), [(1.0, 2), (0.99, 3)])
def test_a_tree_ends_with_the_level_that_gains_no_more_than_asked(gain, levels):
    tree = planted(BestNodes(2, 3, 99, gain), Drafts([0.5, 0.5]))
    assert int(tree.depths.amax()) == levels  # every level adds 1 expected token


def test_a_slot_that_is_worth_as_much_as_a_shallower_one_costs_no_pass():
    # At the root 1 and 1/2; below the first child 1/2: of two nodes both are the root's.
    tree = planted(BestSlots(2, 2, 2), Drafts([0.5, 0.5]), given([0.0, 0.0]))
    assert paths(tree) == [(0,), (1,)]


def test_a_dynamic_tree_takes_slots_for_all_that_run_and_all_that_are_verified():
    assert BestNodes(2, 2, 6).cache_slots == 1 + 6  # of 1 + 2 + 2 that run, 2 + 4 candidates
    assert BestNodes(3, 2, 3).cache_slots == 1 + 7


def test_neighbours_are_averaged_until_acceptance_falls_with_rank():
    assert pool_rising_rates([0.5, 0.4, 0.6, 0.9]) == pytest.approx([0.6] * 4)
    assert pool_rising_rates([0.9, 0.2, 0.4]) == pytest.approx([0.9, 0.3, 0.3])


@pytest.mark.parametrize(
    ("attention", "nodes"),
    [(True, [(1,), (1, 2), (1, 3)]), (False, [(1,), (1,), (1, 2), (1, 3)])],
)
def test_beams_share_the_nodes_of_a_prefix_under_tree_attention_alone(attention, nodes):
    policy = HeadBeams(2, 2).adapt_to_attention(attention)
    assert paths(planted(policy, Drafts([1.0], [[1, 2], [1, 3]]))) == nodes
    assert policy.walk_merges_copies is not attention
