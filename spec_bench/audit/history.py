"""A language model whose distributions depend on several tokens, behind the engine's interface.

A Markov chain forgets all but the last token, so a walk that continues on the wrong branch may
still find the right distribution. This toy looks up the last M tokens that the tree mask lets a
token see; so a wrong ancestor, a wrong copy or a wrong commit changes what it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.audit.toy import Toy


class TokenCache:
    """Tokens and positions by slot: all that the toy keeps of a sequence.

    Args:
        rows: R.
        slots: per row.
    """

    bytes = 0

    def __init__(self, rows: int, slots: int) -> None:
        self.grow(rows, slots)

    def grow(self, rows: int, slots: int) -> None:
        """Forgets everything and has that room."""
        self.tokens = torch.zeros((rows, slots), dtype=torch.long)
        self.positions = torch.full((rows, slots), -1)

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None:
        """Keeps tree nodes of a row at slots length, length + 1, ..."""
        source = [length + node for node in nodes]
        for kept in (self.tokens, self.positions):
            kept[row, length : length + len(source)] = kept[row, source]

    def move_row(self, source: int, target: int, length: int, start: int = 0) -> None:
        """Copies the slots from ``start`` up to ``length`` of one row over another's."""
        for kept in (self.tokens, self.positions):
            kept[target, start:length] = kept[source, start:length]


class HistoryModel(Toy):
    """Next-token logits that depend on the last M tokens.

    Args:
        logits: [V, ..., V, V] with M + 1 axes: by the token M - 1 places back, ..., the last token.
            Before the start of a sequence stands token 0.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits, logits.shape[-1])
        self.memory = logits.dim() - 1

    def allocate(self, rows: int, slots: int) -> TokenCache:
        return TokenCache(rows, slots)

    def place(self, prefix: Sequence[int]) -> tuple[int, ...]:
        return tuple([*[0] * self.memory, *prefix][-self.memory :])

    def places(
        self,
        cache: TokenCache,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
    ) -> tuple[Tensor, ...]:
        slots = torch.tensor(starts).unsqueeze(1) + torch.arange(tokens.shape[1])
        index = torch.arange(rows.start, rows.start + len(starts)).unsqueeze(1)
        cache.tokens[index, slots], cache.positions[index, slots] = tokens, positions
        seen = visible.shape[2]
        known = cache.tokens[rows, :seen].unsqueeze(1)
        places = cache.positions[rows, :seen].unsqueeze(1)
        history = []
        for back in range(self.memory):
            at = visible & (places == (positions - back).unsqueeze(-1))
            assert (at.sum(dim=-1) <= 1).all(), "a token sees two others at one position"
            history.append((known * at).sum(dim=-1))
        return tuple(reversed(history))


def random_history(vocab: int, seed: int, memory: int = 3, sharpness: float = 1.5) -> HistoryModel:
    """A toy with normal logits of the given standard deviation, float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab,) * (memory + 1)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    return HistoryModel(logits * sharpness)
