"""What learns from whole sequences: outputs for every guess at every row, held against the target.

Letters: B dialogues, T tokens, A rows of a dialogue that are learned, N of all, W width of what the
target hands over, D width, K guesses, V tokens, V' those that the head knows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, smooth_l1_loss

from spec_bench.draft.cached_head import CachedHead
from spec_bench.train.dialogues import IGNORED, Dialogue
from spec_bench.train.hidden import everywhere
from spec_bench.train.sequences import SequenceBatch, SequenceBatches
from spec_bench.train.trainee import Losses, Trainee

LOGITS_WEIGHT = 0.1  # of EAGLE-1's cross-entropy beside its regression (section 3.2)


class SequenceTrainee(Trainee):
    """A head that keeps what it saw of the past, behind the call of all heads.

    Args:
        heads: the head.
        guesses: K, guesses whose accuracy is measured.
        project: the target's last layer.
        steps: guesses that are learned; None: all K.
        noise: what is added to features in training is uniform up to it.
    """

    heads: CachedHead
    batches = SequenceBatches

    def __init__(
        self,
        heads: CachedHead,
        guesses: int,
        project: Callable[[Tensor], Tensor],
        steps: int | None = None,
        noise: float = 0.0,
    ) -> None:
        super().__init__(heads, guesses)
        self._project, self._noise = project, noise
        self._steps = min(steps or guesses, guesses)

    @staticmethod
    def picked(dialogue: Dialogue) -> Sequence[int]:
        """Every one of them."""
        return everywhere(dialogue)

    @abstractmethod
    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """Outputs [N, D] of guess 0, 1, ..., ``steps - 1``.

        Args:
            hidden: [B, T + K, W] the target's features.
            embedded: [B, T + K, D] of the tokens t + 1.
            at: [N, 2] dialogue and row of what is learned, in order.
            steps: how many, at most K + 1.
        """

    def logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        features = batch.hidden[..., : self.heads.features]
        for output in self.outputs(features, batch.embedded, batch.at, self.guesses):
            yield self.heads.logits(output, self._project, self.heads.shape.vocab)

    def wanted(self, batch: SequenceBatch) -> Iterator[Tensor]:
        last, (row, place) = batch.hidden[..., -self.heads.shape.hidden :], batch.at.unbind(1)
        for step in range(self.guesses):
            yield self._project(last[row, place + 1 + step])[:, : self.heads.shape.vocab]

    def forward(  # type: ignore[override]
        self, hidden: Tensor, embedded: Tensor, at: Tensor, guessed: Tensor
    ) -> Losses:
        """Summed losses; fields as in ``SequenceBatch``. Steps that are not learned add nothing."""
        width, (row, place) = self.heads.features, at.unbind(1)
        features, last = hidden[..., :width], hidden[..., -self.heads.shape.hidden :]
        if self._noise:
            features = features + (torch.rand_like(features) * 2 - 1) * self._noise
        asked = [guessed[:, step] != IGNORED for step in range(self._steps)]
        where = [
            (row * last.shape[1] + place + 1 + step)[there] for step, there in enumerate(asked)
        ]
        needed, index = torch.cat(where).unique(return_inverse=True)
        following = last.flatten(0, 1)[needed]
        law, known = self._target_law(following)
        indices = index.split([len(part) for part in where])
        parts, right = [], torch.zeros(self.guesses, dtype=torch.long, device=hidden.device)
        for step, output in enumerate(self.outputs(features, embedded, at, self._steps)):
            logits, index = output[asked[step]], indices[step]
            losses, best = self._loss(logits, following[index], law[index], known[index])
            parts.append(losses.sum())
            right[step] = (best == guessed[asked[step], step]).sum()
        unlearned = hidden.new_zeros(self.guesses - self._steps)
        return Losses(torch.cat([torch.stack(parts), unlearned]), right)

    @torch.no_grad()
    def _target_law(self, following: Tensor) -> tuple[Tensor, Tensor]:
        """[n, V'] what the target says, and [n] whether its best token is one the head knows."""
        logits, ids = self._project(following), self.heads.ids
        if ids is None:
            known = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        else:
            known, logits = torch.isin(logits.argmax(-1), ids), logits[:, ids]
        return logits.float().softmax(dim=-1), known

    def _loss(
        self, output: Tensor, following: Tensor, law: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[n] losses and [n] best tokens of outputs [n, D], before states [n, D], laws [n, V']."""
        head = self.heads
        logits = head.own_logits(output, self._project)
        logits = logits[:, : law.shape[-1]]  # padded rows are no tokens
        entropy = -(law * log_softmax(logits.float(), dim=-1)).sum(-1)
        best = logits.detach().argmax(-1)
        best = best if head.ids is None else head.ids[best]
        if head.regresses:
            distance = smooth_l1_loss(output, following, reduction="none").mean(-1)
            return distance + LOGITS_WEIGHT * entropy, best
        return torch.where(known, entropy, 0.0), best


def padded(at: Tensor, dialogues: int) -> tuple[Tensor, Tensor]:
    """Each dialogue's rows side by side: [B, A] rows, and whether each is one; 0 stands in."""
    counts = torch.bincount(at[:, 0], minlength=dialogues)
    most = int(counts.max()) if len(at) else 0
    there = torch.arange(most, device=at.device) < counts.unsqueeze(1)
    rows = at.new_zeros((dialogues, most))
    rows[there] = at[:, 1]
    return rows, there
