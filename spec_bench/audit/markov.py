"""A language model whose every distribution is a table row, behind the engine's interface."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.audit.toy import Toy


class NoCache:
    """A Markov chain needs no memory."""

    bytes = 0

    def grow(self, rows: int, slots: int) -> None:
        """Nothing is stored."""

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None:
        """Nothing is stored."""

    def move_row(self, source: int, target: int, length: int, start: int = 0) -> None:
        """Nothing is stored."""


class MarkovModel(Toy):
    """Next-token logits that depend on the last token and on whether its position is odd.

    The position matters so that a distribution read at the wrong level shows.

    Args:
        logits: [2, V, V] by position parity and last token.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits, 2 * logits.shape[-1])

    def allocate(self, rows: int, slots: int) -> NoCache:
        return NoCache()

    def place(self, prefix: Sequence[int]) -> tuple[int, ...]:
        return (len(prefix) - 1) % 2, prefix[-1]

    def places(
        self,
        cache: object,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
    ) -> tuple[Tensor, ...]:
        return positions % 2, tokens

    def state(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return positions % 2 * self.vocab_size + tokens


def random_markov(vocab: int, seed: int, sharpness: float = 1.5) -> MarkovModel:
    """A chain with normal logits of the given standard deviation, float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, vocab, vocab), generator=generator, dtype=torch.float64)
    return MarkovModel(logits * sharpness)
