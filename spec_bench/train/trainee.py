"""What heads guess during training, and the loss of it.

Letters: N positions, D the target's width, K guesses, V tokens. Knows tensors only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spec_bench.draft.heads import save_heads
from spec_bench.draft.network import Heads
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.data import Batches
from spec_bench.train.dialogues import IGNORED, Dialogue, positions


class Losses(NamedTuple):
    """Sums over positions, per guess.

    Attributes:
        loss: [K] cross-entropy in nats.
        right: [K] how often the best guess was the right token.
    """

    loss: Tensor
    right: Tensor


class Trainee(nn.Module):
    """Heads of either kind behind one call.

    Args:
        heads: the heads.
        guesses: K; for Medusa the number of its heads.

    Attributes:
        batches: what makes batches of dialogues.
    """

    batches: ClassVar[type[Batches]] = Batches

    def __init__(self, heads: Heads, guesses: int) -> None:
        super().__init__()
        self.heads = heads
        self.guesses = guesses

    @staticmethod
    def picked(dialogue: Dialogue) -> Sequence[int]:
        """At which positions of a dialogue it learns from hidden states."""
        return positions(dialogue)

    def layers(self, blocks: int) -> Layers:
        """The hidden states that it learns from, of a target of so many blocks."""
        return LAST

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes what was learned; from then on it is what was written, rounded."""
        save_heads(self.heads.to(dtype), folder)
        self.heads.float()

    def logits(self, batch: Any) -> Iterator[Tensor]:
        """Logits of guess 1, 2, ..., K, each [N, V].

        Args:
            batch: ``x`` [N, D], the target's last hidden states; ``embedded`` [N, K, D], its
                embeddings of the right tokens t + 1..t + K.
        """
        return self.heads.guesses(batch.x, batch.embedded)

    def wanted(self, batch: Any) -> Iterator[Tensor] | None:
        """The target's logits where guess 1, 2, ..., K are made, each [N, V]; None where the batch
        does not hold what they follow from.
        """
        return None

    def forward(self, x: Tensor, embedded: Tensor, guessed: Tensor) -> Losses:
        """Summed losses.

        Args:
            x: [N, D].
            embedded: [N, K, D].
            guessed: [N, K] the right tokens, IGNORED where there is nothing to guess.
        """
        losses, right = [], []
        for guess, logits in enumerate(self.heads.guesses(x, embedded)):
            tokens = guessed[:, guess]
            losses.append(
                nn.functional.cross_entropy(
                    logits.float(), tokens, ignore_index=IGNORED, reduction="sum"
                )
            )
            right.append((logits.detach().argmax(-1) == tokens).sum())
        return Losses(torch.stack(losses), torch.stack(right))


def weights_of(decay: float, guesses: int) -> Tensor:
    """The weight of each guess in the loss: decay^k.

    0.8 for Medusa (arXiv 2401.10774, section 2.2.1); 1 for ReDrafter, whose authors' code adds up
    the guesses' mean losses as they are.

    Returns:
        [K].
    """
    return decay ** torch.arange(1, guesses + 1)


def weighted(losses: Tensor, counts: Sequence[int], weights: Tensor) -> Tensor:
    """The loss that is minimised: sum over guesses of weight times mean cross-entropy.

    Args:
        losses: [K] sums over some of a step's positions.
        counts: K numbers of positions with something to guess, over all of the step.
        weights: [K].
    """
    means = losses / torch.tensor(counts, device=losses.device).clamp(min=1)
    return (means * weights.to(losses.device)).sum()
