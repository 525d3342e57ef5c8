"""Whole dialogues as padded batches: what EAGLE heads learn from.

Letters: B dialogues, T tokens of the longest, W width of what the target hands over, D of its last
hidden state, K guesses, N positions that are learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spec_bench.train.data import Batches
from spec_bench.train.dialogues import positions


class SequenceBatch(NamedTuple):
    """What one part of a step learns from.

    Attributes:
        hidden: [B, T + K, ...] the target's features [W], whose end, or what stands behind them,
            is its last hidden state [D]; zeros past a dialogue's end.
        embedded: [B, T + K, D] its embedding of token t + 1.
        at: [N, 2] dialogue and position of what is learned.
        guessed: [N, K] the right tokens t + 2..t + K + 1, IGNORED past an answer's end.
    """

    hidden: Tensor
    embedded: Tensor
    at: Tensor
    guessed: Tensor


@dataclass(frozen=True)
class SequenceBatches(Batches):
    """Dialogues as batches of whole sequences; ``hidden`` holds those of every token."""

    @torch.no_grad()
    def of(self, indices: Sequence[int]) -> SequenceBatch:  # type: ignore[override]
        device, beyond = self.model.device, self.guesses
        if not indices:
            return self._nothing()
        chosen = [self.dialogues[index] for index in indices]
        parts = self.hidden.of(indices).split([len(each.ids) for each in chosen])
        hidden = pad_sequence(list(parts), batch_first=True)
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, beyond))
        ids = [torch.tensor([*each.ids[1:], 0]) for each in chosen]
        tokens = torch.nn.functional.pad(pad_sequence(ids, batch_first=True), (0, beyond))
        table = self.model.module.get_input_embeddings()
        embedded = table(tokens.to(device)).to(device).float()
        at = [(row, t) for row, each in enumerate(chosen) for t in positions(each)]
        guessed = self.tokens(indices)[:, 1:].to(device)
        return SequenceBatch(hidden, embedded, torch.tensor(at, device=device), guessed)

    def _nothing(self) -> SequenceBatch:
        """A part of a step that no dialogue fell to."""
        device, width = self.model.device, self.model.hidden_size
        hidden = self.hidden.of([0])[:0].expand(0, -1).unsqueeze(0)
        return SequenceBatch(
            hidden,
            torch.zeros((1, 0, width), device=device),
            torch.zeros((0, 2), dtype=torch.long, device=device),
            torch.zeros((0, self.guesses), dtype=torch.long, device=device),
        )
