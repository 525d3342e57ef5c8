"""Heads whose last layers are cut down to some tokens (FR-Spec, arXiv 2502.14856)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spec_bench.draft.cached_head import CachedHead
from spec_bench.draft.network import Heads


class KeptOutputs(nn.Module):
    """A last layer, weight [V, D] and perhaps bias [V], of which the outputs ``ids`` are computed;
    the others are -inf.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, ids: Sequence[int]) -> None:
        super().__init__()
        self.outputs = len(weight)
        self.ids = torch.tensor([i for i in ids if i < len(weight)], device=weight.device)
        self.weight = nn.Parameter(weight.detach()[self.ids], requires_grad=False)
        kept = None if bias is None else bias.detach()[self.ids]
        self.bias = None if kept is None else nn.Parameter(kept, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        logits = nn.functional.linear(hidden, self.weight, self.bias)
        whole = logits.new_full((*logits.shape[:-1], self.outputs), -torch.inf)
        return whole.index_copy_(-1, self.ids, logits)


def keep_outputs(heads: Heads, ids: Sequence[int], output: Tensor) -> None:
    """Cuts the last layers of draft heads, in place, to the target's tokens ``ids``.

    ``output`` [V, D] is the target's last layer, which EAGLE-1's, MTP's and DFlash's heads use.

    Raises:
        ValueError: the heads know none of these tokens.
    """
    size = heads.shape.vocab
    known = heads.ids if isinstance(heads, CachedHead) else None
    if known is not None:  # a vocabulary of their own: their outputs bear other numbers
        size, kept = len(known), set(ids)
        ids = [place for place, token in enumerate(known.tolist()) if token in kept]
    if not any(token < size for token in ids):
        raise ValueError("pair.draft_vocabulary: the draft heads know none of these tokens")
    if isinstance(heads, CachedHead) and heads.reads_target:
        heads.cut_down = KeptOutputs(output, None, ids)
        return
    for parent in list(heads.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features == size:
                setattr(parent, name, KeptOutputs(layer.weight, layer.bias, ids))
