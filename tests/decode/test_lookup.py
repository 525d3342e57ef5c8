"""Without a draft model: the text is plain decoding's, token for token, at any temperature."""

import pytest
import torch

from spec_bench.core.draws import SeededDraws
from spec_bench.core.warp import SamplingSettings
from spec_bench.metrics.calls import lengths_of
from spec_bench.records.types import Request
from tests.families import GREEDY, built, random_requests, tiny_pair

LOOKUPS = ("prompt_lookup", "lookup_vote", "suffix_lookup")
# Prompts that repeat themselves, so that there is something to look up.
REQUESTS = [
    Request(r.prompt_id, tuple(r.prompt_ids) * 3, 12 + 5 * (index % 3))
    for index, r in enumerate(random_requests(6, 1))
]


def answers(name, temperature, rows, **blocks):
    settings = SamplingSettings(temperature, top_k=3, probability_dtype="float64")
    decoder = built(name, tiny_pair("llama", torch.float64), settings, rows, **blocks)
    return decoder.generate(REQUESTS, seed=5)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", LOOKUPS)
def test_the_text_is_plain_decodings_whatever_the_batch(name, temperature):
    plain = [g.tokens for g in answers("ar", temperature, 1)]
    alone = answers(name, temperature, 1)
    assert [g.tokens for g in alone] == plain
    assert [g.tokens for g in answers(name, temperature, 4)] == plain
    assert sum(step.accepted for g in alone for step in g.steps) > 5  # it did guess something


@pytest.mark.parametrize("name", [*LOOKUPS, "lookup_or_draft"])
def test_lengths_in_other_tools_words_do_not_hang_on_the_batch(name):
    alone, together = answers(name, 0.7, 1), answers(name, 0.7, 3)
    assert [g.tokens for g in together] == [g.tokens for g in alone]
    assert lengths_of(together) == lengths_of(alone)
    assert len({step.nodes for g in alone for step in g.steps}) > 1  # trees of several sizes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", LOOKUPS)
def test_whole_paths_are_verified_where_no_row_has_a_guess(name, rows):
    found = answers(name, 0.7, rows, verifier={"rule": "traversal"})
    steps = [step for each in found for step in each.steps]
    assert any(not step.nodes for step in steps)
    assert sum(step.accepted for step in steps) > 5


def test_positions_keep_their_numbers_when_a_walk_stops_early():
    def drawn(steps):
        generator, tokens = torch.Generator().manual_seed(3), []
        law = torch.full((1, 1000), 0.001)
        for emitted in steps:
            draws = SeededDraws([generator])
            positions = draws.by_position(4)
            tokens += [int(positions.token_at(level, law)) for level in range(emitted)]
            draws.settle([emitted])
        return tokens

    assert drawn([4, 4]) == drawn([1] * 8) == drawn([3, 1, 2, 2])
    plain = torch.Generator().manual_seed(3)
    law = torch.full((1, 1000), 0.001)
    assert drawn([4, 4]) == [int(SeededDraws([plain]).verdict(()).token(law)) for _ in range(8)]


def test_without_a_match_an_iteration_is_one_of_plain_decoding():
    decoder = built("prompt_lookup", tiny_pair("llama"), GREEDY)
    (row,) = decoder.begin([Request("0", (1, 2, 3), 4)], seed=0)
    decoder.step([row])
    assert [(step.nodes, step.depth) for step in row.steps] == [(0, 0)]
