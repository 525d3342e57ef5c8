"""Without tree attention the paths of a tree are rows of their own: same tokens, more work."""

import pytest
import torch

from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.engine.cache import CachePool
from spec_bench.engine.tree_pass import PathScorer, TreeScorer
from tests.families import decoder_settings, random_requests, tiny_pair
from tests.said import naming


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "name", ["sd", "spectr", "specinfer", "mcsd", "mcsd_wor", "mcns", "rsd_c", "traversal"]
)
def test_tokens_do_not_depend_on_tree_attention(name, rows):
    target, draft = tiny_pair("llama")
    requests = random_requests(5, 16)
    answers = []
    for attention in (True, False):
        settings = {**decoder_settings(name), "tree_attention": attention}
        decoder = build_decoder(settings, target, [draft], SamplingSettings(temperature=1.0), rows)
        batches = [requests[i : i + rows] for i in range(0, len(requests), rows)]
        answers.append([g.tokens for batch in batches for g in decoder.generate(batch, 3)])
    assert answers[0] == answers[1]


def test_scores_of_every_node_agree_with_tree_attention():
    target, _ = tiny_pair("llama")
    shape = TreeShape((2, 4, 4), (2, 2, 1))
    tree = Tree(shape, torch.tensor([5]))
    for level, count in enumerate(shape.levels):
        parent = torch.arange(count) * (1, *shape.levels)[level] // count
        tokens = (torch.arange(count) * 7 + level * 3 + 4) % 50
        tree.add_level(tokens.unsqueeze(0), parent, torch.ones(1, count, dtype=torch.bool), None)
    scores = []
    for scorer in (TreeScorer(target, CachePool()), PathScorer(target, CachePool(), shape)):
        scorer.reserve(1, 32)
        scorer.prefill(0, [9, 8, 7, 6])
        scores.append(scorer.score(tree, [4]).logits)
    assert scores[0].shape == (1, 11, target.vocab_size)
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)


def test_paths_that_differ_from_call_to_call_are_refused_as_rows():
    with pytest.raises(ValueError, match=r"fixed paths.*'stochastic_beam'"):
        read_decoder({**decoder_settings("rsd_s"), "tree_attention": False})
    with pytest.raises(ValueError, match=naming("true", "false", "'no'")):
        read_decoder({**decoder_settings("sd"), "tree_attention": "no"})
