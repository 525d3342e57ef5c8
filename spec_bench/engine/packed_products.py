"""Products of a large model on a CPU with matrices that oneDNN has packed once.

MKL packs a matrix anew for every product of two or more tokens, so that a pass of two costs twice
a pass of one. Packed beforehand, eight tokens cost little more than one, and a row's numbers do not
depend on how many others there are. Small models, whose matrices stay in a cache, lose by it: the
choice goes by size alone, so that a run's tokens never hang on a measurement.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

LEAST_BYTES = 1 << 26  # of all matrices together; fewer stay in a cache
_LEAST_ROWS = 4  # one to three are slower than four
_LAYOUT = 8  # rows that a matrix is packed for; it hardly matters


class _Packed(nn.Linear):
    """A linear layer over a packed copy; ``weight`` keeps its shape and no values of its own."""

    packed: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:  # as a head that is trained needs it
            return linear(input, self.packed.to_dense(), self.bias)
        rows = input.reshape(-1, self.in_features)
        count = len(rows)
        if count < _LEAST_ROWS:
            rows = torch.cat([rows, rows[:1].expand(_LEAST_ROWS - count, -1)])
        output = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return output[:count].view(*input.shape[:-1], self.out_features)


def pack_products(module: nn.Module) -> int:
    """Packs the matrices of a large float32 model on a CPU, in place; how many.

    A matrix that another part of the model reads, as the embedding does, keeps its own values too.
    """
    if not torch.backends.mkldnn.is_available():
        return 0
    layers: list[Any] = [part for part in module.modules() if type(part) is nn.Linear]
    layers = [layer for layer in layers if _suits(layer)]
    if sum(layer.weight.nbytes for layer in layers) < LEAST_BYTES:
        return 0
    users: dict[int, int] = {}
    for part in module.modules():
        for weight in part._parameters.values():
            users[id(weight)] = users.get(id(weight), 0) + 1
    for layer in layers:
        alone = users[id(layer.weight)] == 1
        layer.packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _LAYOUT)
        layer.__class__ = _Packed
        if alone:
            nothing = torch.full((), torch.nan).expand(layer.weight.shape)
            layer.weight = nn.Parameter(nothing, requires_grad=False)
    return len(layers)


def dense_weight(layer: Any) -> Tensor:
    """The matrix [out, in] of a linear layer, packed or not."""
    return layer.packed.to_dense() if isinstance(layer, _Packed) else layer.weight


def _suits(layer: nn.Linear) -> bool:
    """Whether this is a plain float32 matrix on the CPU that nobody watches."""
    data = layer.weight.data
    plain = type(data) is Tensor and data.is_cpu and data.dtype == torch.float32
    return plain and "forward" not in vars(layer) and not layer._forward_hooks
