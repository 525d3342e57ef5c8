"""ReDrafter's head (arXiv 2403.09919, section 2): one head, applied again for every token.

Its state takes in the embedding of each token as it is guessed, so that the guess for t + 3 knows
the guess for t + 2. The first update takes in the last token that is *known*, the one the target
has just emitted. As in the authors' code the state starts at zero and the head sees [x, s].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spec_bench.draft.heads.residual import ResidualBlock


@dataclass(frozen=True)
class RecurrentShape:
    """Sizes of the head.

    Attributes:
        hidden: D, the target's.
        vocab: V.
        blocks: residual blocks.
        recurrent: False sums the embeddings instead: U = W = I, b = 0, f the identity (the paper's
            ablation, Figure 4).
        inner: width of the residual blocks; 2 D unless a projection narrows them.
    """

    hidden: int
    vocab: int
    blocks: int = 2
    recurrent: bool = True
    inner: int | None = None

    @property
    def width(self) -> int:
        """Width of the residual blocks."""
        return 2 * self.hidden if self.inner is None else self.inner


class RecurrentHead(nn.Module):
    """A recurrent state, residual blocks and a softmax shared by all positions.

    Args:
        shape: the sizes.
    """

    kind = "redrafter"

    def __init__(self, shape: RecurrentShape) -> None:
        super().__init__()
        self.shape = shape
        if shape.width != 2 * shape.hidden:
            self.input_proj = nn.Linear(2 * shape.hidden, shape.width)
        self.lm_head = nn.Sequential(
            *(ResidualBlock(shape.width) for _ in range(shape.blocks)),
            nn.Linear(shape.width, shape.vocab, bias=False),
        )
        if shape.recurrent:
            self.rnn_u = nn.Linear(shape.hidden, shape.hidden)
            self.rnn_w = nn.Linear(shape.hidden, shape.hidden, bias=False)

    @property
    def parameter_count(self) -> int:
        """Parameters of the head; the target's embeddings, which it reads, are not its own."""
        return sum(parameter.numel() for parameter in self.parameters())

    def advance(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Takes in one token: s' = SiLU(U s + W e + b).

        Args:
            state: [..., D]; zeros at first.
            embedding: [..., D] the token's embedding in the target.

        Returns:
            [..., D].
        """
        if not self.shape.recurrent:
            return state + embedding
        return nn.functional.silu(self.rnn_u(state) + self.rnn_w(embedding))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Logits of the next token.

        Args:
            x: [..., D] the target's last hidden state.
            state: [..., D].

        Returns:
            [..., V].
        """
        both = torch.cat([x, state], dim=-1)
        if self.shape.width != 2 * self.shape.hidden:
            both = self.input_proj(both)
        return self.lm_head(both)
