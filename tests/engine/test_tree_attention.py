"""Tree attention is exact: a node's logits are those of its path alone, after a commit too.

Without it the paths of a tree are rows of their own: same tokens, more work.
"""

import pytest
import torch

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


def plain_logits(module, tokens):
    with torch.inference_mode():
        return module(torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_node_of_ragged_rows_equals_its_path_alone(architecture):
    model, _ = tiny_pair(architecture, torch.float64)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
    cache = model.allocate(len(prompts), 32)
    for row, prompt in enumerate(prompts):
        prefill(model, cache, row, prompt)
    tree = random_tree(len(prompts))
    lengths = [len(prompt) for prompt in prompts]
    logits = run_nodes(model, cache, tree, lengths, slice(0, SHAPE.size)).logits
    for row, prompt in enumerate(prompts):
        for node in range(SHAPE.size):
            path = [int(tree.tokens[row, n]) for n in tree.ancestors[row, node].nonzero()]
            alone = plain_logits(model.module, prompt + path)
            assert torch.allclose(logits[row, node], alone, atol=1e-9), (row, node)


@pytest.mark.parametrize("at_once", [False, True], ids=["row by row", "all rows at once"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_after_a_commit_equal_a_fresh_run(architecture, at_once):
    model, _ = tiny_pair(architecture, torch.float64)
    prompts, path = [[3, 1, 4], [9, 2, 6, 5]], [0, 2, 6, 10]
    cache = model.allocate(2, 40)
    for row, prompt in enumerate(prompts):
        prefill(model, cache, row, prompt)
    tree = random_tree(2)
    lengths = [len(prompt) for prompt in prompts]
    run_nodes(model, cache, tree, lengths, slice(0, SHAPE.size))
    if at_once:  # as on a GPU
        cache.commit_all(lengths, torch.tensor([path] * 2))
    for row, length in enumerate([] if at_once else lengths):
        cache.commit(row, length, path)
    committed = [prompt + tree.tokens[row, path].tolist() for row, prompt in enumerate(prompts)]
    again = random_tree(2)
    lengths = [len(tokens) for tokens in committed]
    logits = run_nodes(model, cache, again, lengths, slice(0, SHAPE.size)).logits
    for row, tokens in enumerate(committed):
        alone = plain_logits(model.module, [*tokens, int(again.tokens[row, 0])])
        assert torch.allclose(logits[row, 0], alone, atol=1e-9)


def test_a_moved_row_goes_on_as_if_it_had_always_been_there():
    model, _ = tiny_pair("llama", torch.float64)
    cache = model.allocate(2, 24)
    prefill(model, cache, 0, [1, 2])
    prefill(model, cache, 1, [7, 8, 9])
    cache.move_row(1, 0, 3)
    tree = random_tree(1)
    logits = run_nodes(model, cache, tree, [3], slice(0, 1)).logits
    alone = plain_logits(model.module, [7, 8, 9, int(tree.tokens[0, 0])])
    assert torch.allclose(logits[0, 0], alone, atol=1e-9)


def test_a_prompt_prefilled_in_chunks_is_the_same(monkeypatch):
    model, _ = tiny_pair("llama", torch.float64)
    prompt = list(range(11))
    monkeypatch.setattr("spec_bench.engine.tree_pass.PREFILL_CHUNK", 4)
    cache = model.allocate(1, 24)
    prefill(model, cache, 0, prompt)
    tree = random_tree(1)
    logits = run_nodes(model, cache, tree, [11], slice(0, 1)).logits
    alone = plain_logits(model.module, [*prompt, int(tree.tokens[0, 0])])
    assert torch.allclose(logits[0, 0], alone, atol=1e-9)


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
        scorer.prefill(0, [9, 8, 7, 6])
        scores.append(scorer.score(random_tree(1), [4]).logits)
    assert scores[0].shape == (1, 11, target.vocab_size)
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)
