"""Stochastic beam search: the beam is a sample without replacement from the draft's sequences."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from spec_bench.core.tree import Tree
from spec_bench.tree.stochastic_beam import StochasticBeam

ROWS, WIDTH, VOCAB = 20_000, 2, 3


class Noise:
    """Gumbel noise of many rows from one generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def gumbel(self, like: torch.Tensor) -> torch.Tensor:
        uniforms = torch.rand(like.shape, generator=self.generator, dtype=like.dtype)
        return -(-uniforms.log()).log()


@pytest.fixture(scope="module")
def beams() -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, width, 2] tokens of beams of length two, and the law of one sequence [V, V]."""
    first = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    second = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    policy = StochasticBeam(WIDTH, 2)
    tree = Tree(policy.shape, torch.zeros(ROWS, dtype=torch.long), "without_replacement")
    draws = Noise(3)
    policy.grow(tree, first.log().expand(ROWS, 1, 1, VOCAB), draws)
    level = tree.tokens[:, 1 : 1 + WIDTH]
    policy.grow(tree, second.log()[level].unsqueeze(2), draws)
    parent = tree.parent[:, 1 + WIDTH :] - 1
    sequences = torch.stack([level.gather(1, parent), tree.tokens[:, 1 + WIDTH :]], dim=-1)
    return sequences, first.unsqueeze(1) * second


def test_the_first_beam_is_a_sample_of_the_drafts_sequences(beams) -> None:
    sequences, law = beams
    counts = (sequences[:, 0] @ torch.tensor([VOCAB, 1])).bincount(minlength=VOCAB**2)
    assert chisquare(counts, law.flatten() * ROWS).pvalue > 1e-6


def test_the_second_beam_is_a_sample_of_what_the_first_one_leaves(beams) -> None:
    sequences, law = beams
    codes = sequences @ torch.tensor([VOCAB, 1])
    for first in range(VOCAB**2):
        rest = law.flatten().clone()
        rest[first] = 0.0
        second = codes[codes[:, 0] == first, 1].bincount(minlength=VOCAB**2)
        expected = rest / rest.sum() * second.sum()
        there = expected > 0
        assert second[first] == 0
        assert chisquare(second[there], expected[there]).pvalue > 1e-7
