"""How EAGLE and MTP heads learn: steps unrolled over whole sequences, each as decoding runs it.

In step k row t feeds back its own output of step k - 1 (in step 0 the target's feature f_t) with
the right token t + 1 + k. It sees the keys of step 0 of the rows up to t, which come from the
target, and its own of the steps 1..k, at position t + k: what a node at depth k on the right path
below row t sees (EAGLE-3, arXiv 2503.01840, section 3.2).

Letters: B dialogues, T tokens, A rows of a dialogue that are learned, N of all, W width of what the
target hands over, D width, K steps, V tokens, V' those that the head knows, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor

from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.feature_head import FeatureHead
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.sequence_trainee import SequenceTrainee, padded


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


class EagleTrainee(SequenceTrainee):
    """A head that goes on from its own output."""

    heads: FeatureHead

    def layers(self, blocks: int) -> Layers:
        """Its features', and the last ones."""
        if isinstance(self.heads, Eagle3Head):
            return (*self.heads.places(blocks), *LAST)
        return LAST

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """See ``SequenceTrainee``."""
        count = hidden.shape[1] - self.guesses
        rows, there = padded(at, hidden.shape[0])
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
