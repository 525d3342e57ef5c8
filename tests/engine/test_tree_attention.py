"""Tree attention is exact: a node's logits are those of its path alone, after a commit too.

Without it the paths of a tree are rows of their own: same tokens, more work.
"""

import pytest
import torch

from spec_bench.core.host_device import HostDeviceInts
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.engine.cache import CachePool
from spec_bench.engine.tree_pass import PathScorer, TreeScorer, prefill, run_nodes
from tests.families import ARCHITECTURES, VOCAB, WARM, built, random_requests, tiny_pair
from tests.said import naming

SHAPE = TreeShape(levels=(2, 4, 4), children=(2, 2, 1))
PARENTS = ([0, 0], [0, 0, 1, 1], [0, 1, 2, 3])


def random_tree(rows):
    generator = torch.Generator().manual_seed(1)
    tree = Tree(SHAPE, torch.randint(0, VOCAB, (rows,), generator=generator))
    for parents in PARENTS:
        tokens = torch.randint(0, VOCAB, (rows, len(parents)), generator=generator)
        there = torch.ones_like(tokens, dtype=torch.bool)
        tree.add_level(tokens, torch.tensor(parents), there, None)
    return tree


def assert_nodes_see_their_paths(model, cache, texts):
    """Behind what a cache holds a tree's nodes have the logits of each node's text alone."""
    tree, lengths = random_tree(len(texts)), [len(text) for text in texts]
    logits = run_nodes(model, cache, tree, lengths, slice(0, SHAPE.size)).logits
    for row, text in enumerate(texts):
        for node in range(SHAPE.size):
            path = tree.tokens[row, tree.ancestors[row, node].nonzero().flatten()].tolist()
            with torch.inference_mode():
                alone = model.module(torch.tensor([[*text, *path]])).logits[0, -1]
            assert torch.allclose(logits[row, node], alone, atol=1e-9), (row, node)
    return tree


def holding(architecture, prompts):
    """A model, and a cache of it that holds prompts."""
    model, _ = tiny_pair(architecture, torch.float64)
    cache = model.allocate(len(prompts), 40)
    for row, prompt in enumerate(prompts):
        prefill(model, cache, row, prompt)
    return model, cache


@pytest.mark.parametrize("at_once", [False, True], ids=["row by row", "all rows at once"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_node_of_ragged_rows_equals_its_path_alone_after_a_commit_too(architecture, at_once):
    prompts, path = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]], [0, 2, 6, 10]
    model, cache = holding(architecture, prompts)
    tree = assert_nodes_see_their_paths(model, cache, prompts)
    lengths = [len(prompt) for prompt in prompts]
    if at_once:  # as on a GPU
        cache.commit_all(lengths, torch.tensor([path] * 3))
    for row, length in enumerate([] if at_once else lengths):
        cache.commit(row, length, path)
    grown = [prompt + tree.tokens[row, path].tolist() for row, prompt in enumerate(prompts)]
    assert_nodes_see_their_paths(model, cache, grown)


def test_passes_over_one_tree_behind_other_lengths_share_nothing():
    model, cache = holding("llama", [[3, 1, 4], [9, 2]])
    tree, found = random_tree(2), []
    for lengths in map(HostDeviceInts, ([3, 2], [3, 2], [1, 2])):
        found.append(run_nodes(model, cache, tree, lengths, slice(0, SHAPE.size)).logits)
    assert torch.allclose(found[0], found[1])
    assert torch.allclose(found[0][1], found[2][1])
    assert not torch.allclose(found[0][0], found[2][0])


def test_a_moved_row_goes_on_as_if_it_had_always_been_there():
    model, cache = holding("llama", [[1, 2], [7, 8, 9]])
    cache.move_row(1, 0, 3)
    assert_nodes_see_their_paths(model, cache, [[7, 8, 9]])


def test_a_prompt_prefilled_in_chunks_is_the_same(monkeypatch):
    monkeypatch.setattr("spec_bench.engine.tree_pass.PREFILL_CHUNK", 4)
    prompt = list(range(11))
    assert_nodes_see_their_paths(*holding("llama", [prompt]), [prompt])


def test_a_cache_without_room_says_how_much_is_missing():
    model, _ = tiny_pair("llama")
    cache = model.allocate(1, 4)
    with pytest.raises(ValueError, match=naming("4 slots", "6")):
        prefill(model, cache, 0, [1, 2, 3, 4, 5, 6])


REQUESTS = random_requests(5, 16)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "name", ["sd", "spectr", "specinfer", "mcsd", "mcsd_wor", "mcns", "rsd_c", "traversal"]
)
def test_tokens_do_not_depend_on_tree_attention(name, rows):
    one, other = (
        [g.tokens for g in built(asked, tiny_pair("llama"), WARM, rows).generate(REQUESTS, 3)]
        for asked in (name, f"{name} apart")
    )
    assert one == other


def test_scores_of_every_node_agree_with_tree_attention():
    target, _ = tiny_pair("llama")
    scores = []
    for scorer in (TreeScorer(target, CachePool()), PathScorer(target, CachePool(), SHAPE)):
        scorer.reserve(1, 32)
        scorer.prefill(0, [9, 8, 7, 6], print)
        scores.append(scorer.score(random_tree(1), [4]).logits)
    assert scores[0].shape == (1, 11, target.vocab_size)
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)
