"""Toy language models behind the engine's interface, whose laws are known: logits in a table.

A Markov chain forgets all but the last token, so a walk that continues on the wrong branch may
still find the right distribution. The model with a history looks up the last M tokens that the tree
mask lets a token see; so a wrong ancestor, a wrong copy or a wrong commit changes what it says.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spec_bench.core.warp import SamplingSettings, log_probs
from spec_bench.engine.model import ForwardOutput, ForwardTimer, Layers


class TokenCache:
    """Tokens and positions by slot: all that a toy keeps of a sequence, if anything."""

    bytes = 0

    def __init__(self, rows: int, slots: int, remembers: bool) -> None:
        self.remembers = remembers
        self.grow(rows, slots)

    def grow(self, rows: int, slots: int) -> None:
        """Forgets everything and has that room."""
        shape = (rows, slots) if self.remembers else (0, 0)
        self.tokens = torch.zeros(shape, dtype=torch.long)
        self.positions = torch.full(shape, -1)

    def put(self, rows: slice, starts: Sequence[int], tokens: Tensor, positions: Tensor) -> None:
        """Writes the tokens of a pass behind each row's start."""
        slots = torch.tensor(starts).unsqueeze(1) + torch.arange(tokens.shape[1])
        index = torch.arange(rows.start, rows.start + len(starts)).unsqueeze(1)
        self.tokens[index, slots], self.positions[index, slots] = tokens, positions

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None:
        """Keeps tree nodes of a row at slots length, length + 1, ..."""
        if self.remembers:
            source = [length + node for node in nodes]
            for kept in (self.tokens, self.positions):
                kept[row, length : length + len(source)] = kept[row, source]

    def commit_all(self, lengths: Sequence[int], nodes: Tensor) -> None:
        """Does the same for the first rows, by paths [R, L + 1] on a device."""
        for row, (length, path) in enumerate(zip(lengths, nodes.tolist(), strict=True)):
            self.commit(row, length, path)

    def move_row(self, source: int, target: int, length: int, start: int = 0) -> None:
        """Copies the slots from ``start`` up to ``length`` of one row over another's."""
        if self.remembers:
            for kept in (self.tokens, self.positions):
                kept[target, start:length] = kept[source, start:length]


class Toy(ABC):
    """Next-token logits [..., V] looked up in a table, for every state that the toy can be in; its
    hidden state is one-hot, of D values, ``states``.
    """

    max_positions: int | None = None
    recorder: object = None
    split_from: int | None = None
    remembers = True  # whether its cache keeps tokens

    def __init__(self, logits: Tensor, states: int) -> None:
        self.logits = logits
        self.vocab_size = self.embedded = logits.shape[-1]
        self.parameters = logits.numel()
        self.device, self.dtype = logits.device, logits.dtype
        self.timer = ForwardTimer(logits.device)
        self.bytes_per_slot = 0
        self.hidden_size = states
        self.blocks = 6  # of which nothing is known but their number

    def allocate(self, rows: int, slots: int) -> TokenCache:
        """Returns a cache for ``rows`` sequences of up to ``slots`` tokens."""
        return TokenCache(rows, slots, self.remembers)

    @abstractmethod
    def place(self, prefix: Sequence[int]) -> tuple[int, ...]:
        """Returns where the logits after a sequence stand in the table."""

    @abstractmethod
    def places(
        self, cache: TokenCache, rows: slice, tokens: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, ...]:
        """Returns the same after every token of a pass, [R, T] each; arguments as ``forward``'s."""

    def state(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[R, T] which hidden state each token is in: the token itself."""
        return tokens

    def forward(
        self,
        cache: TokenCache,
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
        """See ``engine.model.LanguageModel``."""
        rows = slice(row, row + len(starts))
        if self.remembers:
            cache.put(rows, starts, tokens, positions)
        logits = self.logits[self.places(cache, rows, tokens, positions, visible)]
        hidden = None
        if needs_hidden:
            hidden = one_hot(self.state(tokens, positions), self.hidden_size).to(logits.dtype)
            hidden = torch.cat([hidden] * len(needs_hidden), dim=-1)
        return ForwardOutput(logits[:, -logits_to_keep:], hidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """One-hot vectors, as wide as the hidden states."""
        return one_hot(tokens, self.hidden_size).to(self.logits.dtype)

    def project(self, hidden: Tensor) -> Tensor:
        """Returns the logits of a one-hot hidden state, as linear in it."""
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


class MarkovModel(Toy):
    """Next-token logits [2, V, V] by the parity of the position and the last token.

    The position matters so that a distribution read at the wrong level shows.
    """

    remembers = False

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits, 2 * logits.shape[-1])

    def place(self, prefix: Sequence[int]) -> tuple[int, ...]:
        return (len(prefix) - 1) % 2, prefix[-1]

    def places(
        self, cache: TokenCache, rows: slice, tokens: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, ...]:
        return positions % 2, tokens

    def state(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return positions % 2 * self.vocab_size + tokens


class HistoryModel(Toy):
    """Next-token logits [V, ..., V, V] by the last M tokens, M + 1 axes: the token M - 1 places
    back, ..., the last token. Before the start of a sequence stands token 0.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__(logits, logits.shape[-1])
        self.memory = logits.dim() - 1

    def place(self, prefix: Sequence[int]) -> tuple[int, ...]:
        return tuple([*[0] * self.memory, *prefix][-self.memory :])

    def places(
        self, cache: TokenCache, rows: slice, tokens: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, ...]:
        seen = visible.shape[2]
        known = cache.tokens[rows, :seen].unsqueeze(1)
        places = cache.positions[rows, :seen].unsqueeze(1)
        history = []
        for back in range(self.memory):
            at = visible & (places == (positions - back).unsqueeze(-1))
            assert (at.sum(dim=-1) <= 1).all(), "a token sees two others at one position"
            history.append((known * at).sum(dim=-1))
        return tuple(reversed(history))


def _random(shape: Sequence[int], seed: int, sharpness: float) -> Tensor:
    """Normal logits of the given standard deviation, float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * sharpness


def random_markov(vocab: int, seed: int, sharpness: float = 1.5) -> MarkovModel:
    """Returns a chain with normal logits of the given standard deviation, float64."""
    return MarkovModel(_random((2, vocab, vocab), seed, sharpness))


def random_history(vocab: int, seed: int, memory: int = 3, sharpness: float = 1.5) -> HistoryModel:
    """Returns a toy with normal logits of the given standard deviation, float64."""
    return HistoryModel(_random((vocab,) * (memory + 1), seed, sharpness))
