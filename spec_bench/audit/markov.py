"""A language model whose every distribution is a table row, behind the engine's interface."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.engine.model import ForwardOutput
from spec_bench.engine.stopwatch import ForwardTimer


class NoCache:
    """A Markov chain needs no memory."""

    bytes = 0

    def grow(self, rows: int, slots: int) -> None:
        """Nothing is stored."""

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None:
        """Nothing is stored."""

    def move_row(self, source: int, target: int, length: int, start: int = 0) -> None:
        """Nothing is stored."""


class MarkovModel:
    """Next-token logits that depend on the last token and on whether its position is odd.

    The position matters so that a distribution read at the wrong level shows.

    Args:
        logits: [2, V, V] by position parity and last token.
    """

    max_positions: int | None = None

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.vocab_size = self.embedded = logits.shape[-1]
        self.parameters = logits.numel()
        self.device = logits.device
        self.timer = ForwardTimer(logits.device)
        self.bytes_per_slot = 0
        self.hidden_size = 2 * self.vocab_size

    def allocate(self, rows: int, slots: int) -> NoCache:
        return NoCache()

    def forward(
        self,
        cache: object,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        logits_to_keep: int = 0,
        needs_hidden: bool = False,
        prefill: bool = False,
    ) -> ForwardOutput:
        logits = self.logits[positions % 2, tokens]
        state = positions % 2 * self.vocab_size + tokens
        hidden = torch.nn.functional.one_hot(state, self.hidden_size).to(logits.dtype)
        return ForwardOutput(logits[:, -logits_to_keep:], hidden if needs_hidden else None)

    def embed(self, tokens: Tensor) -> Tensor:
        """One-hot vectors, as wide as the hidden states."""
        return torch.nn.functional.one_hot(tokens, self.hidden_size).to(self.logits.dtype)

    def law(
        self, prompt: Sequence[int], length: int, settings: SamplingSettings
    ) -> dict[tuple[int, ...], float]:
        """P(continuation | prompt) for every continuation of the given length."""
        probs = log_probs(self.logits, settings).exp().tolist()
        law = {}
        for continuation in itertools.product(range(self.vocab_size), repeat=length):
            last, position, prob = prompt[-1], len(prompt) - 1, 1.0
            for token in continuation:
                prob *= probs[position % 2][last][token]
                last, position = token, position + 1
            law[continuation] = prob
        return law


def random_markov(vocab: int, seed: int, sharpness: float = 1.5) -> MarkovModel:
    """A chain with normal logits of the given standard deviation, float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, vocab, vocab), generator=generator, dtype=torch.float64)
    return MarkovModel(logits * sharpness)
