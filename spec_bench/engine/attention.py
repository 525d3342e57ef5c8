"""Attention that reads a cache once, however many query heads share a key head, and in two parts
where it is long.

transformers' own way over torch's fused attention packs the query heads of a key head for a single
token, and repeats all keys and values for several; so a tree would pay for the cache as many times
as a key head has queries, and decoding token by token once. Here both are packed alike. A pass
whose mask has a ``span`` goes over the slots that all tokens see without a mask.

Letters: R rows, H query heads, K key heads, G = H / K, T tokens of one pass, S slots, D head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from spec_bench.engine.architectures import longest_sequence

NAME = "sdpa_grouped"
SPLIT = "sdpa_split"
ALIGNED = 8  # a mask's rows start at multiples of so many elements on a GPU


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    pack: bool = True,
    **given: Any,
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
    if span is None and not (packs and given.get("position_bias") is None):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **given
        )
    assert attention_mask is not None
    rows, heads, count, width = query.shape
    packed = query.reshape(rows, heads // groups, groups * count, width)
    mask = attention_mask if groups == 1 else _packed_mask(attention_mask, groups)
    if span is not None:
        scale = width**-0.5 if scaling is None else scaling
        output = split_attention(packed, key, value, mask, span, scale)
    else:
        output = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(rows, heads, count, -1).transpose(1, 2).contiguous(), None


def _packed_mask(mask: Tensor, groups: int) -> Tensor:
    """[R, 1, T, S] -> [R, 1, G T, S]; made once for all layers of a pass."""
    made = getattr(mask, "packed", None)
    if made is None:
        rows, _, count, slots = mask.shape
        # Rows start at multiples of 8 elements, or a GPU's kernel would copy it in every layer.
        room = mask.new_zeros((rows, groups, count, slots + -slots % ALIGNED))
        room[..., :slots].copy_(mask.expand(-1, groups, -1, -1))
        made = room.view(rows, 1, groups * count, -1)[..., :slots]
        cast(Any, mask).packed = made
    return cast(Tensor, made)


def pack_shared_heads(module: PreTrainedModel) -> bool:
    """Makes a model with fewer key heads use ``grouped_attention``; returns whether it does."""
    return _shares_heads(module) and use(module, NAME, grouped_attention)


def split_long_prefixes(module: PreTrainedModel) -> bool:
    """Makes a model split its attention over long prefixes, where that is quicker; returns whether
    it does. A CPU gains by it where query heads share key heads (0.3 to 1.0 of a pass's time).
    """
    longest = longest_sequence(module.config.get_text_config())
    if longest is not None and longest <= FROM:
        return False
    if module.device.type != "cuda" and not _shares_heads(module):
        return False
    return splits(module) or use(module, SPLIT, partial(grouped_attention, pack=False))


def _shares_heads(module: PreTrainedModel) -> bool:
    config = module.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    return (getattr(config, "num_key_value_heads", None) or heads) != heads


def splits(module: PreTrainedModel) -> bool:
    """Returns whether a model's attention takes masks with a span."""
    return _attention_of(module) in (NAME, SPLIT)


def _attention_of(module: PreTrainedModel) -> str:
    return getattr(module.config.get_text_config(), "_attn_implementation", "")


def use(module: PreTrainedModel, name: str, attention: Callable[..., Any]) -> bool:
    """Puts our attention in the place of torch's fused one, where a model has that."""
    supported = getattr(module, "_supports_attention_backend", False)
    if _attention_of(module) != "sdpa" or not supported:
        return False
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    module.set_attn_implementation(name)
    return True


# Attention in two parts: over the slots that all tokens see, without a mask, and over the others.
#
# A mask rules out a GPU's kernels that divide long keys among its processors, and is itself as
# long as the keys. The tokens of a tree differ in some slots at the end and, in a layer with a
# window, in some at its edge; only those are masked. Each part is normalised by itself, and both
# are weighted with what each summed to.
#
# Letters: R rows, K heads, N tokens of a head, S slots, D head width.


FROM = 2048  # slots that all tokens see; below, a mask costs less than a second kernel
_WIDEST = 256  # D that the kernels take, a multiple of 8
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Span:
    """The slots ``first`` to ``last`` that all tokens of a pass see, and none before ``begin``."""

    begin: int
    first: int
    last: int

    def beside(self, values: Tensor, dim: int) -> Tensor:
        """The slots that some token may not see: those of [begin, first) and from ``last`` on."""
        after = values.narrow(dim, self.last, values.shape[dim] - self.last)
        if self.begin == self.first:
            return after
        edge = values.narrow(dim, self.begin, self.first - self.begin)
        return torch.cat([edge, after], dim=dim)


def span_of(shared: int, slots: int, reach: int | None = None, *, chunked: bool = False) -> Span:
    """Returns the slots that all tokens of a pass see in a layer whose window or chunk holds
    ``reach`` tokens (None: all). ``shared`` leading slots lie on every token's path; positions are
    at least that, and less than S = ``slots``.
    """
    if reach is None or reach >= slots:
        return Span(0, 0, shared)
    if chunked:
        begin, first = shared // reach * reach, (slots - 1) // reach * reach
    else:
        begin, first = max(0, shared - reach + 1), max(0, slots - reach)
    return Span(min(begin, shared), min(first, shared), shared)


def split_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, span: Span, scale: float
) -> Tensor:
    """Attention over all slots from ``span.begin`` on: of query [R, K, N, D], key and value [R, K,
    S, D], and a mask [R, 1, N, M] added to the scores of the M slots ``beside`` the span. Returns
    [R, K, N, D].
    """
    beside = attend(query, span.beside(key, 2), span.beside(value, 2), scale, mask)
    if span.first == span.last:
        return beside[0]
    count = span.last - span.first
    whole = key.narrow(2, span.first, count), value.narrow(2, span.first, count)
    return merged(*attend(query, *whole, scale), *beside)


def merged(left: Tensor, left_sum: Tensor, right: Tensor, right_sum: Tensor) -> Tensor:
    """Attention over two sets of slots from that over each [..., N, D] and the log of the sum of
    the exponentials of its scores [..., N].
    """
    wide = torch.promote_types(left.dtype, torch.float32)
    weight = torch.sigmoid((left_sum - right_sum).to(wide)).unsqueeze(-1)
    return torch.lerp(right.to(wide), left.to(wide), weight).to(left.dtype)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns attention [R, K, N, D], and the log of its scores' summed exponentials [R, K, N];
    arguments as ``split_attention``'s.
    """
    aten = torch.ops.aten
    if query.device.type == "cpu":
        output, total = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
        return output, total
    if mask is None and query.dtype in _HALVES:
        made = aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
    else:
        mask = None if mask is None else mask.expand(-1, query.shape[1], -1, -1)
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, True, scale=scale
        )
    return made[0], made[1][..., : query.shape[2]]  # sums are filled up


def has_kernels(device: torch.device, width: int, value_width: int) -> bool:
    """Whether ``attend`` runs for heads of these widths."""
    fits = width == value_width <= _WIDEST and width % 8 == 0
    return fits and device.type in ("cpu", "cuda")
