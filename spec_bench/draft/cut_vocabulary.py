"""Cuts the last layers of draft heads down to some tokens (FR-Spec, arXiv 2502.14856)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spec_bench.draft.cached_head import CachedHead
from spec_bench.draft.network import DraftHeads
from spec_bench.system.errors import UsageError


class CutOutputLayer(nn.Module):
    """A last layer of weight [V, D] and optional bias [V] that computes only the outputs ``ids``;
    other outputs are -inf.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, ids: Sequence[int]) -> None:
        super().__init__()
        self.outputs = len(weight)
        self.ids = torch.tensor([i for i in ids if i < len(weight)], device=weight.device)
        self.weight = nn.Parameter(weight.detach()[self.ids], requires_grad=False)
        kept_bias = None if bias is None else bias.detach()[self.ids]
        self.bias = None if kept_bias is None else nn.Parameter(kept_bias, requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        logits = nn.functional.linear(hidden, self.weight, self.bias)
        full_logits = logits.new_full((*logits.shape[:-1], self.outputs), -torch.inf)
        return full_logits.index_copy_(-1, self.ids, logits)


def cut_output_layers(heads: DraftHeads, kept_ids: Sequence[int], target_output: Tensor) -> None:
    """Cuts the last layers of draft heads, in place, to the target's tokens ``kept_ids``.
    ``target_output`` [V, D] is the target's last layer, which the heads of EAGLE-1, MTP and DFlash
    use. Raises UsageError if the heads know none of these tokens.
    """
    size = heads.shape.vocab
    head_ids = getattr(heads, "ids", None)
    if head_ids is not None:  # a reduced vocabulary: an output's index is no target token
        size = len(head_ids)
        wanted_ids = set(kept_ids)
        kept_ids = [place for place, token in enumerate(head_ids.tolist()) if token in wanted_ids]
    if not any(token < size for token in kept_ids):
        raise UsageError("pair.draft_vocabulary: the draft heads know none of these tokens")
    if isinstance(heads, CachedHead) and heads.reads_target:
        heads.cut_down = CutOutputLayer(target_output, None, kept_ids)
        return
    for parent in list(heads.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features == size:
                setattr(parent, name, CutOutputLayer(layer.weight, layer.bias, kept_ids))
