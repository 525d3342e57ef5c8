"""Products of one input with several matrices as one product with all of them.

Query, key and value multiply one input, and so do gate and up. Small matrices reach 60 to 75% of a
GPU's bandwidth; one product over all reads as much in fewer, larger pieces. The modules stay where
they are and keep their weights, as parts of the one matrix: the first that is called multiplies for
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _Together:
    """The matrix of a group, and what its product with the last input left for the others."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = torch.cat([layer.weight.data for layer in layers])
        biases = [layer.bias.data for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.input: Tensor | None = None
        self.left: tuple[Tensor, ...] = ()


class _Part(nn.Linear):
    """One layer of a group; the group's layers are called in turn with the same tensor."""

    together: _Together
    place: int

    def forward(self, input: Tensor) -> Tensor:
        group = self.together
        if self.place == 0:
            group.left = linear(input, group.weight, group.bias).split(group.sizes, dim=-1)
            group.input = input
            return group.left[0]
        if group.input is not input:
            return linear(input, self.weight, self.bias)
        output = group.left[self.place]
        if self.place == len(group.sizes) - 1:
            group.input, group.left = None, ()
        return output


def fuse_products(module: nn.Module) -> int:
    """Joins the groups of a model's plain linear layers, in place; how many there are."""
    joined = 0
    for block in module.modules():
        for names in GROUPS:
            layers = [getattr(block, name, None) for name in names]
            if _alike(layers):
                _join(layers)
                joined += 1
    if joined:
        torch.cuda.empty_cache()  # what the parts held is free to all; on a CPU nothing happens
    return joined


def _alike(layers: Sequence[Any]) -> bool:
    """Whether they are plain layers of one input, all with a bias or none."""
    if any(type(layer) is not nn.Linear or layer._forward_hooks for layer in layers):
        return False
    kinds = {
        (layer.in_features, layer.weight.dtype, layer.weight.device, layer.bias is None)
        for layer in layers
    }
    plain = all(is_plain(layer.weight) and "forward" not in vars(layer) for layer in layers)
    return plain and len(kinds) == 1


def is_plain(weight: Tensor) -> bool:
    """Whether a weight is neither quantised, nor split over processes, nor still to be loaded."""
    return type(weight.data) is Tensor and not weight.is_meta


def _join(layers: Sequence[Any]) -> None:
    """Makes layers parts of one matrix; their own memory is given up."""
    together = _Together(layers)
    weights = together.weight.split(together.sizes)
    biases = together.bias.split(together.sizes) if together.bias is not None else None
    for place, layer in enumerate(layers):
        layer.weight = nn.Parameter(weights[place], requires_grad=False)
        if biases is not None:
            layer.bias = nn.Parameter(biases[place], requires_grad=False)
        layer.__class__, layer.together, layer.place = _Part, together, place
