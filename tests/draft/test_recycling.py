"""The table of Token Recycling: the last node's word, a row of its own, proposals by rank."""

import torch

from spec_bench.audit.toys import random_markov
from spec_bench.core.transfer import Committed
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import Equipment
from spec_bench.draft.recycling import RecyclingDrafting
from tests.families import decoder_settings, random_requests, tiny_pair

CPU = torch.device("cpu")


def drafting(rows=1):
    return RecyclingDrafting(Equipment(random_markov(4, seed=0), [], [], None, rows), 2)


def verified(roots, children):
    """Trees of a root and two children."""
    tree = Tree(TreeShape((2,), (2,)), torch.tensor(roots), "deterministic")
    tokens = torch.tensor(children)
    zeros = torch.zeros_like(tokens)
    tree.add_level(tokens, zeros, torch.ones_like(tokens, dtype=torch.bool), None)
    return tree


def logits(*best):
    """[1, N, 4]: of every node the best two tokens."""
    scores = torch.zeros((1, len(best), 4))
    for node, (first, second) in enumerate(best):
        scores[0, node, first], scores[0, node, second] = 2.0, 1.0
    return scores


def test_rejected_nodes_count_and_of_equal_tokens_the_last_node():
    made = drafting()
    made.see_scores(verified([3], [[1, 1]]), logits((0, 1), (2, 3), (3, 2)))
    assert made.tables[0, 3].tolist() == [0, 1]
    assert made.tables[0, 1].tolist() == [3, 2]
    made.see_scores(verified([1], [[2, 0]]), logits((1, 0), (0, 1), (0, 1)))
    assert made.tables[0, 1].tolist() == [1, 0]
    assert made.tables[0, 3].tolist() == [0, 1]


def test_nodes_that_are_not_there_say_nothing():
    made = drafting()
    tree = verified([3], [[1, 1]])
    tree.valid[0, 2] = False
    made.see_scores(tree, logits((0, 1), (2, 3), (3, 2)))
    assert made.tables[0, 1].tolist() == [2, 3]


def test_proposals_are_the_tables_by_rank_and_token_zero_where_nothing_is_known():
    made = drafting()
    made.see_scores(verified([3], [[1, 2]]), logits((2, 0), (2, 3), (3, 2)))
    below = made.at_root(Committed([[0, 3]]))
    assert below.shape == (1, 1, 1, 4)
    assert below.flatten().tolist() == [-1.0, -torch.inf, 0.0, -torch.inf]
    unknown = made.at_root(Committed([[3, 0]])).flatten()
    assert unknown.tolist() == [0.0, -torch.inf, -torch.inf, -torch.inf]


def test_a_row_that_moves_takes_its_table_along_and_a_new_one_begins_empty():
    made = drafting(rows=2)
    made.see_scores(
        verified([3, 2], [[1, 1], [1, 1]]), logits((0, 1), (2, 3), (3, 2)).repeat(2, 1, 1)
    )
    made.move_row(1, 0)
    assert made.tables[0, 2].tolist() == [0, 1]
    made.start(1, [1, 2])
    assert not made.tables[1].any()


def test_a_row_of_a_batch_drafts_as_it_does_alone():
    target, _ = tiny_pair("llama", torch.float64)
    found = []
    for rows in (1, 3):
        settings = decoder_settings("token_recycling")
        decoder = build_decoder(settings, target, [], SamplingSettings(), rows)
        found.append(decoder.generate(random_requests(5, 24), seed=0))
    assert [each.tokens for each in found[0]] == [each.tokens for each in found[1]]
    assert [each.steps for each in found[0]] == [each.steps for each in found[1]]
