"""Blocks of draft heads, as in Llama and Qwen3: sizes, attention, MLP.

Attention calls ``attend``, which stores keys and values: in a slot cache when decoding, with those
of the earlier steps in training.

Letters: R rows, T tokens, D width, H query heads, K key heads, d head width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spec_bench.draft.network import CheckpointConfig, HeadPlan, TensorsByName
from spec_bench.system.errors import UsageError

ROPE = {"rope_type": "default", "rope_theta": 10000.0}  # nothing is inherited from the target


@dataclass(frozen=True)
class LayerSizes:
    """Sizes and switches of a head's blocks; each kind of heads adds its own."""

    title: ClassVar[str]  # name of the kind in messages

    hidden: int  # width of the target's hidden states
    width: int  # D, width of the head
    vocab: int  # V, tokens of the target
    draft_vocab: int  # V', tokens that the head knows
    heads: int  # H
    kv_heads: int  # K
    head_dim: int  # d
    inner: int  # width of the MLPs
    layers: int = 1  # blocks
    eps: float = 1e-6  # of the norms
    # `rope_type`, `rope_theta` and what the type needs
    rope: Mapping[str, Any] = field(default_factory=lambda: dict(ROPE))
    max_positions: int = 2048  # the longest sequence
    qkv_bias: bool = False  # whether q, k and v have a bias
    o_bias: bool = False  # whether the output projection has a bias
    qk_norm: bool = False  # whether q and k are normed per head, as in Qwen3
    layer_ids: tuple[int, ...] | None = None  # which of the target's `hidden_states` it reads
    id_shift: int = 0  # `layer_ids` minus the config's ids: 1 if these name outputs of blocks
    mask_token: int | None = None  # placeholder of an unknown token

    def find_hidden_state_indices(
        self, target_blocks: int, ids_name: str = "auto"
    ) -> tuple[int, ...]:
        """Finds the indices of the target's ``hidden_states`` that the head reads: 2, L / 2 and L -
        3 of L blocks if its config names none. ``ids_name`` (``input`` or ``output`` of a block)
        overrides the meaning of the ids in the file's family. Raises UsageError if a forward pass
        does not return a named state.
        """
        ids = self.layer_ids
        if ids is None:
            ids = (2, target_blocks // 2, target_blocks - 3)
        elif ids_name != "auto":
            ids = tuple(layer_id - self.id_shift + (ids_name == "output") for layer_id in ids)
        if outside := [layer_id for layer_id in ids if not 0 <= layer_id < target_blocks]:
            raise UsageError(
                f"{self.title}: hidden state {outside[0]} is not among 0 to {target_blocks - 1} of "
                f"a target of {target_blocks} blocks"
            )
        return ids


def read_layer_sizes(
    weights: TensorsByName,
    settings: CheckpointConfig,
    heads: int,
) -> dict[str, Any]:
    """Reads the fields of ``LayerSizes`` from a config and its weights, under our names."""
    prefix = "layers.0.self_attn."
    head_dim = weights[prefix + "q_proj.weight"].shape[0] // heads
    return {
        "heads": heads,
        "kv_heads": weights[prefix + "k_proj.weight"].shape[0] // head_dim,
        "head_dim": head_dim,
        "inner": weights["layers.0.mlp.gate_proj.weight"].shape[0],
        "layers": 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("layers.")),
        "eps": float(settings.get("rms_norm_eps", 1e-6)),
        "rope": read_rope_parameters(settings),
        "max_positions": int(settings.get("max_position_embeddings") or 2048),
        "qkv_bias": prefix + "q_proj.bias" in weights,
        "o_bias": prefix + "o_proj.bias" in weights,
        "qk_norm": prefix + "q_norm.weight" in weights,
    }


def read_rope_parameters(config: CheckpointConfig) -> dict[str, Any]:
    """Reads ``rope_parameters`` of a config, or ``rope_theta`` and ``rope_scaling`` of an older
    one.
    """
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    rope.setdefault("rope_type", ROPE["rope_type"])
    rope.setdefault("rope_theta", config.get("rope_theta") or ROPE["rope_theta"])
    return rope


def get_sizes_like_target(plan: HeadPlan) -> dict[str, Any]:
    """Returns the fields of ``LayerSizes`` for untrained blocks of the target's sizes."""
    target = plan.target
    heads = int(target.get("num_attention_heads", 1))
    return {
        "hidden": plan.hidden,
        "width": plan.hidden,
        "vocab": plan.vocab,
        "draft_vocab": plan.vocab if plan.ids is None else len(plan.ids),
        "heads": heads,
        "kv_heads": int(target.get("num_key_value_heads") or heads),
        "head_dim": int(target.get("head_dim") or plan.hidden // heads),
        "inner": plan.inner or int(target.get("intermediate_size") or 4 * plan.hidden),
        "layers": plan.blocks,
        "eps": float(target.get("rms_norm_eps") or 1e-6),
        "rope": {**ROPE, **(target.get("rope_parameters") or {})},
        "max_positions": int(target.get("max_position_embeddings") or 2048),
    }


def to_transformers_config(shape: LayerSizes) -> dict[str, Any]:
    """Converts the blocks' sizes to transformers' ``config.json``."""
    return {
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.eps,
        "rope_parameters": dict(shape.rope),
        "rope_theta": shape.rope.get("rope_theta"),
        "max_position_embeddings": shape.max_positions,
        "hidden_act": "silu",
    }


AttentionFunction = Callable[[int, Tensor, Tensor, Tensor, float | None], Tensor]
"""Attention over a slot cache in decoding, over the earlier steps in training: a function of the
layer, q [R, H, T, d], k [R, K, T, d] and v [R, K, T, d'], H a multiple of K, and the scale. Stores
k and v; returns [R, H, T, d']. Scores are multiplied by the scale (None: 1 / sqrt(d))."""


class Rotation(NamedTuple):
    """Cosine and sine of every token's angles, each [R, 1, T, d]."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotates x [R, H, T, d]; its first half holds the first coordinates, its second half the
        second.
        """
        left, right = x.chunk(2, dim=-1)
        rotated = torch.cat([-right, left], dim=-1)
        return x * self.cos.to(x.dtype) + rotated * self.sin.to(x.dtype)


class RMSNorm(nn.Module):
    """Llama's norm: x / rms(x) times a weight; computed in float32 or float64."""

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

    def __init__(self, sizes: LayerSizes, inputs: int) -> None:
        super().__init__()
        wide = sizes.heads * sizes.head_dim
        narrow = sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(inputs, wide, bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(inputs, narrow, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(inputs, narrow, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(wide, sizes.width, bias=sizes.o_bias)
        self.head_dim = sizes.head_dim
        if sizes.qk_norm:
            self.q_norm = RMSNorm(sizes.head_dim, sizes.eps)
            self.k_norm = RMSNorm(sizes.head_dim, sizes.eps)
        self.qk_norm = sizes.qk_norm

    def forward(
        self,
        attention_input: Tensor,
        rotation: Rotation,
        layer: int,
        attend: AttentionFunction,
    ) -> Tensor:
        """[R, T, inputs] -> [R, T, D]."""
        q = self.q_proj(attention_input).unflatten(-1, (-1, self.head_dim))
        q = rotation((self.q_norm(q) if self.qk_norm else q).transpose(1, 2))
        context = attend(layer, q, *self.project_keys_values(attention_input, rotation), None)
        return self.o_proj(context.transpose(1, 2).flatten(2))

    def project_keys_values(
        self, attention_input: Tensor, rotation: Rotation
    ) -> tuple[Tensor, Tensor]:
        """[R, T, inputs] -> rotated keys, values, [R, K, T, d] each."""
        k, v = (
            part(attention_input).unflatten(-1, (-1, self.head_dim))
            for part in (self.k_proj, self.v_proj)
        )
        k = self.k_norm(k) if self.qk_norm else k
        return rotation(k.transpose(1, 2)), v.transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderBlock(nn.Module):
    """A decoder block. Its attention reads the normed x, or a separate input of
    width ``inputs``.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        layer_index: int,
        inputs: int = 0,
        normed: bool = True,
    ) -> None:
        super().__init__()
        self.layer_index = layer_index
        if normed:
            self.input_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.self_attn = Attention(sizes, inputs or sizes.width)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.mlp = MLP(sizes)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        attend: AttentionFunction,
        attention_input: Tensor | None = None,
    ) -> Tensor:
        """x [R, T, D], perhaps with attention_input [R, T, inputs] -> [R, T, D]."""
        attention_input = self.input_layernorm(x) if attention_input is None else attention_input
        x = x + self.self_attn(attention_input, rotation, self.layer_index, attend)
        return x + self.mlp(self.post_attention_layernorm(x))
