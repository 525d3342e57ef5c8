"""How DFlash heads learn: a block after every row that is learned, each blind to the others.

Row t's block begins with token t + 1, which is known, and has masks after it. It sees the context
entries of the tokens up to t, and itself (DFlash, arXiv 2602.06036): what decoding runs with t + 1
as the root.

Letters: B dialogues, T tokens, A rows of a dialogue that are learned, N of all, S tokens of a
block, W width of what the target hands over, D width, K guesses, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from spec_bench.draft.dflash_network import DFlashHead
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.sequence_trainee import SequenceTrainee, padded


class BlockMemory:
    """Attention over a row's context and its own block.

    Args:
        context: per layer the keys and values [B, heads, T, d] of the context entries.
        rows: [B, A] the last entry that each block sees.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> None:
        self._context = context
        places = torch.arange(context[0][0].shape[2], device=rows.device)
        self._hidden = (places > rows.unsqueeze(-1))[:, :, None, None]  # [B, A, 1, 1, T]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """See ``draft.cached_head.Attend``; its rows are the B x A blocks."""
        shape = self._hidden.shape[:2]
        groups = q.shape[1] // k.shape[1]
        keys, values = (part.repeat_interleave(groups, dim=1) for part in self._context[layer])
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        asked = q.unflatten(0, shape)  # [B, A, heads, S, d]
        before = torch.einsum("bahsd,bhtd->bahst", asked, keys) * scale
        before = before.masked_fill(self._hidden, -torch.inf)
        within = (q @ k.transpose(-1, -2)).unflatten(0, shape) * scale
        weights = torch.cat([before, within], dim=-1).softmax(dim=-1)
        own = weights[..., before.shape[-1] :].flatten(0, 1) @ v
        seen = weights[..., : before.shape[-1]]
        return torch.einsum("bahst,bhtd->bahsd", seen, values).flatten(0, 1) + own


class BlockTrainee(SequenceTrainee):
    """A head that guesses blocks.

    Args:
        heads: the head.
        mask: [D] the target's embedding of the mask token.
        given: as ``SequenceTrainee``'s, after the head.
    """

    heads: DFlashHead
    mask: Tensor

    def __init__(self, heads: DFlashHead, mask: Tensor, *given: Any) -> None:
        super().__init__(heads, *given)
        self.register_buffer("mask", mask.detach().float(), persistent=False)

    def layers(self, blocks: int) -> Layers:
        """What its context is made of, and the last ones."""
        return (*self.heads.shape.places(blocks, "auto"), *LAST)

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """See ``SequenceTrainee``."""
        head, size = self.heads, self.heads.shape.block
        count = hidden.shape[1] - self.guesses
        rows, there = padded(at, hidden.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        places = torch.arange(max(count, size), device=rows.device)
        entries = head.context(hidden[:, :count])
        context = head.context_kept(entries, head.turn(places[:count].unsqueeze(0)))
        known = embedded[dialogue, rows].unsqueeze(2)
        masks = self.mask.to(known.dtype).expand(*rows.shape, size - 1, -1)
        block = torch.cat([known, masks], dim=2).flatten(0, 1)
        turn = head.turn((rows.unsqueeze(-1) + 1 + places[:size]).flatten(0, 1))
        made = head.outputs(block, turn, BlockMemory(context, rows))
        yield from made.unflatten(0, rows.shape)[there][:, :steps].unbind(1)
