"""How a model's weights are stored: column by column where that makes tree passes faster.

At the 4 to 15 tokens of a tree MKL multiplies by a matrix stored row by row up to two times slower
than by one stored column by column. A single token and a prompt take the same time either way, and
2 or 3 tokens a quarter more by columns. ``make bench`` prints the ratios.
"""

from __future__ import annotations

import torch
from torch import nn

# 2 MiB of float32, more than a core's own cache holds; smaller matrices gain nothing.
SMALLEST = 2**19


def lay_by_columns(module: nn.Module) -> int:
    """Lays out the large float32 matrices of a model's linear layers by columns, in place; how many
    changed.

    Shapes and values stay as they are; only the rounding of products changes. A matrix shared with
    the embedding stays shared. Nothing is done off the CPU, without MKL, or to a split model.
    """
    if not torch.backends.mkl.is_available():
        return 0
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    matrices = {id(part.weight): part.weight for part in layers if _suits(part.weight.data)}
    for weight in matrices.values():
        weight.data = weight.data.t().contiguous().t()
    return len(matrices)


def _suits(data: torch.Tensor) -> bool:
    """Whether this is a large plain matrix on the CPU, laid out by rows."""
    plain = type(data) is torch.Tensor and data.is_cpu and data.dtype == torch.float32
    return plain and data.is_contiguous() and data.numel() >= SMALLEST
