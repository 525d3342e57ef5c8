"""Decoders of dynamic trees over several iterations: laws, lengths, and what is drafted when."""

from unittest import mock

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from tests.families import DYNAMIC
from tests.tree.grown import REQUESTS, watched
from tests.tree.laws import forest, likeliest

WARM = SamplingSettings(probability_dtype="float64")


@pytest.mark.parametrize("name", DYNAMIC)
def test_every_trees_laws_are_the_drafts_behind_what_was_committed(name):
    decoder, draft, seen = watched(name, 3)
    decoder.generate(REQUESTS, seed=0)
    assert len(seen) > 5
    checked = 0
    for tree, said in seen:
        depths = tree.depths.expand(tree.tokens.shape)
        for level, (q, log_q) in enumerate(zip(tree.q, tree.log_q, strict=True)):
            for row, before in enumerate(said):
                for node in range(*tree.shape.level(level + 1).indices(tree.shape.size)):
                    if not tree.valid[row, node] or depths[row, node] != level + 1:
                        continue
                    above = int(tree.parent[row, node])
                    on_it = tree.ancestors[row, above].nonzero().flatten()[1:]
                    prefix = (*before, *tree.tokens[row, on_it].tolist())
                    wanted = draft.logits[draft.find_logits_index(prefix)].softmax(-1)
                    place = above - tree.shape.level(level).start
                    if log_q is None and q is None:
                        continue
                    law = log_q[row, place].exp() if log_q is not None else q[row, place, 0]
                    if name == "lookup_or_draft" and law.max() == 1:
                        continue  # looked up
                    torch.testing.assert_close(law, wanted, atol=1e-12, rtol=0)
                    checked += 1
    assert checked > 10 or name == "opt_tree"


def test_likeliest_nodes_are_found_behind_every_commit():
    decoder, draft, seen = watched("opt_tree", 3, width=3, depth=4, total=6, gain=None)
    decoder.generate(REQUESTS, seed=0)
    for tree, said in seen:
        for row, before in enumerate(said):
            assert forest(tree, row) == likeliest(decoder.policy, draft, before)


def test_what_a_row_records_of_its_trees_does_not_hang_on_its_neighbours():
    alone, _, _ = watched("opt_tree", 1, width=3, depth=5, total=6, gain=0.3)
    together, _, seen = watched("opt_tree", 3, width=3, depth=5, total=6, gain=0.3)
    steps = [answer.steps for answer in together.generate(REQUESTS, seed=0)]
    assert steps == [alone.generate([request], seed=0)[0].steps for request in REQUESTS]
    assert any(len(set(tree.depths.amax(dim=1).tolist())) > 1 for tree, _ in seen)
    assert len({step.depth for answer in steps for step in answer}) > 1


def test_a_chain_ends_with_the_first_token_that_the_draft_doubts():
    decoder, draft, seen = watched("sd_dynamic", 3, depth=6)
    decoder.generate(REQUESTS, seed=0)
    lengths = set()
    for tree, said in seen:
        for row, before in enumerate(said):
            chain = tree.tokens[row, 1:][tree.valid[row, 1:]].tolist()
            sure = [
                float(
                    draft.logits[draft.find_logits_index((*before, *chain[:i]))].softmax(-1)[token]
                )
                for i, token in enumerate(chain)
            ]
            assert all(chance >= 0.4 for chance in sure[:-1])
            assert sure[-1] < 0.4 or len(chain) == 6
            lengths.add(len(chain))
        assert tree.shape.depth == int(tree.valid[:, 1:].sum(dim=1).max())
    assert len(lengths) > 2


def test_confidence_is_that_of_temperature_1_when_the_text_is_greedy():
    cold = SamplingSettings(temperature=0, probability_dtype="float64")
    decoder, _, seen = watched("sd_dynamic", 1, cold, depth=6, confidence=0.6)
    decoder.generate(REQUESTS, seed=0)
    assert min(tree.shape.depth for tree, _ in seen) < 6


def test_where_all_rows_find_something_no_model_drafts():
    decoder, draft, seen = watched("lookup_or_draft", 1)
    draft.forward = mock.Mock(side_effect=draft.forward)
    decoder.generate(REQUESTS, seed=0)
    passes = sum(not call.kwargs.get("prefill") for call in draft.forward.call_args_list)
    # The law of a token looked up is one-hot; the toys' own never are.
    drafted = sum(tree.q[0].max() < 1 for tree, _ in seen)
    assert 0 < drafted < len(seen)
    assert passes == decoder.depth * drafted
