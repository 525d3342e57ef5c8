"""A language model whose distributions depend on several tokens, behind the engine's interface.

A Markov chain forgets all but the last token, so a walk that continues on the wrong branch may
still find the right distribution. This toy looks up the last M tokens that the tree mask lets a
token see; so a wrong ancestor, a wrong copy or a wrong commit changes what it says.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.engine.model import ForwardOutput
from spec_bench.engine.stopwatch import ForwardTimer


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


class HistoryModel:
    """Next-token logits that depend on the last M tokens.

    Args:
        logits: [V, ..., V, V] with M + 1 axes: by the token M - 1 places back, ..., the last token.
            Before the start of a sequence stands token 0.
    """

    max_positions: int | None = None

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.vocab_size = logits.shape[-1]
        self.parameters = logits.numel()
        self.device = logits.device
        self.timer = ForwardTimer(logits.device)
        self.bytes_per_slot = 0
        self.hidden_size = self.vocab_size

    def allocate(self, rows: int, slots: int) -> TokenCache:
        return TokenCache(rows, slots)

    def forward(
        self,
        cache: TokenCache,
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
        slots = torch.tensor(starts).unsqueeze(1) + torch.arange(tokens.shape[1])
        index = torch.arange(rows.start, rows.start + len(starts)).unsqueeze(1)
        cache.tokens[index, slots], cache.positions[index, slots] = tokens, positions
        seen = visible.shape[2]
        known = cache.tokens[rows, :seen].unsqueeze(1)
        places = cache.positions[rows, :seen].unsqueeze(1)
        history = []
        for back in range(self.logits.dim() - 1):
            at = visible & (places == (positions - back).unsqueeze(-1))
            assert (at.sum(dim=-1) <= 1).all(), "a token sees two others at one position"
            history.append((known * at).sum(dim=-1))
        logits = self.logits[tuple(reversed(history))]
        hidden = torch.nn.functional.one_hot(tokens, self.hidden_size).to(logits.dtype)
        return ForwardOutput(logits[:, -logits_to_keep:], hidden if needs_hidden else None)

    def embed(self, tokens: Tensor) -> Tensor:
        """One-hot vectors, as wide as the hidden states."""
        return torch.nn.functional.one_hot(tokens, self.hidden_size).to(self.logits.dtype)

    def law(
        self, prompt: Sequence[int], length: int, settings: SamplingSettings
    ) -> dict[tuple[int, ...], float]:
        """P(continuation | prompt) for every continuation of the given length."""
        probs = log_probs(self.logits, settings).exp()
        memory = self.logits.dim() - 1
        law = {}
        for continuation in itertools.product(range(self.vocab_size), repeat=length):
            said, prob = [0] * memory + list(prompt), 1.0
            for token in continuation:
                prob *= probs[tuple(said[-memory:])][token].item()
                said.append(token)
            law[continuation] = prob
        return law


def random_history(vocab: int, seed: int, memory: int = 3, sharpness: float = 1.5) -> HistoryModel:
    """A toy with normal logits of the given standard deviation, float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab,) * (memory + 1)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    return HistoryModel(logits * sharpness)
