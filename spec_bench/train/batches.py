"""Makes batches of dialogues for training: tokens, and the target's hidden states.

Hidden states are computed in every step, or once if all of them fit into ``kept_gib``. Letters:
B dialogues, T tokens of the longest, W width of the target's features, D of its last hidden state,
K guesses, N learned positions. Knows nothing about heads.
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

IGNORED_LABEL = -100  # label of positions without a loss; the default of torch's cross-entropy


@dataclass(frozen=True)
class Dialogue:
    """Token ids of a prompt and its answers."""

    ids: tuple[int, ...]  # T token ids
    loss_mask: tuple[bool, ...]  # T times whether the token belongs to an answer

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the first answer."""
        return self.ids[: self.loss_mask.index(True)] if True in self.loss_mask else self.ids


def find_learned_positions(dialogue: Dialogue) -> list[int]:
    """Finds the positions t to learn from: tokens t + 1 and t + 2 belong to the same answer."""
    is_answer = dialogue.loss_mask
    return [t for t in range(len(is_answer) - 2) if is_answer[t + 1] and is_answer[t + 2]]


def gather_known_and_next_tokens(
    dialogue: Dialogue,
    guesses: int,
    find_starts: Callable[[Dialogue], list[int]] = find_learned_positions,
) -> Tensor:
    """Gathers the tokens t + 1, ..., t + 1 + K after each start position t, [N, K + 1] int64. Token
    t + 1 is known, the other K are to be guessed; those past the end of the answer are
    IGNORED_LABEL.
    """
    positions = find_starts(dialogue)
    ids = torch.tensor([*dialogue.ids, *[0] * guesses])
    is_answer = torch.tensor([*dialogue.loss_mask, *[False] * guesses])
    window = torch.tensor(positions, dtype=torch.long)[:, None] + 1 + torch.arange(guesses + 1)
    # Tokens of the next answer are not guessed from this one.
    is_inside_answer = is_answer[window].long().cumprod(dim=1).bool()
    return ids[window].masked_fill(~is_inside_answer, IGNORED_LABEL)


def count_answer_tokens(dialogues: Sequence[Dialogue]) -> Counter[int]:
    """Counts how often each token occurs in the answers."""
    return Counter(
        token for dialogue in dialogues for token in compress(dialogue.ids, dialogue.loss_mask)
    )


class PositionBatch(NamedTuple):
    """Single positions of one gradient-accumulation part of a step."""

    hidden_states: Tensor  # [N, D] hidden states
    embeddings: Tensor  # [N, K, D] embeddings of the tokens t + 1..t + K
    labels: Tensor  # [N, K] the tokens t + 2..t + K + 1, IGNORED_LABEL past an answer's end


@dataclass(frozen=True)
class DialogueBatches:
    """Batches of single positions, with the target's hidden states at these."""

    model: HuggingFaceModel  # the target, which is not trained
    dialogues: Sequence[Dialogue]  # methods refer to them by index
    guesses: int  # K
    layers: Layers = LAST  # layers whose hidden states are concatenated
    dialogues_per_pass: int = 16  # dialogues in a pass of the target
    kept_gib: float = 0.0  # host memory for the hidden states of all dialogues
    # keyed by the index of the dialogue
    _cached_states: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _cached_tokens: dict[int, Tensor] = field(default_factory=dict, repr=False)
    # positions of a dialogue whose hidden states are used
    select_positions = staticmethod(find_learned_positions)
    # positions of a dialogue after which tokens are guessed
    select_starts = staticmethod(find_learned_positions)

    @torch.no_grad()
    def make_batch(self, indices: Sequence[int]) -> PositionBatch:
        """Makes a batch of the dialogues with these indices."""
        tokens = self.get_known_and_next_tokens(indices).to(self.model.device)
        embeddings = self._embed_tokens(tokens[:, :-1].clamp(min=0))
        return PositionBatch(self.get_hidden_states(indices), embeddings, tokens[:, 1:])

    def get_labels(self, indices: Sequence[int]) -> Tensor:
        """Returns the tokens to guess, [N, K]."""
        return self.get_known_and_next_tokens(indices)[:, 1:]

    def get_hidden_states(self, indices: Sequence[int]) -> Tensor:
        """Returns the hidden states of the dialogues, concatenated, [N, layers * D] float32."""
        cache = self._cached_states if self.cached_passes else {}
        device = "cpu" if self.cached_passes else self.model.device
        missing_indices = {*indices} - cache.keys()
        for group in self.cached_passes or self._group_by_length(indices):
            if not missing_indices.isdisjoint(group):
                states = self._compute_states_at_positions(
                    [self.dialogues[index] for index in group]
                )
                cache.update((i, part.to(device)) for i, part in zip(group, states, strict=True))
        return torch.cat([cache[index] for index in indices]).to(self.model.device)

    def _group_by_length(self, indices: Sequence[int]) -> list[list[int]]:
        """Groups dialogues of similar length into passes, to save padding."""
        order = sorted(indices, key=lambda index: len(self.dialogues[index].ids))
        return [
            order[start : start + self.dialogues_per_pass]
            for start in range(0, len(order), self.dialogues_per_pass)
        ]

    @cached_property
    def cached_passes(self) -> list[list[int]]:
        """Dialogue indices of each target pass, the same in every run; empty if the hidden states
        do not all fit into ``kept_gib``.
        """
        numbers = sum(len(self.select_positions(dialogue)) for dialogue in self.dialogues)
        size = 4 * numbers * self.model.hidden_size * len(self.layers)
        return (
            self._group_by_length(range(len(self.dialogues)))
            if size <= self.kept_gib * 2**30
            else []
        )

    @torch.no_grad()
    def _compute_states_at_positions(self, dialogues: Sequence[Dialogue]) -> list[Tensor]:
        """Computes the hidden states of dialogues in one pass, padded on the right."""
        device = self.model.device
        longest = max(len(dialogue.ids) for dialogue in dialogues)
        rows = [[*dialogue.ids, *[0] * (longest - len(dialogue.ids))] for dialogue in dialogues]
        real = torch.arange(longest)[None] < torch.tensor([[len(d.ids)] for d in dialogues])
        output = self.model.module.base_model(  # without the last layer's logits
            input_ids=torch.tensor(rows, device=device),
            attention_mask=real.long().to(device),
            use_cache=False,
            output_hidden_states=True,
        )
        hidden_states = torch.cat([output.hidden_states[i].to(device) for i in self.layers], dim=-1)
        positions = [
            torch.tensor(self.select_positions(d), dtype=torch.long, device=device)
            for d in dialogues
        ]
        return [
            states[places].float() for states, places in zip(hidden_states, positions, strict=True)
        ]

    def _embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embeds tokens with the target's table, [..., D] float32. Runs outside of inference mode,
        because heads are trained on the result.
        """
        device = self.model.device
        embeddings: Tensor = self.model.module.get_input_embeddings()(tokens.to(device))
        return embeddings.to(device).float()

    def get_known_and_next_tokens(self, indices: Sequence[int]) -> Tensor:
        """Returns the known token and the tokens to guess at each position, [N, K + 1]."""
        for index in {*indices} - self._cached_tokens.keys():
            self._cached_tokens[index] = gather_known_and_next_tokens(
                self.dialogues[index], self.guesses, self.select_starts
            )
        return torch.cat([self._cached_tokens[index] for index in indices])

    def count_labels(self, indices: Sequence[int]) -> list[int]:
        """Counts the positions of these dialogues at which each of the K guesses has a label."""
        counts: list[int] = (self.get_labels(indices) != IGNORED_LABEL).sum(0).tolist()
        return counts


def shuffle_dialogue_indices(dialogue_count: int, seed: int, epoch: int) -> list[int]:
    """Shuffles the dialogue indices; the order depends only on seed and epoch."""
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order: list[int] = torch.randperm(dialogue_count, generator=generator).tolist()
    return order


def count_epoch_steps(dialogue_count: int, batch_size: int) -> int:
    """Counts the steps of an epoch, at least 1; dialogues after the last full batch are unused."""
    return max(1, dialogue_count // batch_size)


def select_step_indices(dialogue_count: int, batch_size: int, seed: int, step: int) -> list[int]:
    """Selects the indices of a step's dialogues; the first step is 0."""
    epoch, place = divmod(step, count_epoch_steps(dialogue_count, batch_size))
    return shuffle_dialogue_indices(dialogue_count, seed, epoch)[
        place * batch_size : (place + 1) * batch_size
    ]


class SequenceBatch(NamedTuple):
    """Whole sequences of one gradient-accumulation part of a step."""

    # [B, T + K, ...] the target's features [W]; the last D values are its last hidden state, which
    # may be part of the features or come after them; zeros past a dialogue's end
    hidden_states: Tensor
    embeddings: Tensor  # [B, T + K, D] embedding of token t + 1
    locations: Tensor  # [N, 2] dialogue and position of each learned row
    labels: Tensor  # [N, K] the tokens t + 2..t + K + 1, IGNORED_LABEL past an answer's end


@dataclass(frozen=True)
class SequenceBatches(DialogueBatches):
    """Batches of whole sequences, with the hidden states of every token."""

    select_positions = staticmethod(lambda dialogue: list(range(len(dialogue.ids))))

    @torch.no_grad()
    def make_batch(self, indices: Sequence[int]) -> SequenceBatch:  # type: ignore[override]
        device = self.model.device
        extra = self.guesses
        dialogue_indices = indices or [0]  # an empty part runs dialogue 0 and learns nothing
        dialogues = [self.dialogues[index] for index in dialogue_indices]
        parts = self.get_hidden_states(dialogue_indices).split(
            [len(dialogue.ids) for dialogue in dialogues]
        )
        hidden_states = pad_sequence(list(parts), batch_first=True)
        hidden_states = torch.nn.functional.pad(hidden_states, (0, 0, 0, extra))
        ids = [torch.tensor([*dialogue.ids[1:], 0]) for dialogue in dialogues]
        tokens = torch.nn.functional.pad(pad_sequence(ids, batch_first=True), (0, extra))
        embeddings = self._embed_tokens(tokens)
        positions = [
            torch.tensor(find_learned_positions(dialogue), dtype=torch.long)
            for dialogue in dialogues
        ]
        rows = torch.repeat_interleave(torch.tensor([*map(len, positions)]))
        position_count = len(rows) if indices else 0
        locations = torch.stack([rows, torch.cat(positions)], dim=1)[:position_count].to(device)
        return SequenceBatch(
            hidden_states,
            embeddings,
            locations,
            self.get_labels(dialogue_indices)[:position_count].to(device),
        )
