"""Medusa's heads (arXiv 2401.10774, section 2.1): head k guesses k tokens past the next one.

With the hidden state x of position t the target itself predicts token t + 1; head 1 predicts token
t + 2, head 2 token t + 3, and so on, none knowing what the others guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spec_bench.draft.heads.residual import ResidualBlock


@dataclass(frozen=True)
class MedusaShape:
    """Sizes of the heads.

    Attributes:
        hidden: D, the target's.
        vocab: V.
        heads: K.
        blocks: residual blocks per head.
    """

    hidden: int
    vocab: int
    heads: int
    blocks: int = 1


class MedusaHeads(nn.Module):
    """K independent heads of residual blocks and a linear layer of their own.

    Args:
        shape: the sizes.
    """

    kind = "medusa"

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(ResidualBlock(shape.hidden) for _ in range(shape.blocks)),
                nn.Linear(shape.hidden, shape.vocab, bias=False),
            )
            for _ in range(shape.heads)
        )

    @property
    def parameter_count(self) -> int:
        """Parameters of all heads."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Logits of all heads.

        Args:
            x: [..., D] the target's last hidden states.

        Returns:
            [..., K, V].
        """
        return torch.stack([head(x) for head in self.heads], dim=-2)
