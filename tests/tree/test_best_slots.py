"""DySpec's tree, found level by level, is the one that its heap of open slots makes."""

import heapq
import math

import pytest
import torch

from spec_bench.audit.toys import random_history
from spec_bench.core.draws import SeededDraws
from spec_bench.decode.config import read_decoder
from spec_bench.tree.dynamic import BestSlots
from tests.decode.test_dynamic import REQUESTS, watched
from tests.families import decoder_settings
from tests.tree.test_dynamic import PROMPTS, paths, planted


class SameNoise(SeededDraws):
    """The same noise for every node of a level, so that a heap can be given it too."""

    def __init__(self, noise):
        super().__init__([])
        self._noise, self._level = noise, -1

    def gumbel(self, like, counts=None):
        self._level += 1
        return self._noise[self._level].expand_as(like)


def heap_tree(model, prompt, noise, total):
    """DySpec's Algorithm: pop the best slot, draw into it, open the slots below and beside it."""

    def order(path):
        log_q = model.logits[model.place((*prompt, *path))].log_softmax(-1)
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
    return found


@pytest.mark.parametrize("total", [1, 4, 7])
def test_the_slots_of_largest_value_are_those_that_the_heap_takes(total):
    model = random_history(4, seed=total)
    for trial in range(4):
        generator = torch.Generator().manual_seed(trial)
        noise = 2 * torch.randn((5, 4), generator=generator, dtype=torch.float64)
        tree = planted(BestSlots(7, 5, total), model, PROMPTS, draws=SameNoise(noise))
        for row, prompt in enumerate(PROMPTS):
            assert paths(tree, row) == heap_tree(model, prompt, noise, total)


def test_a_tree_of_a_sharp_draft_is_deep_and_of_a_flat_one_wide():
    sharp, flat = (random_history(4, seed=0, sharpness=s) for s in (8.0, 0.1))
    depths = [
        max(map(len, paths(planted(BestSlots(6, 6, 6), model, PROMPTS[:1]), 0)))
        for model in (sharp, flat)
    ]
    assert depths[0] > depths[1]


def test_the_decoder_has_no_bound_but_its_nodes_and_a_bounded_one_says_so():
    specs = {
        spec: read_decoder(decoder_settings("dyspec", spec)) for spec in (None, "@9", "5x6@14")
    }
    assert [config.spec for config in specs.values()] == ["@24", "@9", "5x6@14"]
    assert [config.tree.shape.depth for config in specs.values()] == [24, 9, 6]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="total"):
        read_decoder(decoder_settings("dyspec", "@200"))  # more cache than a tree can be worth


@pytest.mark.parametrize("sharpness", [0.1, 3.0, 12.0])
def test_an_unbounded_tree_is_the_heaps_however_deep_it_goes(sharpness):
    model, total = random_history(4, seed=1, sharpness=sharpness), 14
    deepest = 0
    for trial in range(3):
        generator = torch.Generator().manual_seed(trial)
        noise = 2 * torch.randn((total, 4), generator=generator, dtype=torch.float64)
        tree = planted(BestSlots(total, total, total), model, PROMPTS, draws=SameNoise(noise))
        for row, prompt in enumerate(PROMPTS):
            found = paths(tree, row)
            assert found == heap_tree(model, prompt, noise, total)
            deepest = max(deepest, *map(len, found))
    assert (deepest > 6) == (sharpness > 1)


def test_a_row_of_an_unbounded_tree_draws_what_it_would_draw_alone():
    policy = BestSlots(9, 9, 9)
    model = random_history(4, seed=3, sharpness=3)
    generators = [torch.Generator().manual_seed(row) for row in range(3)]
    together = planted(policy, model, PROMPTS, draws=SeededDraws(generators))
    after = [float(torch.rand(1, generator=generator)) for generator in generators]
    depths = set()
    for row, prompt in enumerate(PROMPTS):
        own = torch.Generator().manual_seed(row)
        alone = planted(policy, model, [prompt], draws=SeededDraws([own]))
        assert paths(alone, 0) == paths(together, row)
        assert float(torch.rand(1, generator=own)) == after[row]
        depths.add(int(alone.depths.max()))
    assert len(depths) > 1


def test_as_many_levels_are_run_as_the_unbounded_tree_is_deep():
    decoder, draft, seen = watched("dyspec", 1, width=10, depth=10, total=10)
    passes, forward = 0, draft.forward

    def counting(*arguments, **more):
        nonlocal passes
        passes += not more.get("prefill", False)
        return forward(*arguments, **more)

    draft.forward = counting  # type: ignore[method-assign]
    answers = decoder.generate(REQUESTS[:2], seed=0)
    recorded = [step.depth for answer in answers for step in answer.steps]
    assert recorded == [int(tree.depths.max()) for tree, _ in seen]
    assert sum(recorded) == passes
    assert len(set(recorded)) > 1
