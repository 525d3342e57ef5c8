"""Dynamic trees hold the nodes that they say, on models whose laws depend on the whole path."""

import itertools

import pytest
import torch

from spec_bench.audit.toys import random_history
from spec_bench.core.draws import SeededDraws
from spec_bench.core.transfer import Committed
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder, resolve_spec
from spec_bench.draft.base import Equipment
from spec_bench.draft.language_model import LanguageModelDrafting
from spec_bench.tree.base import Ground
from spec_bench.tree.dynamic import BestNodes
from tests.families import decoder_settings
from tests.said import naming

Path = tuple[int, ...]
WARM = SamplingSettings(probability_dtype="float64")
PROMPTS = [(1, 0, 2, 1), (0, 0, 1), (2, 2, 2, 0, 1)]


def planted(policy, model, prompts, settings=WARM, draws=None):
    """The trees of a batch."""
    given = Equipment(model, [model], [model.allocate(3, 64)], None, 3)
    drafting = LanguageModelDrafting(given)
    for row, prompt in enumerate(prompts):
        drafting.start(row, prompt)
    committed = Committed(prompts)
    drafting.needs(committed)
    generators = [torch.Generator().manual_seed(row) for row in range(len(prompts))]
    draws = draws or SeededDraws(generators)
    return policy.plant(Ground(drafting, committed, torch.device("cpu"), settings, draws))


def paths(tree, row):
    """The tokens from below the root to each node that is there."""
    found = []
    for node in range(1, tree.shape.size):
        if tree.valid[row, node]:
            on_it = tree.ancestors[row, node].nonzero().flatten()[1:]
            found.append(tuple(tree.tokens[row, on_it].tolist()))
            above = tree.ancestors[row, tree.parent[row, node]].nonzero().flatten()
            assert on_it.tolist() == [*above[1:].tolist(), node]
    assert len(set(found)) == len(found)
    return set(found)


def chance(model, prompt, path):
    """The draft's probability of a path."""
    log_p, said = 0.0, list(prompt)
    for token in path:
        log_p += float(model.logits[model.place(said)].log_softmax(-1)[token])
        said.append(token)
    return float(torch.tensor(log_p).exp())


def eagle(model, prompt, width, depth, total):
    """EAGLE-2's tree by its paper: expand, keep the best for the next level, rerank all."""
    frontier = [()]
    every = []
    for _ in range(depth):
        candidates = []
        for path in frontier:
            children = [(*path, token) for token in range(model.vocab_size)]
            children.sort(key=lambda child: -chance(model, prompt, child))
            candidates += children[:width]
        every += candidates
        frontier = sorted(candidates, key=lambda path: -chance(model, prompt, path))[:width]
    return set(sorted(every, key=lambda path: -chance(model, prompt, path))[:total])


@pytest.mark.parametrize(("width", "depth", "total"), [(2, 4, 7), (3, 3, 5), (1, 3, 3), (2, 3, 40)])
def test_the_nodes_are_eagles(width, depth, total):
    model = random_history(5, seed=width)
    tree = planted(BestNodes(width, depth, total), model, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        assert paths(tree, row) == eagle(model, prompt, width, depth, total)


def test_no_tree_of_so_many_nodes_has_more_of_the_drafts_probability():
    """OPT-Tree's theorem, and the nodes are found by looking at as many as are kept."""
    model = random_history(3, seed=2)
    every = [path for depth in (1, 2, 3) for path in itertools.product(range(3), repeat=depth)]
    for row, prompt in enumerate(PROMPTS):
        best = sorted(every, key=lambda path: -chance(model, prompt, path))[:6]
        assert paths(planted(BestNodes(6, 3, 6), model, PROMPTS), row) == set(best)


def test_a_row_drafts_on_only_while_that_pays_whatever_its_neighbours_do():
    model = random_history(4, seed=3, sharpness=3)
    alone = [paths(planted(BestNodes(3, 5, 6, gain=0.3), model, [p]), 0) for p in PROMPTS]
    together = planted(BestNodes(3, 5, 6, gain=0.3), model, PROMPTS)
    assert [paths(together, row) for row in range(3)] == alone
    depths = [max(map(len, found)) for found in alone]
    assert min(depths) < max(depths) <= 5
    for depth, prompt, found in zip(depths, PROMPTS, alone, strict=True):
        for levels in range(2, depth + 1):
            expect = [
                sum(chance(model, prompt, path) for path in eagle(model, prompt, 3, upto, 6))
                for upto in (levels - 1, levels)
            ]
            assert expect[1] - expect[0] > 0.3 or levels == depth
        assert found == eagle(model, prompt, 3, 5, 6) or depth < 5


def test_siblings_stand_in_order_of_rank_and_a_row_keeps_its_number_of_nodes():
    tree = planted(BestNodes(3, 4, 8), random_history(4, seed=1), PROMPTS)
    assert tree.valid[:, 1:].sum(dim=1).tolist() == [8, 8, 8]
    model, counts = random_history(4, seed=1), []
    for row, prompt in enumerate(PROMPTS):
        first = [t for t in range(1, 9) if tree.valid[row, t] and tree.depths[row, t] == 1]
        chances = [chance(model, prompt, (int(tree.tokens[row, node]),)) for node in first]
        assert chances == sorted(chances, reverse=True)
        counts.append(len(chances))
    assert max(counts) > 1


def test_scores_know_no_temperature():
    model = random_history(4, seed=1)
    cold = SamplingSettings(temperature=0.2, top_p=0.5, probability_dtype="float64")
    warm, cold_tree = (planted(BestNodes(3, 3, 6), model, PROMPTS, s) for s in (WARM, cold))
    assert all(paths(warm, row) == paths(cold_tree, row) for row in range(3))


def test_more_children_than_tokens_are_absent():
    model = random_history(2, seed=0)
    tree = planted(BestNodes(4, 2, 9), model, [(1, 0)])
    assert paths(tree, 0) == {(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_shorthand_says_frontier_levels_and_nodes():
    settings = resolve_spec(decoder_settings("opt_tree"), "10x6@59")
    tree = read_decoder(settings).tree
    assert (tree.spec, tree.width, tree.depth, tree.total) == ("10x6@59", 10, 6, 59)  # type: ignore[attr-defined]
    for wrong in ("4x3", "4x3@0.5", "7"):
        with pytest.raises(ValueError, match=naming(wrong, "WxL@N")):
            resolve_spec(decoder_settings("opt_tree"), wrong)
