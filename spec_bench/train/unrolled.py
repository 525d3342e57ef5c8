"""How EAGLE and MTP heads learn: steps unrolled over whole sequences, each as decoding runs it.

In step k row t feeds back its own output of step k - 1 (in step 0 the target's feature f_t) with
the right token t + 1 + k. It sees the keys of step 0 of the rows up to t, which come from the
target, and its own of the steps 1..k, at position t + k: what a node at depth k on the right path
below row t sees (EAGLE-3, arXiv 2503.01840, section 3.2).

Letters: B dialogues, T tokens, A rows of a dialogue that are learned, N of all, W width of what the
target hands over, D width, K steps, V tokens, V' those that the head knows, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, smooth_l1_loss

from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.feature_head import FeatureHead
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.dialogues import IGNORED, Dialogue
from spec_bench.train.hidden import everywhere
from spec_bench.train.sequences import SequenceBatch, SequenceBatches
from spec_bench.train.trainee import Losses, Trainee

LOGITS_WEIGHT = 0.1  # of EAGLE-1's cross-entropy beside its regression (section 3.2)


class Memory:
    """Attention over the rows' keys of step 0 and each row's own of later steps.

    Args:
        rows: [B, A] the rows that later steps are run for.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """See ``draft.cached_head.Attend``; step 0 has all T rows, later ones A."""
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        kept = self._kept.setdefault(layer, [])
        kept.append((k, v))
        (first, values), later = kept[0], kept[1:]
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        places = torch.arange(first.shape[2], device=q.device)
        rows = self._rows if later else places.unsqueeze(0)
        hidden = places > rows.unsqueeze(-1)  # [B, A, T] what comes after a row
        scores = (q @ first.transpose(-1, -2) * scale).masked_fill(hidden.unsqueeze(1), -torch.inf)
        if not later:
            return scores.softmax(dim=-1) @ values
        diagonal = [(q * key).sum(-1, keepdim=True) * scale for key, _ in later]
        weights = torch.cat([scores, *diagonal], dim=-1).softmax(dim=-1)
        mixed = weights[..., : len(places)] @ values
        for place, (_, value) in enumerate(later):
            mixed = mixed + weights[..., len(places) + place, None] * value
        return mixed


class EagleTrainee(Trainee):
    """A head that goes on from its own output, behind the call of all heads.

    Args:
        heads: the head.
        guesses: K, steps that are unrolled where accuracy is measured.
        project: the target's last layer.
        steps: steps that are learned; None: all K.
        noise: what is added to features in training is uniform up to it.
    """

    heads: FeatureHead
    batches = SequenceBatches

    def __init__(
        self,
        heads: FeatureHead,
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

    def layers(self, blocks: int) -> Layers:
        """Its features', and the last ones."""
        if isinstance(self.heads, Eagle3Head):
            return (*self.heads.places(blocks), *LAST)
        return LAST

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """Outputs [N, D] of step 0, 1, ..., ``steps - 1``.

        Args:
            hidden: [B, T + K, W] the target's features.
            embedded: [B, T + K, D] of the tokens t + 1.
            at: [N, 2] dialogue and row of what is learned, in order.
            steps: how many, at most K + 1.
        """
        count = hidden.shape[1] - self.guesses
        rows, there = _padded(at, hidden.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        memory = Memory(rows)
        positions = torch.arange(count, device=hidden.device).unsqueeze(0)
        feature, after = self.heads.fuse(hidden[:, :count]), embedded[:, :count]
        for step in range(steps):
            output = self.heads.step(feature, after, positions, memory)
            if step == 0:
                output = output[dialogue, rows]
            yield output[there]
            positions = rows + step + 1
            feature, after = self.heads.fed_back(output), embedded[dialogue, positions]

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


def _padded(at: Tensor, dialogues: int) -> tuple[Tensor, Tensor]:
    """Each dialogue's rows side by side: [B, A] rows, and whether each is one; 0 stands in."""
    counts = torch.bincount(at[:, 0], minlength=dialogues)
    most = int(counts.max()) if len(at) else 0
    there = torch.arange(most, device=at.device) < counts.unsqueeze(1)
    rows = at.new_zeros((dialogues, most))
    rows[there] = at[:, 1]
    return rows, there
