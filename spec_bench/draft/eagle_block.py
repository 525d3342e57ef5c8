"""The decoder block of an EAGLE head: a Llama block whose attention may read twice the width.

The block does not know where keys and values are kept: it calls ``attend``, which is a slot cache
in decoding and the earlier steps in training.

Letters: R rows, T tokens, D width, H query heads, K key heads, d head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from spec_bench.draft.eagle_shape import EagleShape
from spec_bench.draft.feature_head import Attend


class Turn(NamedTuple):
    """Cosine and sine of every token's angles, [R, 1, T, d] each."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotates x [R, H, T, d], whose halves are the two coordinates."""
        one, two = x.chunk(2, dim=-1)
        turned = torch.cat([-two, one], dim=-1)
        return x * self.cos.to(x.dtype) + turned * self.sin.to(x.dtype)


class RMSNorm(nn.Module):
    """Llama's: x / rms(x) in float32 at least, times a weight.

    Args:
        width: D.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, shape: EagleShape, inputs: int) -> None:
        super().__init__()
        wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(inputs, wide, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(inputs, narrow, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(inputs, narrow, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(wide, shape.width, bias=shape.o_bias)
        self.head_dim = shape.head_dim
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.eps)
            self.k_norm = RMSNorm(shape.head_dim, shape.eps)
        self.qk_norm = shape.qk_norm

    def forward(self, z: Tensor, turn: Turn, layer: int, attend: Attend) -> Tensor:
        """z [R, T, inputs] -> [R, T, D]."""
        q, k, v = (
            project(z).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = attend(layer, turn(q), turn(k), v)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        gated = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        lowered: Tensor = self.down_proj(gated)
        return lowered


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
