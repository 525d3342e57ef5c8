"""Dialogues as a step's batch: tokens, and the target's hidden states, computed in every step, or
once where all of them fit into the memory that they may take.

Letters: B dialogues, T tokens of the longest, W width of what the target hands over, D of its last
hidden state, K guesses, N positions that are learned. Knows nothing about heads.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import LAST, Layers

IGNORED = -100  # no loss where nothing is to be learned; the default of torch's cross-entropy


@dataclass(frozen=True)
class Dialogue:
    """One sequence."""

    ids: tuple[int, ...]  # T token ids
    learned: tuple[bool, ...]  # T times whether the token is an answer's

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the first answer."""
        return self.ids[: self.learned.index(True)] if True in self.learned else self.ids


def find_learned_positions(dialogue: Dialogue) -> list[int]:
    """Positions t that something is learned at: tokens t + 1 and t + 2 belong to one answer."""
    learned = dialogue.learned
    return [t for t in range(len(learned) - 2) if learned[t + 1] and learned[t + 2]]


def gather_next_tokens(
    dialogue: Dialogue,
    guesses: int,
    starts: Callable[[Dialogue], list[int]] = find_learned_positions,
) -> Tensor:
    """[N, K + 1] int64: tokens t + 1..t + 1 + K of every start t, first the one that is known;
    IGNORED from the end of the answer on.
    """
    at = starts(dialogue)
    ids = torch.tensor([*dialogue.ids, *[0] * guesses])
    learned = torch.tensor([*dialogue.learned, *[False] * guesses])
    window = torch.tensor(at, dtype=torch.long)[:, None] + 1 + torch.arange(guesses + 1)
    # Once an answer has ended, what another one says is no guess of this one.
    inside = learned[window].long().cumprod(dim=1).bool()
    return ids[window].masked_fill(~inside, IGNORED)


def count_answer_tokens(dialogues: Sequence[Dialogue]) -> Counter[int]:
    """Returns how often answers hold each token."""
    return Counter(token for each in dialogues for token in compress(each.ids, each.learned))


class PositionBatch(NamedTuple):
    """What one part of a step learns from."""

    x: Tensor  # [N, D] hidden states
    embedded: Tensor  # [N, K, D] of the tokens t + 1..t + K
    guessed: Tensor  # [N, K] the tokens t + 2..t + K + 1, IGNORED past an answer's end


@dataclass(frozen=True)
class DialogueBatches:
    """Dialogues as batches of positions."""

    model: HuggingFaceModel  # the target, which stays as it is
    dialogues: Sequence[Dialogue]  # all of them
    guesses: int  # K
    layers: Layers = LAST  # the hidden states that are learned from, side by side
    together: int = 16  # dialogues in a pass of the target
    kept_gib: float = 0.0  # memory of the host, in which later epochs find what the first computed
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _rows: dict[int, Tensor] = field(default_factory=dict, repr=False)  # of tokens, made once
    picked = staticmethod(
        find_learned_positions
    )  # at which positions of a dialogue they are learned from
    starts = staticmethod(find_learned_positions)  # and at which something is guessed

    @torch.no_grad()
    def of(self, indices: Sequence[int]) -> PositionBatch:
        """Returns the positions of these dialogues."""
        tokens = self.tokens(indices).to(self.model.device)
        embedded = self._embed_tokens(tokens[:, :-1].clamp(min=0))
        return PositionBatch(self.hidden(indices), embedded, tokens[:, 1:])

    def guessed(self, indices: Sequence[int]) -> Tensor:
        """[N, K] tokens that are guessed."""
        return self.tokens(indices)[:, 1:]

    def hidden(self, indices: Sequence[int]) -> Tensor:
        """[N, D] float32 hidden states of these dialogues, one after the other."""
        kept = self._kept if self.groups else {}
        place = "cpu" if self.groups else self.model.device
        wanted = {*indices} - kept.keys()
        for group in self.groups or self._group_by_length(indices):
            if not wanted.isdisjoint(group):
                found = self._pass([self.dialogues[index] for index in group])
                kept.update((i, part.to(place)) for i, part in zip(group, found, strict=True))
        return torch.cat([kept[index] for index in indices]).to(self.model.device)

    def _group_by_length(self, indices: Sequence[int]) -> list[list[int]]:
        """Dialogues of similar length share a pass, so that little is padded."""
        order = sorted(indices, key=lambda index: len(self.dialogues[index].ids))
        return [order[at : at + self.together] for at in range(0, len(order), self.together)]

    @cached_property
    def groups(self) -> list[list[int]]:
        """Which dialogues share a pass, the same after a kill; empty where not all are kept."""
        numbers = sum(len(self.picked(each)) for each in self.dialogues)
        size = 4 * numbers * self.model.hidden_size * len(self.layers)
        return (
            self._group_by_length(range(len(self.dialogues)))
            if size <= self.kept_gib * 2**30
            else []
        )

    @torch.no_grad()
    def _pass(self, dialogues: Sequence[Dialogue]) -> list[Tensor]:
        """What the engine calls ``hidden``, of dialogues padded on the right to the longest."""
        device = self.model.device
        longest = max(len(dialogue.ids) for dialogue in dialogues)
        rows = [[*dialogue.ids, *[0] * (longest - len(dialogue.ids))] for dialogue in dialogues]
        real = torch.arange(longest)[None] < torch.tensor([[len(d.ids)] for d in dialogues])
        output = self.model.module.base_model(  # whose last layer would say what nobody reads
            input_ids=torch.tensor(rows, device=device),
            attention_mask=real.long().to(device),
            use_cache=False,
            output_hidden_states=True,
        )
        hidden = torch.cat([output.hidden_states[i].to(device) for i in self.layers], dim=-1)
        at = [torch.tensor(self.picked(d), dtype=torch.long, device=device) for d in dialogues]
        return [states[where].float() for states, where in zip(hidden, at, strict=True)]

    def _embed_tokens(self, tokens: Tensor) -> Tensor:
        """Returns the target's embeddings, not of inference mode: heads learn from them."""
        device = self.model.device
        embedded: Tensor = self.model.module.get_input_embeddings()(tokens.to(device))
        return embedded.to(device).float()

    def tokens(self, indices: Sequence[int]) -> Tensor:
        """[N, K + 1] known and guessed tokens."""
        for index in {*indices} - self._rows.keys():
            self._rows[index] = gather_next_tokens(self.dialogues[index], self.guesses, self.starts)
        return torch.cat([self._rows[index] for index in indices])

    def counts(self, indices: Sequence[int]) -> list[int]:
        """K times in how many positions of these dialogues there is something to guess."""
        counts: list[int] = (self.guessed(indices) != IGNORED).sum(0).tolist()
        return counts


def order_of(count: int, seed: int, epoch: int) -> list[int]:
    """Returns the order of an epoch's dialogues; it follows from seed and epoch alone."""
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order


def list_steps(count: int, batch: int) -> int:
    """Steps in an epoch: what is left over after the last full batch waits for the next epoch."""
    return max(1, count // batch)


def step_indices(count: int, batch: int, seed: int, step: int) -> list[int]:
    """Returns the dialogues of a step counted from 0."""
    epoch, place = divmod(step, list_steps(count, batch))
    return order_of(count, seed, epoch)[place * batch : (place + 1) * batch]


class SequenceBatch(NamedTuple):
    """What one part of a step learns from."""

    # [B, T + K, ...] the target's features [W], whose end, or what stands behind them, is its last
    # hidden state [D]; zeros past a dialogue's end.
    hidden: Tensor
    embedded: Tensor  # [B, T + K, D] its embedding of token t + 1
    at: Tensor  # [N, 2] dialogue and position of what is learned
    guessed: Tensor  # [N, K] the right tokens t + 2..t + K + 1, IGNORED past an answer's end


@dataclass(frozen=True)
class SequenceBatches(DialogueBatches):
    """Dialogues as batches of whole sequences, with hidden states of every token."""

    picked = staticmethod(lambda dialogue: list(range(len(dialogue.ids))))

    @torch.no_grad()
    def of(self, indices: Sequence[int]) -> SequenceBatch:  # type: ignore[override]
        device = self.model.device
        beyond = self.guesses
        held = indices or [0]  # where no dialogue fell to a part of a step, nothing is learned
        chosen = [self.dialogues[index] for index in held]
        parts = self.hidden(held).split([len(each.ids) for each in chosen])
        hidden = pad_sequence(list(parts), batch_first=True)
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, beyond))
        ids = [torch.tensor([*each.ids[1:], 0]) for each in chosen]
        tokens = torch.nn.functional.pad(pad_sequence(ids, batch_first=True), (0, beyond))
        embedded = self._embed_tokens(tokens)
        at = [torch.tensor(find_learned_positions(each), dtype=torch.long) for each in chosen]
        rows = torch.repeat_interleave(torch.tensor([len(each) for each in at]))
        learned = len(rows) if indices else 0
        places = torch.stack([rows, torch.cat(at)], dim=1)[:learned].to(device)
        return SequenceBatch(hidden, embedded, places, self.guessed(held)[:learned].to(device))
