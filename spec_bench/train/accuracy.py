"""How often heads are right: per guess, and per guess and rank.

Guess i is what the papers call t + i: they count from the token that is already known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.train.data import Batches
from spec_bench.train.dialogues import IGNORED
from spec_bench.train.trainee import Trainee

_DIALOGUES = 32  # at a time


@dataclass(frozen=True)
class Accuracy:
    """Shares of positions.

    Attributes:
        loss: K mean cross-entropies in nats.
        ranks: K lists; ranks[k][n] is the share of positions whose right token is the n-th best
            guess of head k, both counted from 0. ReDrafter's are those under teacher forcing.
        counts: K numbers of positions.
        overlaps: K means of sum min(p, q) at temperature 1, p the target's law and q the head's:
            what would be accepted of one token drawn. Empty for heads whose batches hold no p.
    """

    loss: tuple[float, ...]
    ranks: tuple[tuple[float, ...], ...]
    counts: tuple[int, ...]
    overlaps: tuple[float, ...] = ()

    @property
    def best(self) -> tuple[float, ...]:
        """K shares of positions where the best guess is right."""
        return tuple(head[0] for head in self.ranks)


@torch.no_grad()
def measure(
    trainee: Trainee, batches: Batches, indices: Sequence[int], ranks: int
) -> Accuracy | None:
    """Accuracy on some dialogues, ranks up to V at most; None where there are none."""
    if not indices:
        return None
    trainee.eval()
    device, guesses = batches.model.device, trainee.guesses
    loss = torch.zeros(guesses, dtype=torch.float64, device=device)
    hits: Tensor | None = None
    overlaps = torch.zeros_like(loss)
    counts = [0] * guesses
    for start in range(0, len(indices), _DIALOGUES):
        chosen = indices[start : start + _DIALOGUES]
        batch = batches.of(chosen)
        counts = [a + b for a, b in zip(counts, batches.counts(chosen), strict=True)]
        laws = trainee.wanted(batch)
        for guess, logits in enumerate(trainee.logits(batch)):
            tokens = batch.guessed[:, guess]
            if laws is not None:
                overlaps[guess] += overlap(next(laws), logits)[tokens != IGNORED].sum()
            surprise = torch.nn.functional.cross_entropy(
                logits.float(), tokens, ignore_index=IGNORED, reduction="none"
            )
            # Heads of fewer tokens than the target's are asked for none that they do not know.
            loss[guess] += surprise.nan_to_num(posinf=0.0).sum()
            best = logits.topk(min(ranks, logits.shape[-1]), dim=-1).indices
            if hits is None:
                hits = torch.zeros(guesses, best.shape[-1], dtype=torch.long, device=device)
            hits[guess] += (best == tokens[:, None]).sum(0)
    trainee.train()
    assert hits is not None
    divisor = torch.tensor(counts, device=device).clamp(min=1)
    return Accuracy(
        tuple((loss / divisor).tolist()),
        tuple(tuple(row) for row in (hits / divisor[:, None]).tolist()),
        tuple(counts),
        tuple((overlaps / divisor).tolist()) if laws is not None else (),
    )


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """[N] sum min(p, q) of the laws of two logits [N, V] at temperature 1."""
    p, q = (logits.float().softmax(dim=-1) for logits in (one, other))
    return torch.minimum(p, q).sum(dim=-1)
