"""A toy language model with the engine's interface and a known law: a Markov chain.

Its distribution depends only on the last token and the position's parity, so a walk on a wrong
branch may still read the right distribution; the tests therefore have a model with a history, too.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spec_bench.core.warp import SamplingSettings, warped_log_probs
from spec_bench.engine.model import ForwardOutput, ForwardTimer, Layers


class NoCache:
    """Empty cache, because a chain stores nothing about a sequence."""

    bytes = 0

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    grow_and_clear = commit = commit_all = move_row = _do_nothing


class MarkovModel:
    """Markov chain with logits [2, V, V], indexed by the parity of the position and by the last
    token; because of the parity, a distribution read at the wrong level is detected. Its hidden
    state is one-hot, with 2 V values.
    """

    max_positions: int | None = None
    recorder: object = None
    split_from: int | None = None

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.vocab_size = self.embedding_rows = logits.shape[-1]
        self.parameters = logits.numel()
        self.device = logits.device
        self.dtype = logits.dtype
        self.timer = ForwardTimer(logits.device)
        self.bytes_per_slot = 0
        self.hidden_size = 2 * self.vocab_size
        self.blocks = 6

    def allocate(self, rows: int, slots: int) -> NoCache:
        """Allocates a cache for ``rows`` sequences of up to ``slots`` tokens."""
        return NoCache()

    def find_logits_index(self, prefix: Sequence[int]) -> tuple[int, ...]:
        """Returns the index into ``logits`` after a sequence."""
        return (len(prefix) - 1) % 2, prefix[-1]

    def find_logits_indices(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """Returns the indices into ``logits`` after every token of a pass, [R, T] each."""
        return positions % 2, tokens

    def find_hidden_state_indices(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Returns the index of the 1 in each token's hidden state, [R, T]."""
        return positions % 2 * self.vocab_size + tokens

    def forward(
        self,
        cache: Any,
        starts: Sequence[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        row: int = 0,
        logits_to_keep: int = 0,
        needs_hidden: Layers = (),
        prefill: bool = False,
        shared: int = 0,
    ) -> ForwardOutput:
        """Looks up the logits of each token, see ``engine.model.LanguageModel``."""
        logits = self.logits[self.find_logits_indices(tokens, positions)]
        hidden = None
        if needs_hidden:
            hidden = one_hot(
                self.find_hidden_state_indices(tokens, positions), self.hidden_size
            ).to(logits.dtype)
            hidden = torch.cat([hidden] * len(needs_hidden), dim=-1)
        return ForwardOutput(logits[:, -logits_to_keep:], hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeds tokens as one-hot vectors, as wide as the hidden states."""
        return one_hot(tokens, self.hidden_size).to(self.logits.dtype)

    def project(self, hidden: Tensor) -> Tensor:
        """Projects hidden states [..., 2 V] linearly to logits [..., V]."""
        return hidden @ self.logits.flatten(0, -2).to(hidden.dtype)

    def compute_continuation_law(
        self,
        prompt: Sequence[int],
        length: int,
        settings: SamplingSettings,
    ) -> dict[tuple[int, ...], float]:
        """Computes P(continuation | prompt) for every continuation of the given length."""
        table = warped_log_probs(self.logits, settings).exp().tolist()
        law = {}
        for continuation in itertools.product(range(self.vocab_size), repeat=length):
            prefix = list(prompt)
            prob = 1.0
            for token in continuation:
                chances = table
                for index in self.find_logits_index(prefix):
                    chances = chances[index]
                prob *= chances[token]
                prefix.append(token)
            law[continuation] = prob
        return law


def make_random_markov_model(vocab: int, seed: int) -> MarkovModel:
    """Makes a chain with normal logits of standard deviation 1.5, in float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, vocab, vocab), generator=generator, dtype=torch.float64)
    return MarkovModel(1.5 * logits)
