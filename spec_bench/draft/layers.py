"""Parts of the blocks of draft heads: rotation, norm, attention, MLP, as Llama and Qwen3 have them.

Attention does not know where keys and values are kept: it calls ``attend``, which is a slot cache
in decoding and the earlier steps in training.

Letters: R rows, T tokens, D width, H query heads, K key heads, d head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spec_bench.draft.cached_head import Attend


class Sizes:
    """Of a head's blocks; a head's shape is a frozen dataclass with these and more."""

    width: int  # D
    heads: int  # H
    kv_heads: int  # K
    head_dim: int  # d
    inner: int  # width of the MLP
    layers: int  # blocks
    vocab: int  # V, tokens of the target
    eps: float  # of the norms
    qkv_bias: bool  # whether q, k and v have one
    o_bias: bool  # whether the output projection has
    qk_norm: bool  # whether q and k are normed per head, as in Qwen3
    rope: Mapping[str, Any]  # `rope_type`, `rope_theta` and what the type needs
    max_positions: int  # the longest sequence


class Turn(NamedTuple):
    """Cosine and sine of every token's angles, [R, 1, T, d] each."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotates x [R, H, T, d], whose halves are the two coordinates."""
        one, two = x.chunk(2, dim=-1)
        turned = torch.cat([-two, one], dim=-1)
        return x * self.cos.to(x.dtype) + turned * self.sin.to(x.dtype)


def turn_at(positions: Tensor, angles: Tensor, factor: float) -> Turn:
    """The rotation at positions [R, T] by angles [d / 2]; ``factor`` scales cosine and sine."""
    angle = positions.unsqueeze(-1) * angles
    angle = torch.cat([angle, angle], dim=-1).unsqueeze(1)
    return Turn(angle.cos() * factor, angle.sin() * factor)


class RMSNorm(nn.Module):
    """Llama's: x / rms(x) in float32 at least, times a weight."""

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

    def __init__(self, sizes: Sizes, inputs: int) -> None:
        super().__init__()
        wide, narrow = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(inputs, wide, bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(inputs, narrow, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(inputs, narrow, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(wide, sizes.width, bias=sizes.o_bias)
        self.head_dim = sizes.head_dim
        if sizes.qk_norm:
            self.q_norm = RMSNorm(sizes.head_dim, sizes.eps)
            self.k_norm = RMSNorm(sizes.head_dim, sizes.eps)
        self.qk_norm = sizes.qk_norm

    def forward(self, z: Tensor, turn: Turn, layer: int, attend: Attend) -> Tensor:
        """z [R, T, inputs] -> [R, T, D]."""
        return self.mixed(attend(layer, self.queries(z, turn), *self.kept(z, turn)))

    def queries(self, z: Tensor, turn: Turn) -> Tensor:
        """z [R, T, inputs] -> [R, H, T, d], turned."""
        q = self.q_proj(z).unflatten(-1, (-1, self.head_dim))
        return turn((self.q_norm(q) if self.qk_norm else q).transpose(1, 2))

    def kept(self, z: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """z [R, T, inputs] -> keys, turned, and values, [R, K, T, d] each."""
        k, v = (part(z).unflatten(-1, (-1, self.head_dim)) for part in (self.k_proj, self.v_proj))
        k = self.k_norm(k) if self.qk_norm else k
        return turn(k.transpose(1, 2)), v.transpose(1, 2)

    def mixed(self, values: Tensor) -> Tensor:
        """What was attended to, [R, H, T, d] -> [R, T, D]."""
        projected: Tensor = self.o_proj(values.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        gated = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        lowered: Tensor = self.down_proj(gated)
        return lowered
