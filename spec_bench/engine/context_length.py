"""How long a sequence a model takes, from its config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def longest_sequence(config: PretrainedConfig | Any) -> int | None:
    """The longest sequence that a model takes; None if its config names no limit.

    Beyond the length they were trained for, rotary embeddings of the kind ``longrope`` turn all
    keys by other angles, except those in a cache; so such a model is taken up to that length.
    """
    named = ("max_position_embeddings", "max_seq_len")
    limits = [getattr(config, name, None) for name in named]
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *rope.values()):
        if isinstance(one, dict) and one.get("rope_type") == "longrope":
            limits.append(one.get("original_max_position_embeddings"))
    return min((limit for limit in limits if isinstance(limit, int)), default=None)
