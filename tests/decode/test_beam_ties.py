"""Beams with the same text count the same to the last bit, so no batch decides between them."""

import pytest
import torch

from spec_bench.core.draws import row_generator
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_step import BeamRow, Parents
from spec_bench.decode.config import build_decoder
from spec_bench.records.types import Request
from tests.families import decoder_settings, random_requests, tiny_pair

REQUESTS = random_requests(8, 10)


def parents(tokens, first):
    """Beams of one row, equally likely, none stopped."""
    count = len(tokens)
    return Parents(
        torch.tensor([tokens]),
        torch.zeros((1, count), dtype=torch.float64),
        torch.zeros((1, count), dtype=torch.long),
        torch.zeros((1, count), dtype=torch.bool),
        torch.tensor([[-1]]),
        torch.tensor([first]),
    )


def test_what_follows_the_same_text_is_the_same_to_the_last_bit():
    logits = torch.randn((1, 1, 7), generator=torch.Generator().manual_seed(0)).repeat(1, 3, 1)
    logits[:, 2] += 1e-6 * torch.arange(7)
    apart, alike = parents([4, 5, 4], [0, 1, 2]), parents([4, 5, 4], [0, 1, 0])
    assert not torch.equal(apart.log_probs(logits)[0, 0], apart.log_probs(logits)[0, 2])
    assert torch.equal(alike.log_probs(logits)[0, 0], alike.log_probs(logits)[0, 2])
    assert torch.equal(alike.log_probs(logits)[0, :2], apart.log_probs(logits)[0, :2])


def test_children_of_the_same_text_by_the_same_token_have_the_same_text():
    beams, log_p = parents([4, 5, 4], [0, 1, 0]), torch.zeros((1, 3, 7))
    cells = torch.tensor([[2 * 7 + 3, 1 * 7 + 3, 0 * 7 + 3, 0 * 7 + 4, 2 * 7 + 4]])
    assert beams.children(cells, log_p).first.tolist() == [[0, 1, 0, 3, 3]]


def test_a_row_knows_which_of_its_beams_have_the_same_text():
    row = BeamRow.start(Request("x", (1, 2), 8), row_generator(0, "x", torch.device("cpu")))
    row.tokens, row.parents = [2, 5, 5, 6, 6, 7, 6], [-1, 0, 0, 1, 2, 1, 1]
    row.beams = row.beams * 4  # the last four nodes: 5 6, 5 6, 5 7, 5 6
    assert row.first_of_text() == [0, 0, 2, 0]


@pytest.mark.parametrize("name", ["beam_sampling", "dsbd"])
@pytest.mark.parametrize(
    "settings", [SamplingSettings(temperature=0), SamplingSettings(temperature=0.3, top_p=0.8)]
)
def test_in_float32_too_beams_do_not_depend_on_the_batch(name, settings):
    found = []
    for rows in (1, 4):
        target, draft = tiny_pair("llama", torch.float32)
        decoder = build_decoder(decoder_settings(name), target, [draft], settings, rows)
        batches = [REQUESTS[start : start + rows] for start in range(0, len(REQUESTS), rows)]
        found.append([each for batch in batches for each in decoder.generate(batch, 3)])
    alone, together = found
    assert [each.tokens for each in together] == [each.tokens for each in alone]
    assert [each.steps for each in together] == [each.steps for each in alone]
