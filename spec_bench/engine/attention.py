"""Attention that reads a cache once, however many query heads share a key head, and in two parts
where it is long.

transformers' own way over torch's fused attention packs the query heads of a key head for a single
token, and repeats all keys and values for several; so a tree would pay for the cache as many times
as a key head has queries, and decoding token by token once. Here both are packed alike. A pass
whose mask has a ``span`` goes over the slots that all tokens see without a mask.

Letters: R rows, H query heads, K key heads, G = H / K, T tokens of one pass, S slots, D head width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
)
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
    """Attention with the signature that transformers expects.

    Takes query [R, H, T, D], the heads of one key head adjacent, key and value [R, K, S, D], and a
    mask [R, 1, T, S] that is added to the scores times ``scaling`` (None: 1 / sqrt(D)). If it needs
    what else is given, or the mask has no span and ``pack`` is off, transformers' own function
    runs. Returns [R, T, H, D], and None for the weights.
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


def _repeat_mask_per_group(mask: Tensor, groups: int) -> Tensor:
    """[R, 1, T, S] -> [R, 1, G T, S]; made once for all layers of a pass."""
    packed = getattr(mask, "packed", None)
    if packed is None:
        rows, _, count, slots = mask.shape
        # Rows start at multiples of 8 elements, or a GPU's kernel would copy it in every layer.
        room = mask.new_zeros((rows, groups, count, slots + -slots % ALIGNED))
        room[..., :slots].copy_(mask.expand(-1, groups, -1, -1))
        packed = room.view(rows, 1, groups * count, -1)[..., :slots]
        cast(Any, mask).packed = packed
    return cast(Tensor, packed)


def install_grouped_attention(module: PreTrainedModel) -> bool:
    """Makes a model with fewer key heads use ``grouped_attention``; returns whether it does."""
    return _has_grouped_heads(module) and install_attention(module, NAME, grouped_attention)


def install_split_attention(module: PreTrainedModel) -> bool:
    """Makes a model split its attention over long prefixes, where that is quicker; returns whether
    it does. A CPU gains by it where query heads share key heads (0.3 to 1.0 of a pass's time).
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
    """Returns whether a model's attention takes masks with a span."""
    return _get_attention_name(module) in (NAME, SPLIT)


def _get_attention_name(module: PreTrainedModel) -> str:
    return getattr(module.config.get_text_config(), "_attn_implementation", "")


def install_attention(module: PreTrainedModel, name: str, attention: Callable[..., Any]) -> bool:
    """Replaces torch's fused attention by ours; returns whether the model had it."""
    is_supported = getattr(module, "_supports_attention_backend", False)
    if _get_attention_name(module) != "sdpa" or not is_supported:
        return False
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    module.set_attn_implementation(name)
    return True
