"""The residual block that both kinds of heads are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """x + SiLU(linear(x)); starts as the identity.

    Args:
        width: size of x.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return x + nn.functional.silu(self.linear(x))
