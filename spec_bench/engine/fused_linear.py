"""Fuses linear layers with the same input into a single product.

Query, key and value have the same input, and so do gate and up. Products with small matrices reach
60 to 75% of a GPU's bandwidth; a fused product reads the same bytes in fewer, larger pieces. The
modules keep their places and their weights, as views of the fused matrix, which ``engine.plain``
uses.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class FusedPart(nn.Linear):
    """A layer of a fused group. If its module is called, it multiplies by the
    whole group's matrix.
    """

    whole: tuple[nn.Linear]  # in a tuple, so that torch does not register it as a submodule
    rows: slice

    def forward(self, input: Tensor) -> Tensor:
        return self.whole[0].forward(input)[..., self.rows]


def fuse_linear_groups(module: nn.Module) -> int:
    """Fuses the groups of a model's linear layers, in place, and frees their old memory; returns
    the number of groups. ``plain.can_run_plainly`` has found that their weights are plain.
    """
    count = 0
    for block in module.modules():
        for names in GROUPS:
            layers: list[Any] = [getattr(block, name, None) for name in names]
            if not _can_fuse(layers):
                continue
            count += 1
            sizes = [layer.out_features for layer in layers]
            has_bias = layers[0].bias is not None
            fused_layer = nn.Linear(layers[0].in_features, sum(sizes), has_bias, device="meta")
            for kind in ("weight", "bias")[: 1 + has_bias]:
                values = torch.cat([getattr(layer, kind).data for layer in layers])
                setattr(fused_layer, kind, nn.Parameter(values, requires_grad=False))
                for layer, part in zip(layers, values.split(sizes), strict=True):
                    setattr(layer, kind, nn.Parameter(part, requires_grad=False))
            for layer, end in zip(layers, accumulate(sizes), strict=True):
                layer.__class__ = FusedPart
                layer.whole = (fused_layer,)
                layer.rows = slice(end - layer.out_features, end)
    if count:
        torch.cuda.empty_cache()  # returns the parts' old memory to the device; no effect on a CPU
    return count


def _can_fuse(layers: Sequence[Any]) -> bool:
    """Returns whether these are linear layers of the same dtype without hooks, such as those of a
    split model, all with a bias or all without.
    """
    if any(type(layer) is not nn.Linear or layer._forward_hooks for layer in layers):
        return False
    return len({(layer.weight.dtype, layer.bias is None) for layer in layers}) == 1
