"""Attention functions that read the cache once per key head, and split long prefixes in two parts.

With torch's fused attention, transformers packs the query heads of a key head for a single token
but repeats all keys and values for several tokens. A tree would thus read the cache once per query
head, while plain decoding reads it once per key head. Here both are packed. If a pass's mask has a
``span``, the slots that all tokens see are read without a mask.

Letters: R rows, H query heads, K key heads, G = H / K, T tokens of a pass, S slots, D head width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spec_bench.engine.architectures import get_max_sequence_length
from spec_bench.engine.split_attention import ALIGNED, FROM, attend_split_by_span

NAME = "sdpa_grouped"
SPLIT = "sdpa_split"


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    pack: bool = True,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention with the signature that transformers expects; returns [R, T, H, D], and
    None for the weights.

    Takes query [R, H, T, D], with the heads of a key head adjacent, key and value [R, K, S, D], and
    a mask [R, 1, T, S] that is added to the scores times ``scaling`` (None: 1 / sqrt(D)). Calls
    transformers' own function if other arguments matter, or if the mask has no span and ``pack`` is
    off.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    span = getattr(attention_mask, "span", None)
    packs = pack and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    if span is None and not (packs and kwargs.get("position_bias") is None):
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            **kwargs,
        )
    assert attention_mask is not None
    rows, heads, count, width = query.shape
    packed = query.reshape(rows, heads // groups, groups * count, width)
    mask = attention_mask if groups == 1 else _repeat_mask_per_group(attention_mask, groups)
    if span is not None:
        scale = width**-0.5 if scaling is None else scaling
        output = attend_split_by_span(packed, key, value, mask, span, scale)
    else:
        output = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(rows, heads, count, -1).transpose(1, 2).contiguous(), None


def _repeat_mask_per_group(mask: Any, groups: int) -> Tensor:
    """Repeats a mask [R, 1, T, S] to [R, 1, G T, S], once for all layers of a pass."""
    packed = getattr(mask, "packed", None)
    if packed is None:
        rows, _, count, slots = mask.shape
        # Rows start at multiples of 8 elements, or a GPU's kernel would copy it in every layer.
        room = mask.new_zeros((rows, groups, count, slots + -slots % ALIGNED))
        room[..., :slots].copy_(mask.expand(-1, groups, -1, -1))
        packed = room.view(rows, 1, groups * count, -1)[..., :slots]
        mask.packed = packed
    return packed


def install_grouped_attention(module: PreTrainedModel) -> bool:
    """Makes a model whose query heads share key heads use ``grouped_attention``; returns whether it
    does.
    """
    return _has_grouped_heads(module) and install_attention(module, NAME, grouped_attention)


def install_split_attention(module: PreTrainedModel) -> bool:
    """Makes a model split its attention over long prefixes if that is quicker; returns whether it
    does. On a CPU this helps only if query heads share key heads (0.3 to 1.0 of a pass's time).
    """
    longest = get_max_sequence_length(module.config.get_text_config())
    if longest is not None and longest <= FROM:
        return False
    if module.device.type != "cuda" and not _has_grouped_heads(module):
        return False
    return supports_spans(module) or install_attention(
        module, SPLIT, partial(grouped_attention, pack=False)
    )


def _has_grouped_heads(module: PreTrainedModel) -> bool:
    config = module.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    return (getattr(config, "num_key_value_heads", None) or heads) != heads


def supports_spans(module: PreTrainedModel) -> bool:
    """Returns whether a model's attention function uses a mask's span."""
    return _get_attention_name(module) in (NAME, SPLIT)


def _get_attention_name(module: PreTrainedModel) -> str:
    return getattr(module.config.get_text_config(), "_attn_implementation", "")


def install_attention(module: PreTrainedModel, name: str, attention: Callable[..., Any]) -> bool:
    """Replaces torch's fused attention in a model; returns False if the model does not use it."""
    is_supported = getattr(module, "_supports_attention_backend", False)
    if _get_attention_name(module) != "sdpa" or not is_supported:
        return False
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    module.set_attn_implementation(name)
    return True
