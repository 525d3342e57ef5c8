"""Rotary position embeddings by a config's ``rope_parameters``, as transformers computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def frequencies(rope: Mapping[str, Any], head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Returns angles per position [d / 2] float32, and the factor of cosine and sine, for heads of
    width d and ``rope_type``, ``rope_theta`` and what the type needs. A ValueError for an unknown
    type, or one that lacks a number.
    """
    # Late: the settings of draft heads are read without transformers, which takes seconds.
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    try:
        config = LlamaConfig(
            hidden_size=head_dim,
            num_attention_heads=1,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rope_parameters=dict(rope),
        )
        made = LlamaRotaryEmbedding(config)
    except (KeyError, TypeError) as error:
        raise ValueError(f"rope_scaling {dict(rope)} cannot be used: {error}") from None
    return made.inv_freq.float(), float(made.attention_scaling)
