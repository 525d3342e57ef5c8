"""The decoder block of an EAGLE head: a Llama block whose attention may read twice the width.

Letters: R rows, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spec_bench.draft.cached_head import Attend
from spec_bench.draft.eagle_shape import EagleShape
from spec_bench.draft.layers import MLP, Attention, RMSNorm, Turn


class Block(nn.Module):
    """One decoder block.

    Args:
        shape: of the head.
        layer: its number; the first one has no input norm in EAGLE-1, and reads embedding and
            feature side by side in EAGLE-3.
    """

    def __init__(self, shape: EagleShape, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.pairs = layer == 0 and shape.version == 3
        self.normed_residual = shape.norm_before_residual
        self.self_attn = Attention(shape, 2 * shape.width if self.pairs else shape.width)
        self.mlp = MLP(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        if self.pairs:
            self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.bare = layer == 0 and shape.version == 1
        if not self.bare:
            self.input_layernorm = RMSNorm(shape.width, shape.eps)

    def forward(self, x: Tensor, embedded: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """One pass.

        Args:
            x: [R, T, D] features, or the block before.
            embedded: [R, T, D] read beside them by EAGLE-3's first block.
            turn: rotation by position.
            attend: attention over what is kept.

        Returns:
            [R, T, D].
        """
        if self.pairs:
            normed = self.hidden_norm(x)
            z = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
            x = normed if self.normed_residual else x
        else:
            z = x if self.bare else self.input_layernorm(x)
        x = x + self.self_attn(z, turn, self.layer, attend)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed
