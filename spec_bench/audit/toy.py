"""What the audit's toy models share: logits in a table, behind the engine's interface."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.engine.model import ForwardOutput, Layers
from spec_bench.engine.stopwatch import ForwardTimer


class Toy(ABC):
    """Next-token logits looked up in a table.

    Args:
        logits: [..., V]: a distribution for every state that the toy can be in.
        states: D, how many values its hidden state takes, which is one-hot.
    """

    max_positions: int | None = None

    def __init__(self, logits: Tensor, states: int) -> None:
        self.logits = logits
        self.vocab_size = self.embedded = logits.shape[-1]
        self.parameters = logits.numel()
        self.device = logits.device
        self.timer = ForwardTimer(logits.device)
        self.bytes_per_slot = 0
        self.hidden_size = states
        self.blocks = 6  # of which nothing is known but their number

    @abstractmethod
    def allocate(self, rows: int, slots: int) -> Any:
        """A cache for ``rows`` sequences of up to ``slots`` tokens."""

    @abstractmethod
    def place(self, prefix: Sequence[int]) -> tuple[int, ...]:
        """Where the logits after a sequence stand in the table."""

    @abstractmethod
    def places(
        self,
        cache: Any,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
    ) -> tuple[Tensor, ...]:
        """The same after every token of a pass, [R, T] each; arguments as ``forward``'s."""

    def state(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[R, T] which hidden state each token is in: the token itself."""
        return tokens

    def forward(
        self,
        cache: Any,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        logits_to_keep: int = 0,
        needs_hidden: Layers = (),
        prefill: bool = False,
        shared: int = 0,
    ) -> ForwardOutput:
        """See ``engine.model.LanguageModel``."""
        places = self.places(cache, rows, starts, tokens, positions, visible)
        logits = self.logits[places]
        hidden = None
        if needs_hidden:
            state = self.state(tokens, positions)
            hidden = torch.nn.functional.one_hot(state, self.hidden_size).to(logits.dtype)
            hidden = torch.cat([hidden] * len(needs_hidden), dim=-1)
        return ForwardOutput(logits[:, -logits_to_keep:], hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """One-hot vectors, as wide as the hidden states."""
        return torch.nn.functional.one_hot(tokens, self.hidden_size).to(self.logits.dtype)

    def project(self, hidden: Tensor) -> Tensor:
        """The logits of a one-hot hidden state, as linear in it."""
        return hidden @ self.logits.flatten(0, -2)[: self.hidden_size].to(hidden.dtype)

    def law(
        self, prompt: Sequence[int], length: int, settings: SamplingSettings
    ) -> dict[tuple[int, ...], float]:
        """P(continuation | prompt) for every continuation of the given length."""
        table = log_probs(self.logits, settings).exp().tolist()
        law = {}
        for continuation in itertools.product(range(self.vocab_size), repeat=length):
            prefix, prob = list(prompt), 1.0
            for token in continuation:
                chances = table
                for index in self.place(prefix):
                    chances = chances[index]
                prob *= chances[token]
                prefix.append(token)
            law[continuation] = prob
        return law
